"""LM-Rec: a causal language model that reads a history spelled in semantic ids and spells what comes next.

Any transformers model can be one, with the tokens of the ids added to its vocabulary (`from_path`), or a small Llama
that knows no other words (`small_llama`). It proposes items instead of scoring all of them: beams over the tree of
ids, in which no illegal id exists. All beams of a row share its keys and values: what a beam spelled so far lies
behind the history and is seen by its own descendants alone, so nothing is copied, and what was chosen is appended
as it would have been read.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..catalog import Catalog
from . import checkpoint, lora
from .histories import aligned
from .spelling import best_items
from .tape import Tape

KIND = "lmrec"
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Context(NamedTuple):
    """What has been read. It is used up by `advance`: its tape goes on in the state that follows.

    seen: (R, T) False for padding.  logits: (R, V) of the next token, all places of an id one after the other
    """

    tape: Tape
    seen: Tensor
    logits: Tensor


class LMRec(nn.Module):
    """A language model over a catalog of ids, as a model that proposes. Made by `from_path`, `small_llama` or `load`.

    lm:      a transformers causal language model whose tokens `first`, `first` + 1, ... spell the ids
    bos:     the token before every history
    history: how many items are read at most
    beams:   how many prefixes are followed inside an item, and how many items are proposed; 1 is greedy
    mean_of_open: what a prefix is paid: the mean over the items a row may still have, or (False) over all
    config:  what is kept in a checkpoint, so that `load` can build the model again
    """

    def __init__(
        self,
        lm: Any,
        catalog: Catalog,
        *,
        first: int,
        bos: int,
        history=20,
        beams=20,
        mean_of_open=True,
        config=None,
    ):
        super().__init__()
        for name, given in (("history", history), ("beams", beams)):
            if isinstance(given, bool) or not isinstance(given, int) or given < 1:
                raise ValueError(f"`{name}` must be a whole number of at least 1, got {given!r}.")
        _check_attention(lm.config)
        self.lm: Any = lm
        self.first, self.bos = first, bos
        self.history, self.beams, self.mean_of_open = history, beams, mean_of_open
        self.items = len(catalog)
        self.shared = catalog.collisions().largest
        self.offsets = np.cumsum([0, *catalog.sizes]).tolist()  # where each place begins among the tokens of ids
        self._catalog = catalog
        spelled = catalog.tokens.cpu() + first + torch.tensor(self.offsets[:-1])
        self.register_buffer("spelled", F.pad(spelled, (0, 0, 0, 1), value=bos), persistent=False)  # (M + 1, L)
        self.register_buffer("tokens", catalog.tokens.cpu().clone())  # (M, L) kept with the weights
        self.tokenizer: Any = None
        self.config: dict[str, Any] = {
            "backbone": lm.config.to_dict(),
            "first": first,
            "bos": bos,
            "history": history,
            "sizes": list(catalog.sizes),
            "items": catalog.items,
            "ids": catalog.fingerprint(),
            **(config or {}),
        }

    @property
    def device(self) -> torch.device:
        return self.spelled.device

    @property
    def catalog(self) -> Catalog:
        """The catalog, where the model is."""
        if self._catalog.device != self.device:
            self._catalog = self._catalog.to(self.device)
        return self._catalog

    # ---- reading, for decoders -------------------------------------------------------------------------------

    @torch.no_grad()
    def start(self, histories: Any) -> Context:
        """What is read of the last `history` items that are known, each row behind its padding."""
        items = aligned(histories, most=self.history, items=self.items, device=self.device)  # (R, n)
        words = self.spelled[items].flatten(1)  # an item of -1 is the last line
        words = F.pad(words, (1, 0), value=self.bos)
        known = (items >= 0).repeat_interleave(self._catalog.depth, 1)
        seen = F.pad(known, (0, 1), value=True)  # the padding of a row ends one token earlier: there BOS stands
        length = seen.shape[1]
        mask = seen[:, None] & torch.ones(length, length, dtype=torch.bool, device=self.device).tril()
        mask = mask | torch.eye(length, dtype=torch.bool, device=self.device)  # padding sees itself: no row is empty
        tape = Tape(self.lm.config.get_text_config().num_hidden_layers)
        logits = self._read(tape, words, mask, (seen.cumsum(1) - 1).clamp_min(0), last=1)
        return Context(tape, seen, logits[:, 0])

    @torch.no_grad()
    def propose(self, state: Context, open_: Tensor | None = None, bonus: Tensor | None = None):
        """(R, beams) the best open items found by log p + bonus, and their log p; see `spelling.best_items`."""
        length = state.seen.shape[1]
        state.tape.cut(length)
        position = state.seen.sum(1, keepdim=True)
        lineage: list[Tensor] = []  # (R, B, B') which words of an earlier place a beam goes on from

        def extend(parent: Tensor, word: Tensor) -> Tensor:
            rows, beams = word.shape
            lineage[:] = [x.gather(1, parent[:, :, None].expand(-1, -1, x.shape[2])) for x in lineage]
            lineage.append(torch.eye(beams, dtype=torch.bool, device=word.device).expand(rows, -1, -1))
            mask = torch.cat([state.seen[:, None].expand(-1, beams, -1), *lineage], 2)
            positions = (position + len(lineage) - 1).expand(-1, beams)
            return self._read(state.tape, self.first + word, mask, positions, last=beams)

        found = best_items(self.catalog, state.logits, extend, self.beams, open_, bonus, self.mean_of_open, self.shared)
        state.tape.cut(length)
        return found

    @torch.no_grad()
    def advance(self, state: Context, items: Tensor) -> Context:
        """What is read once each row's item (R,) is appended, token by token as it is spelled."""
        words = self.spelled[items]  # (R, L)
        count = words.shape[1]
        state.tape.cut(state.seen.shape[1])
        steps = torch.arange(count, device=words.device)
        causal = (steps <= steps[:, None]).expand(len(words), -1, -1)
        mask = torch.cat([state.seen[:, None].expand(-1, count, -1), causal], 2)
        positions = state.seen.sum(1, keepdim=True) + steps
        logits = self._read(state.tape, words, mask, positions, last=1)
        return Context(state.tape, F.pad(state.seen, (0, count), value=True), logits[:, 0])

    def _read(self, tape: Tape, words: Tensor, mask: Tensor, positions: Tensor, last: int) -> Tensor:
        """(R, last, V) float32 logits of the tokens of ids after the last words. mask: (R, T, T') what each word sees."""
        dtype = self.lm.dtype
        barred = torch.zeros((), dtype=dtype, device=mask.device).where(mask[:, None], torch.finfo(dtype).min)
        out = self.lm(
            input_ids=words,
            attention_mask=barred,
            position_ids=positions,
            past_key_values=tape,
            use_cache=True,
            logits_to_keep=last,
        )
        return out.logits[..., self.first : self.first + self.offsets[-1]].float()

    # ---- learning --------------------------------------------------------------------------------------------

    def loss(self, items: Tensor) -> Tensor:
        """The mean over tokens of -log p of each item's token among those its place can hold.

        items: (B, n) item numbers, oldest first, -1 behind the last
        """
        depth = self._catalog.depth
        words = F.pad(self.spelled[items].flatten(1), (1, 0), value=self.bos)
        # Padding stands behind all that counts, so nothing of it is ever seen.
        logits = self.lm(input_ids=words[:, :-1], use_cache=False).logits
        logits = logits[..., self.first : self.first + self.offsets[-1]].float().unflatten(1, (-1, depth))
        target = self.tokens[items].masked_fill((items < 0)[:, :, None], -100)  # (B, n, L)
        total = logits.new_zeros(())
        for place, (begin, end) in enumerate(zip(self.offsets[:-1], self.offsets[1:], strict=True)):
            total = total + F.cross_entropy(
                logits[:, :, place, begin:end].flatten(0, 1), target[:, :, place].flatten(), reduction="sum"
            )
        return total / (depth * (items >= 0).sum().clamp_min(1))

    # ---- kept ------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, **more: Any) -> None:
        """Write the whole model, with its ids, to one checkpoint; `fit` does so too."""
        checkpoint.save(
            path, kind=KIND, config=self.config, weights=self.state_dict(), fingerprint=self.config["items"], **more
        )

    def save_adapter(self, path: str | Path, **more: Any) -> None:
        """Write what was learnt beside the frozen model alone: adapters and the rows of new tokens."""
        learnt = lora.weights(self.lm)
        checkpoint.save(
            path, kind=f"{KIND} adapter", config=self.config, weights=learnt, fingerprint=self.config["items"], **more
        )

    def load_adapter(self, path: str | Path) -> LMRec:
        """Put back what `save_adapter` wrote, into a model built the same way. Returns the model."""
        found = checkpoint.load(path, kind=f"{KIND} adapter", fingerprint=self.config["items"] or None)
        own = lora.weights(self.lm)
        if found.config["ids"] != self.config["ids"] or {k: v.shape for k, v in own.items()} != {
            k: v.shape for k, v in found.weights.items()
        }:
            raise ValueError(
                f"Adapter '{path}' was learnt beside another model, other ids or another rank. Build the model as it "
                "was built then."
            )
        self.lm.load_state_dict(found.weights, strict=False)
        return self

    def merge(self) -> LMRec:
        """Fold adapters into the model, which then is a plain transformers model (`self.lm.save_pretrained`)."""
        lora.merge(self.lm)
        self.config["lora"] = None
        return self


# ---- where models come from ----------------------------------------------------------------------------------


def small_llama(
    catalog: Catalog, *, width=256, layers=4, heads=4, dropout=0.1, history=20, beams=20, mean_of_open=True, seed=0
) -> LMRec:
    """A Llama from scratch whose vocabulary is the tokens of the ids, a beginning and a padding.

    dropout: of embeddings, attention and what each layer adds
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    for name, given in (("width", width), ("layers", layers), ("heads", heads)):
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            raise ValueError(f"`{name}` must be a whole number of at least 1, got {given!r}.")
    if width % (2 * heads):
        raise ValueError(f"`width` must be a multiple of 2 x `heads`, got {width} and {heads}.")
    if not 0 <= dropout < 1:
        raise ValueError(f"`dropout` must lie in [0, 1), got {dropout!r}.")
    config = LlamaConfig(
        vocab_size=2 + sum(catalog.sizes),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=2048,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=None,
        tie_word_embeddings=True,
        attention_dropout=dropout,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        lm = LlamaForCausalLM(config)
    drop_out(lm, dropout)
    about = {"dropout": dropout, "seed": seed}
    return LMRec(
        lm, catalog, first=2, bos=0, history=history, beams=beams, mean_of_open=mean_of_open, config=about
    ).eval()


def from_path(
    path: str | Path,
    catalog: Catalog,
    *,
    rank: int | None = None,
    history=20,
    beams=20,
    mean_of_open=True,
    seed=0,
    **options,
) -> LMRec:
    """Any transformers causal language model, from a folder or the hub, with the tokens of the ids added.

    rank:    learn adapters of this rank and the new tokens only (see `lora.adapt`); None learns everything
    options: for `from_pretrained`, e.g. dtype=torch.bfloat16

    Its tokenizer, where there is one, gets the tokens too, as `<a_12>`, `<b_7>`, ...: it is `model.tokenizer`.
    """
    from transformers import AutoModelForCausalLM

    try:
        lm = AutoModelForCausalLM.from_pretrained(path, **options)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"`path` must be a folder with a causal language model, or the name of one on the hub, and '{path}' cannot be "
            f"loaded as one: {str(error).splitlines()[0].rstrip('.')}. Check the path."
        ) from error
    tokenizer = _tokenizer(path, {k: options[k] for k in ("gguf_file", "revision", "token") if k in options})
    count = sum(catalog.sizes)
    first = lm.config.get_text_config().vocab_size if tokenizer is None else len(tokenizer)
    if tokenizer is not None:
        names = token_names(catalog.sizes)
        tokenizer.add_tokens(names)
        if tokenizer.convert_tokens_to_ids(names) != list(range(first, first + count)):
            raise ValueError(
                f"the tokenizer of '{path}' has some of {names[0]}, ..., {names[-1]} already. Use one without them."
            )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        size = first + count
        lm.resize_token_embeddings(max(size, lm.config.get_text_config().vocab_size), mean_resizing=False)
        _init_like_the_others(lm, first, size)
        if rank is not None:
            lm.resize_token_embeddings(size)
            lora.adapt(lm, rank=rank, first=first)
    text = lm.config.get_text_config()
    bos = next((t for t in (text.bos_token_id, text.eos_token_id, 0) if isinstance(t, int)), 0)
    model = LMRec(
        lm,
        catalog,
        first=first,
        bos=bos,
        history=history,
        beams=beams,
        mean_of_open=mean_of_open,
        config={"lora": rank, "from": str(path)},
    )
    model.tokenizer = tokenizer
    return model


def load(path: str | Path, *, fingerprint: str | None = None, preference: Any = None, **settings: Any) -> LMRec:
    """The model a checkpoint holds.

    fingerprint: of the items at hand.  settings: other `beams`, `mean_of_open`
    preference:  (M,) which of the items that share an id come first, see `Catalog.preferring`; it is not kept in files
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    found = checkpoint.load(path, kind=KIND, fingerprint=fingerprint)
    config = dict(found.config)
    backbone = dict(config["backbone"])
    lm = AutoModelForCausalLM.from_config(AutoConfig.for_model(backbone.pop("model_type"), **backbone))
    lm.to(next(x.dtype for x in found.weights.values() if x.is_floating_point()))
    if config.get("lora"):
        lora.adapt(lm, rank=config["lora"], first=config["first"])
    if config.get("dropout"):
        drop_out(lm, config["dropout"])
    catalog = Catalog.of(found.weights["tokens"], sizes=config["sizes"], items=config["items"])
    catalog = catalog if preference is None else catalog.preferring(preference)
    about = {k: config[k] for k in ("lora", "dropout", "seed", "from", "ids") if k in config}
    settings = {"history": config["history"], **settings}
    model = LMRec(lm, catalog, first=config["first"], bos=config["bos"], config=about, **settings)
    model.load_state_dict(found.weights)
    return model.eval()


def token_names(sizes: tuple[int, ...]) -> list[str]:
    """What the tokens of ids are called: <a_0>, <a_1>, ..., <b_0>, ...

    >>> token_names((2, 1))
    ['<a_0>', '<a_1>', '<b_0>']
    """
    return [f"<{LETTERS[place]}_{token}>" for place, size in enumerate(sizes) for token in range(size)]


def drop_out(lm: Any, share: float) -> None:
    """Drop this share of the embeddings and of what every layer adds, while training."""
    parts = [lm.get_input_embeddings()]
    parts += [m for n, m in lm.named_modules() if n.rpartition(".")[2] in ("o_proj", "down_proj")]
    for part in parts if share else ():
        part.register_forward_hook(functools.partial(_dropped, share))


def _dropped(share, module, given, out):
    return F.dropout(out, share, module.training)


def _tokenizer(path, options):
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, **options)
    except (OSError, ValueError):  # weights alone: the ids then follow the last token of the vocabulary
        return None


def _init_like_the_others(lm, first: int, size: int) -> None:
    """New tokens begin near the mean of the old ones, so that none stands out."""
    with torch.no_grad():
        for layer in {id(x): x for x in (lm.get_input_embeddings(), lm.get_output_embeddings())}.values():
            old = layer.weight[:first].float()
            noise = torch.randn(size - first, old.shape[1], device=old.device) * old.std(0)
            layer.weight[first:size] = (old.mean(0) + noise).to(layer.weight.dtype)


def _check_attention(config) -> None:
    config = config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)
    if kinds != {"full_attention"} or (window and getattr(config, "layer_types", None) is None):
        raise ValueError(
            f"the language model must attend to all it has read in every layer, got {', '.join(sorted(kinds))}"
            f"{' with a sliding window' * bool(window)}. Use one without sliding windows or recurrent layers."
        )
