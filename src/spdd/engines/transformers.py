"""Slates inside transformers: a logits processor for its own decoding loops, and a loop that fills slates faster.

`SlateProcessor` goes into `model.generate(logits_processor=[...])`. It keeps nothing between calls: where rows stand is worked
out anew from `input_ids`, because beams are re-ordered without a word and assisted decoding goes back and calls twice.
`fill_slates` goes into `model.generate(custom_generate=...)`: beams live inside one item and prices move between items, as in
our own loop. `generate` is the front door to it: a model, prompts, a policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..decode.arrays import sampling_of
from ..decode.search import Sampling, gumbel
from ..slate import Slate
from .menu import Menu
from .plan import Plan, prepare
from .rows import Rows, advance, branches, finished, join, priced, take

try:
    from transformers import LogitsProcessor
except ImportError as error:
    raise ImportError("slates inside transformers need transformers: pip install 'spdd[hf]'.") from error


# ---- the front door -------------------------------------------------------------------------------------------


@torch.no_grad()
def generate(
    model: Any,
    prompts: Any,
    policy: Any,
    *,
    menu: Menu | None = None,
    tokenizer: Any = None,
    exclude: Any = None,
    beams: int = 1,
    temperature: float | None = None,
    top_p: float = 1.0,
    seed: Any = None,
    **options: Any,
) -> Slate | list[Slate]:
    """One slate for each prompt, spelled by a transformers model; every floor and cap of the policy is kept where it can be.

    model:   a transformers model that generates, whose vocabulary has the tokens of the menu; or an `LMRec`, which brings its
             own menu
    prompts: token ids, a list per prompt or a tensor (R, T), a tokenizer's output (input_ids, attention_mask), or texts with
             `tokenizer`; for an `LMRec` histories of item numbers
    policy:  a decoder, a `Plan`, the path of a policy file or what one says; or a list, one for each prompt, which gives a
             list of slates of one row
    menu:    which items there are and how they are spelled
    exclude: items a row must not get: one list of item numbers per prompt, or (M,) bool; "seen" for an `LMRec`
    beams:   how many prefixes are followed inside an item; 1 is greedy
    temperature, top_p, seed: draw slates instead of taking the best; the same seed draws the same slate in any batch
    options: for `model.generate`, e.g. cache_implementation="static". Its sampling settings have no say here

    `slate.relevance` is the log-probability of each item among the menu's.
    """
    if menu is None and isinstance(policy, Plan):
        menu = policy.menu
    if not callable(getattr(getattr(model, "lm", model), "generate", None)):
        raise TypeError(f"`model` must be a transformers model with `generate`, got {type(model).__name__}.")
    lm, inputs, menu, exclude = _inputs(model, prompts, menu, tokenizer, exclude)
    beams = _count(beams, "beams")
    count = len(inputs["input_ids"])
    menu, plans = _plans(menu, policy, count)
    menu.check(vocabulary=_vocabulary(lm), tokenizer=tokenizer)
    sampling = sampling_of(temperature, top_p, seed, torch.empty(count, 1))
    if sampling is not None and beams > 1:
        raise ValueError(f"`beams` must be 1 where slates are drawn (temperature={temperature!r}), got {beams}.")
    rows = begin(plans, count, exclude)
    length = max(menu.length(plan.slots) for plan in plans)
    filled = lm.generate(
        **inputs,
        custom_generate=fill_slates,
        menu=menu,
        rows=rows,
        beams=beams,
        sampling=sampling,
        **{"do_sample": False, "num_beams": 1, "num_return_sequences": 1, "max_new_tokens": length}
        | options
        | {"return_dict_in_generate": True},
    )
    slates = _slates(plans, filled.rows, filled.relevance)
    if isinstance(prompts, Tensor):
        slates = [_torch(slate, prompts.device) for slate in slates]
    return slates if isinstance(policy, list | tuple) else slates[0]


# ---- inside transformers' own loops -----------------------------------------------------------------------------


class SlateProcessor(LogitsProcessor):
    """The scores of every token: log p + payment, -inf for what names no item the row may have. For `logits_processor=[...]`.

    plans:         a `Plan` for all prompts, or one for each
    prompt_tokens: how long `input_ids` is before the first generated token: `inputs.input_ids.shape[1]` (padding included), 1
                   for most models with an encoder
    exclude:       items a row must not get, one list per prompt

    Right under greedy decoding, sampling, beams and assisted decoding, with several sequences per prompt, left padding and rows
    that are finished. After a full slate only the menu's `end` may be written; without one, say `max_new_tokens=plan.tokens`.
    """

    def __init__(self, plans: Plan | Sequence[Plan], prompt_tokens: int, *, exclude: Any = None):
        several = isinstance(plans, list | tuple)
        self.plans: list[Plan] = list(plans) if several else [plans]  # type: ignore[arg-type]
        self.menu = _one_menu(self.plans)
        self.prompt_tokens = _count(prompt_tokens, "prompt_tokens", least=0)
        count = len(self.plans) if several else 1 if exclude is None or _is_mask(exclude) else len(exclude)
        self.rows = begin(self.plans, count, exclude)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return priced(self.menu, self.replay(input_ids), scores)

    def replay(self, input_ids: Tensor) -> Rows:
        """Where rows stand that have written these tokens, prompt included."""
        count, length = input_ids.shape
        if length < self.prompt_tokens:
            raise ValueError(
                f"the processor was made for prompts of {self.prompt_tokens} tokens, but is called with {length}. Make one for "
                "each call of `generate`, with prompt_tokens=inputs.input_ids.shape[1] (1 for most models with an encoder)."
            )
        if count % len(self.rows):
            raise ValueError(
                f"the processor was made for {len(self.rows)} prompts, but is called with {count} rows, which is no multiple. Give "
                "one plan for each prompt."
            )
        # Rows of one prompt (beams, returned sequences) stand together.
        begun = take(self.rows, np.repeat(np.arange(len(self.rows)), count // len(self.rows)))
        return advance(self.menu, begun, input_ids[:, self.prompt_tokens :])

    def slates(self, sequences: Tensor) -> Slate | list[Slate]:
        """What `generate` returned, as slates; a list, one for each row, where prompts have plans of their own."""
        rows = self.replay(sequences)
        if len(self.plans) == 1:
            return self.plans[0].slate(rows)
        each = len(rows) // len(self.plans)
        return [self.plans[i // each].slate(take(rows, [i])) for i in range(len(rows))]


# ---- a loop of our own --------------------------------------------------------------------------------------------


class Filled(NamedTuple):
    """sequences: (R, T) prompts and slates, as `generate` returns them.  rows: where they ended.

    relevance: (R, K) log p of each item among the menu's, nan where there is none
    """

    sequences: Tensor
    rows: Rows
    relevance: Tensor


def fill_slates(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    generation_config: Any = None,
    menu: Any = None,
    rows: Any = None,
    beams: int = 1,
    sampling: Sampling | None = None,
    **model_kwargs: Any,
) -> Any:
    """Slates, item by item: `model.generate(**inputs, custom_generate=fill_slates, menu=menu, rows=begin(plan, R), beams=4)`.

    rows: as many as prompts, from `begin`.  beams: prefixes followed inside an item; the best item found goes on alone

    The model's own log-probabilities decide; processors and sampling settings of `generation_config` have no say. Between
    items the cache holds one row per prompt, inside an item one per beam.
    """
    if not isinstance(menu, Menu) or not isinstance(rows, Rows):
        raise TypeError("`custom_generate=fill_slates` needs `menu=` and `rows=`: rows=begin(plan, number of prompts).")
    if len(rows) != len(input_ids):
        raise ValueError(
            f"`rows` must be as many as prompts, {len(input_ids)}, got {len(rows)}. Leave num_beams and num_return_sequences at 1 "
            "and say `beams=`."
        )
    need = menu.length(int(np.max(rows.terms.slots))) if len(rows) else 0
    room = (getattr(generation_config, "max_length", None) or input_ids.shape[1] + need) - input_ids.shape[1]
    if room < need:
        raise ValueError(f"a slate takes {need} tokens, but `generate` may write {room}. Say max_new_tokens={need}.")
    reader = _Reader(model, input_ids, model_kwargs)
    slots = rows.stand.chosen.shape[1]
    relevance = torch.full((len(rows), slots), torch.nan, dtype=torch.float64)
    logits, spare = reader.logits(), _spare(generation_config, menu)
    slot = 0
    while slot < slots and not finished(rows).all():
        rows, sure, tokens, logits = _item(menu, rows, logits, reader, beams, sampling, slot)
        relevance[:, slot] = sure
        slot += 1
        if slot == slots or finished(rows).all():
            reader.append(tokens, spare, read=False)
            break
        logits = reader.append(tokens, spare)
        for mark in menu.tree.between:  # the same for all: rows that are finished write it into the void
            marks = np.full(len(rows), mark)
            rows = advance(menu, rows, marks)
            logits = reader.append(torch.from_numpy(marks), spare)
    if getattr(generation_config, "return_dict_in_generate", False):
        return Filled(reader.input_ids, rows, relevance)
    return reader.input_ids


def _item(menu, rows, logits, reader, beams, sampling, slot):
    """The rows with one item more, its log p, its last token (R,), and the last logits.

    All tokens of the item but the last have been read by the model then, and the cache holds the chosen beam alone.
    """
    count, leaf = len(rows), menu.depth - 1
    total = torch.zeros(count, 1, dtype=torch.float64)  # log p of each beam, and what it is paid
    paid, found = torch.zeros_like(total), torch.ones(count, 1, dtype=torch.bool)
    inner = before = rows
    parent = token = torch.arange(count)
    live = 1
    for level in range(menu.depth):
        word, sure, more = branches(menu, inner, logits.float())
        word, sure, more = (x.cpu().unflatten(0, (count, live)) for x in (word, sure, more))  # (R, B, W)
        word = word.masked_fill(~found[:, :, None], -1)  # fewer prefixes than beams: the rest is nothing
        grown, gain = total[:, :, None] + sure, paid[:, :, None] + more
        score = (grown + gain).masked_fill(word < 0, -torch.inf).flatten(1)
        # Legal, but impossible to the model: behind all else, yet better than no item.
        score = torch.where((score == -torch.inf) & (word >= 0).flatten(1), -1e300, score)
        if sampling is not None:
            score = _drawn(score, word.flatten(1), sampling, slot * menu.depth + level)
        width = min(beams, score.shape[1])
        best = score.topk(width, 1) if width > 1 else score.max(1, keepdim=True)
        found = best.values > -torch.inf
        token = word.flatten(1).gather(1, best.indices).masked_fill(~found, -1)
        total = grown.flatten(1).gather(1, best.indices).masked_fill(~found, -torch.inf)
        paid = gain.flatten(1).gather(1, best.indices)
        parent = (best.indices // word.shape[2] + torch.arange(count)[:, None] * live).flatten()
        before = take(inner, parent.numpy())
        inner, live = advance(menu, before, token.flatten().numpy()), width
        if level < leaf:
            reader.take(parent)
            logits = reader.append(token.flatten(), 0)
    # Whole ids: their items, by what each is worth itself; those of one id share its probability evenly.
    leaves = inner.stand.count > before.stand.count
    slots = np.minimum(before.stand.count, inner.stand.chosen.shape[1] - 1)
    at = np.where(leaves, inner.stand.chosen[np.arange(len(inner)), slots], 0)
    own = (menu.tree.value[at] * before.stand.net).sum(1)
    sure = (total.flatten() - torch.from_numpy(_sharing(menu, at))).where(torch.from_numpy(leaves), -torch.inf)
    worth = (sure + torch.from_numpy(own)).nan_to_num(neginf=-1e300).where(torch.from_numpy(leaves), -torch.inf)
    worth = worth.unflatten(0, (count, live))
    item = torch.from_numpy(menu.order[at].astype(np.int64)).unflatten(0, (count, live))
    tied = worth == worth.amax(1, keepdim=True)
    win = item.masked_fill(~tied, len(menu)).argmin(1)  # of equals the lowest item, as everywhere
    place = win + torch.arange(count) * live
    reader.take(parent[place])
    return (
        take(inner, place.numpy()),
        sure[place].masked_fill(~torch.from_numpy(leaves)[place], torch.nan),
        token.flatten()[place],
        logits,
    )


class _Reader:
    """The model and what it has read: `append` tokens, `take` rows. Follows `model.generate`'s own bookkeeping."""

    def __init__(self, model, input_ids, model_kwargs):
        self.model, self.input_ids, self.kwargs = model, input_ids, model_kwargs
        self.cached = model_kwargs.get("use_cache", True) and model_kwargs.get("past_key_values") is not None
        self.begun = False

    def logits(self) -> Tensor:
        """(R, V) of the next token."""
        only = {"next_sequence_length": 1} if self.begun and self.cached else {}
        first = {} if self.begun and self.cached else {"is_first_iteration": True}
        inputs = self.model.prepare_inputs_for_generation(self.input_ids, **only, **first, **self.kwargs)
        out = self.model(**inputs, return_dict=True)
        encoder = self.model.config.is_encoder_decoder
        self.kwargs = self.model._update_model_kwargs_for_generation(out, self.kwargs, is_encoder_decoder=encoder)
        self.begun = True
        return out.logits[:, -1].float()

    def append(self, tokens: Tensor, spare: int, read: bool = True) -> Any:
        """The logits after tokens (R,) were written; `spare` where a row writes none."""
        written = tokens.where(tokens >= 0, spare).to(self.input_ids)
        self.input_ids = torch.cat([self.input_ids, written[:, None]], 1)
        return self.logits() if read else None

    def take(self, index: Tensor) -> None:
        """Rows re-ordered, repeated or left out, cache and all."""
        count = len(self.input_ids)
        if len(index) == count and bool((index == torch.arange(count)).all()):
            return
        index = index.to(self.input_ids.device)
        self.input_ids = self.input_ids[index]
        for name, x in self.kwargs.items():
            if name == "encoder_outputs":
                self.kwargs[name] = type(x)(**{part: _picked(y, index, count, 0) for part, y in x.items()})
            elif isinstance(x, Tensor):
                several = name == "position_ids" and x.dim() == 3  # one line of positions for each of several axes
                self.kwargs[name] = _picked(x, index, count, 1 if several else 0)
        if self.cached:
            self.kwargs["past_key_values"].reorder_cache(index)


def _picked(x: Any, index: Tensor, count: int, axis: int) -> Any:
    """The rows of a tensor that has one for each of `count`; anything else as it is."""
    if not isinstance(x, Tensor) or x.dim() <= axis or x.shape[axis] != count:
        return x
    return x.index_select(axis, index.to(x.device))


def _drawn(score: Tensor, word: Tensor, sampling: Sampling, step: int) -> Tensor:
    """Scores whose largest is a draw among a row's next tokens: over temperature, outside top-p removed, noise added."""
    weight = (score.clamp_min(-1e30) / sampling.temperature).masked_fill(score == -torch.inf, -torch.inf)
    if sampling.top_p < 1:
        order = weight.sort(dim=1, descending=True, stable=True)
        share = order.values.softmax(1)
        outside = share.cumsum(1) - share >= sampling.top_p
        outside[:, 0] = False
        weight = weight.masked_fill(torch.zeros_like(outside).scatter(1, order.indices, outside), -torch.inf)
    return weight + gumbel(sampling.seed, step, word)


def _sharing(menu: Menu, at: np.ndarray) -> np.ndarray:
    """(n,) log of how many items share the id of the items at these places."""
    start = menu.about["start"][-2]
    first, stop = menu.tree.first[start:], menu.tree.stop[start:]
    leaf = np.searchsorted(first, at, side="right") - 1
    return np.log(stop[leaf] - first[leaf])


def _spare(config: Any, menu: Menu) -> int:
    """What a row writes when it has nothing to write."""
    pad, eos = getattr(config, "pad_token_id", None), getattr(config, "eos_token_id", None)
    return next((int(t) for t in (menu.end, pad, eos) if isinstance(t, int)), 0)


# ---- rows for prompts -----------------------------------------------------------------------------------------------


def begin(plans: Plan | Sequence[Plan], count: int, exclude: Any = None) -> Rows:
    """Rows before their first token, one for each of `count` prompts. plans: one for all, or one for each"""
    if isinstance(plans, Plan):
        plans = [plans]
    menu = _one_menu(plans)
    if len(plans) == 1:
        return plans[0].begin(count, exclude)
    if len(plans) != count:
        raise ValueError(f"there must be one policy, or one for each of {count} prompts, got {len(plans)}.")
    lists = exclude if exclude is not None and not _is_mask(exclude) else [exclude] * count
    if isinstance(lists, str) or len(lists) != count:
        raise ValueError(f"`exclude` must be one list of item numbers for each of {count} prompts, got {len(lists)}.")
    parts, where = [], []
    for plan in dict.fromkeys(plans):  # rows of one plan are begun together
        own = [i for i, other in enumerate(plans) if other is plan]
        given = None if exclude is None else exclude if _is_mask(exclude) else [lists[i] for i in own]
        parts.append(plan.begin(len(own), given))
        where += own
    return take(join(menu, parts), np.argsort(where))


def _slates(plans: Sequence[Plan], rows: Rows, relevance: Tensor) -> list[Slate]:
    """One slate of all rows, or one for each; what plans learn from traffic is learnt once for each of them."""
    if len(plans) == 1:
        return [plans[0].decoder.served(plans[0].slate(rows, relevance))]
    out: dict[int, Slate] = {}
    for plan in dict.fromkeys(plans):
        own = [i for i, other in enumerate(plans) if other is plan]
        plan.decoder.served(plan.slate(take(rows, own)))
        for i in own:
            out[i] = plan.slate(take(rows, [i]), relevance[i : i + 1, : plan.slots])
    return [out[i] for i in range(len(plans))]


def _plans(menu: Menu, policy: Any, count: int) -> tuple[Menu, list[Plan]]:
    if not isinstance(policy, list | tuple):
        return prepare(menu, [policy])
    if len(policy) != count:
        raise ValueError(f"`policy` must be one policy, or one for each of {count} prompts, got {len(policy)}.")
    menu, plans = prepare(menu, policy)
    return menu, plans if count > 1 else plans[:1]


def _one_menu(plans: Sequence[Plan]) -> Menu:
    for plan in plans:
        if not isinstance(plan, Plan):
            raise TypeError(f"a plan is needed, got {type(plan).__name__}. Make one: Plan.of(menu, policy).")
        if plan.menu is not plans[0].menu:
            raise ValueError("plans of one batch must be made for one menu. Use `prepare(menu, policies)`.")
    return plans[0].menu


# ---- what callers hand in -------------------------------------------------------------------------------------------


def _inputs(model: Any, prompts: Any, menu: Any, tokenizer: Any, exclude: Any):
    """The transformers model, what it reads, the menu, and what rows must not get."""
    if hasattr(model, "spelled") and hasattr(model, "lm"):  # a recommender of ours, which reads items
        menu = menu or _own_menu(model)
        if isinstance(exclude, str) and exclude == "seen":
            exclude = [np.asarray(h)[np.asarray(h) >= 0] for h in _lists(prompts)]
        histories = [[i for i in h if i >= 0][-model.history :] for h in _lists(prompts)]
        prompts = [[model.bos, *(int(t) for i in h for t in model.spelled[i])] for h in histories]
        return model.lm, _padded(prompts, model.lm), menu, exclude
    if not isinstance(menu, Menu):
        raise TypeError(
            "`menu` must say which items there are and how they are spelled: "
            f"menu=Menu.of(catalog, first=..., columns=...), got {type(menu).__name__}."
        )
    if isinstance(exclude, str):
        raise ValueError(f"`exclude` must be one list of item numbers per prompt, or a mask of items, got {exclude!r}.")
    if isinstance(prompts, Mapping) or hasattr(prompts, "input_ids"):
        known = {k: prompts[k] for k in prompts if k in ("input_ids", "attention_mask", "inputs_embeds")}
        ids = torch.as_tensor(
            np.asarray(known["input_ids"]) if isinstance(known["input_ids"], list) else known["input_ids"]
        )
        mask = known.get("attention_mask")
        found = {"input_ids": ids, "attention_mask": torch.ones_like(ids) if mask is None else torch.as_tensor(mask)}
        return model, {k: x.to(_device(model)) for k, x in found.items()}, menu, exclude
    if isinstance(prompts, str) or (len(prompts) and isinstance(prompts[0], str)):
        if tokenizer is None:
            raise ValueError("`prompts` are texts, which only a tokenizer can read: give `tokenizer` too.")
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        return model, _padded([list(tokenizer(text)["input_ids"]) for text in texts], model), menu, exclude
    return model, _padded(_lists(prompts), model), menu, exclude


def _own_menu(model: Any) -> Menu:
    kept = model.__dict__.setdefault("_menu", {})
    if "menu" not in kept:
        kept["menu"] = Menu.of(model.catalog.to("cpu"), first=model.first)
    return kept["menu"]


def _lists(prompts: Any) -> list[list[int]]:
    if isinstance(prompts, Tensor | np.ndarray):
        if prompts.ndim != 2:
            raise ValueError(f"`prompts` must be (R, T) token ids, got shape {tuple(prompts.shape)}.")
        return prompts.tolist()
    rows = [row.tolist() if hasattr(row, "tolist") else row for row in prompts]
    if not all(isinstance(row, list | tuple) for row in rows):
        raise TypeError("`prompts` must hold a list of token ids for each row; one row alone is [prompt].")
    found = [list(row) for row in rows]
    for row in found:
        if not all(isinstance(t, int | np.integer) and not isinstance(t, bool) for t in row):
            raise TypeError("`prompts` must hold token ids (whole numbers), or be texts with `tokenizer`.")
    return found


def _padded(prompts: list[list[int]], model: Any) -> dict[str, Tensor]:
    """input_ids and attention_mask, short prompts padded at the front."""
    length = max((len(p) for p in prompts), default=0)
    if not prompts or min(len(p) for p in prompts) == 0:
        raise ValueError("`prompts` must hold at least one prompt, and each at least one token.")
    config = model.config
    pad = next((t for t in (config.get_text_config().pad_token_id, 0) if isinstance(t, int)), 0)
    encoder = getattr(config, "is_encoder_decoder", False)  # reads to the left of its padding
    ids = [p + [pad] * (length - len(p)) if encoder else [pad] * (length - len(p)) + p for p in prompts]
    seen = [[1] * len(p) + [0] * (length - len(p)) for p in prompts]
    seen = seen if encoder else [row[::-1] for row in seen]
    vocabulary = _vocabulary(model)
    worst = max(max(p) for p in prompts)
    if min(min(p) for p in prompts) < 0 or (vocabulary is not None and worst >= vocabulary):
        raise ValueError(f"`prompts` must hold tokens from 0 to {(vocabulary or worst + 1) - 1}, got up to {worst}.")
    return {
        "input_ids": torch.tensor(ids, device=_device(model)),
        "attention_mask": torch.tensor(seen, device=_device(model)),
    }


def _device(model: Any) -> Any:
    return getattr(model, "device", "cpu")


def _vocabulary(model: Any) -> int | None:
    """How many tokens the model's logits have."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if head is not None and getattr(head, "weight", None) is not None:
        return int(head.weight.shape[0])
    return getattr(model.config.get_text_config(), "vocab_size", None)


def _is_mask(exclude: Any) -> bool:
    return getattr(exclude, "dtype", None) in (torch.bool, np.dtype(bool))


def _count(given: Any, name: str, least: int = 1) -> int:
    if isinstance(given, bool) or not isinstance(given, int | np.integer) or given < least:
        raise ValueError(f"`{name}` must be a whole number of at least {least}, got {given!r}.")
    return int(given)


def _torch(slate: Slate, device: Any) -> Slate:
    def placed(x):
        return torch.as_tensor(x).to(device)

    items, relevance, gained, dual, status = map(
        placed, (slate.items, slate.relevance, slate.gained, slate.dual, slate.status)
    )
    return Slate(items, relevance, gained, dual, status, placed(slate.reachable))
