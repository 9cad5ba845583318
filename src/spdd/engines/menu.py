"""A menu: a catalog in the words of a vocabulary, with columns of values; what a serving process loads once and shares.

It never changes. Other values are another menu (`with_columns`, which keeps the tree); requests that have begun go on with the
one they began with. On disk it is one file of flat arrays, written whole or not at all, and mapped into memory: processes
share it, and opening a million items takes milliseconds.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..catalog import Catalog
from ..kernels.tree import Tree

FORMAT = b"spdd menu 2\n"
CLASSES = 64  # of items by their values; where there are more, items share a class with others nearly alike
ALIGN = 64


@dataclass(frozen=True, eq=False)
class Menu:
    """Made by `Menu.of` or `Menu.load`.

    tree:        the flat arrays that steps read, numpy
    order:       (M,) the item at each place of the tree.  places: (M,) the place of each item
    columns:     names of the columns of values, C of them
    vocabulary:  how many tokens a model's logits must have at least
    names:       a digest of what the tokens are called, "" where no tokenizer was given
    fingerprint: 16 hex digits that name all of it
    """

    tree: Tree
    order: np.ndarray
    places: np.ndarray
    columns: tuple[str, ...]
    vocabulary: int
    names: str
    fingerprint: str
    about: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        catalog: Catalog,
        *,
        first: int | None = None,
        words: Sequence[Any] | None = None,
        tokenizer: Any = None,
        columns: Mapping[str, Any] | None = None,
        between: Sequence[int] = (),
        end: int | None = None,
    ) -> Menu:
        """The menu of a catalog. What its tokens are called is said in one of two ways:

        first:     all tokens of the first place from this one on, then those of the second, and so on
        words:     for each place, the vocabulary's token of each of the catalog's; or, with a tokenizer, a pattern for
                   each place such as "<a_{}>", or all names
        tokenizer: of the model; its names are kept, and a menu is refused beside another one
        columns:   values of the items by name, (M,) each, in the order of the catalog's items
        between:   tokens written between two items.  end: the token that ends a slate, where the model has one

        >>> menu = Menu.of(Catalog.of([[0, 1], [1, 0], [1, 1]]), first=2, columns={"new": [0, 1, 0]})
        >>> len(menu), menu.vocabulary, menu.spell([1]).tolist()
        (3, 6, [[3, 4]])
        """
        table = _words(catalog, first, words, tokenizer)
        _check_marks(between, end, table)
        between = tuple(int(x) for x in between)
        known = [*(int(w.max()) for w in table), *between, *([] if end is None else [end])]
        vocabulary = max(known) + 1
        code_of = np.full((catalog.depth, vocabulary), -1, np.int32)
        for place, row in enumerate(table):
            code_of[place, row] = np.arange(len(row))
        levels = catalog.levels
        start = np.cumsum([0, *(len(level.token) for level in levels)])
        child = [start[i + 1] + level.child[:-1].numpy() for i, level in enumerate(levels[:-1])]
        firsts = [level.first[:-1].numpy() for level in levels]
        stops = [level.first[1:].numpy() for level in levels]
        code = [level.token.numpy() for level in levels]
        word = [np.array([-1]), *(row[x] for row, x in zip(table, code[1:], strict=True))]
        small = {
            "child": np.concatenate([*child, start[-1:]]),
            "first": np.concatenate(firsts),
            "stop": np.concatenate(stops),
            "code": np.concatenate(code),
            "word": np.concatenate(word),
        }
        small = {name: x.astype(np.int32) for name, x in small.items()}
        order = catalog.order.cpu().numpy().astype(np.int32)
        places = np.empty_like(order)
        places[order] = np.arange(len(order), dtype=np.int32)
        nothing = np.zeros(0)
        tree = Tree(
            **small,
            code_of=code_of,
            klass=nothing, value=nothing, low=nothing, high=nothing, big=nothing, held=nothing, mass=nothing, total=nothing,
            between=np.array(between, np.int64),
            end=-1 if end is None else int(end),
            depth=catalog.depth,
            fan=max(catalog.fans),
            few=0,
            same=int((stops[-1] - firsts[-1]).max()),
            exact=True,
        )  # fmt: skip
        about = {"start": start.tolist(), "catalog": catalog.fingerprint(), "items": catalog.items}
        names = "" if tokenizer is None else _digest_of_names(tokenizer, tree)
        bare = cls(tree, order, places, (), vocabulary, names, "", about)
        return bare.with_columns(columns or {})

    def with_columns(self, columns: Mapping[str, Any]) -> Menu:
        """The same menu with these columns of values, and no others."""
        value = np.empty((len(self.order), len(columns)))
        for c, (name, given) in enumerate(columns.items()):
            value[:, c] = _column(name, given, len(self.order))[self.order]
        klass, low, high, exact = _classes(value)
        few = max(8, len(low))
        first, stop = np.asarray(self.tree.first), np.asarray(self.tree.stop)
        large = stop - first > few
        large[0] = True  # what a row may have at all is asked of the root
        lines = np.flatnonzero(large)
        big = np.full(len(first), -1, np.int32)
        big[lines] = np.arange(len(lines), dtype=np.int32)
        held, total = self._below(klass, len(low), value, big, len(lines))
        tree = self.tree._replace(
            klass=klass,
            value=value,
            low=low,
            high=high,
            big=big,
            held=held,
            mass=total.sum(0),
            total=total[:, :, :0] if exact else total,
            few=few,
            exact=exact,
        )
        made = replace(self, tree=tree, columns=tuple(columns))
        return replace(made, fingerprint=made._digest())

    def __len__(self) -> int:
        return len(self.order)

    @property
    def depth(self) -> int:
        return self.tree.depth

    @property
    def end(self) -> int | None:
        return None if self.tree.end < 0 else self.tree.end

    @cached_property
    def tensors(self) -> Tree:
        """The tree as tensors on the CPU, on the same memory."""
        return Tree(*(torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in self.tree))

    def length(self, slots: int) -> int:
        """How many tokens a full slate has, its end not counted."""
        return slots * self.depth + (slots - 1) * len(self.tree.between)

    def spell(self, items: Any) -> np.ndarray:
        """(n, L) the tokens of these items (n,)."""
        place = self.places[np.asarray(items, np.int64)]
        start, out = self.about["start"], np.empty((len(place), self.depth), np.int64)
        for level in range(1, self.depth + 1):
            firsts = np.asarray(self.tree.first[start[level] : start[level + 1]])
            node = start[level] + np.searchsorted(firsts, place, side="right") - 1
            out[:, level - 1] = self.tree.word[node]
        return out

    def column(self, name: str) -> np.ndarray:
        """(M,) the values of a column, in the order of the items."""
        out = np.empty(len(self.order))
        out[self.order] = self.tree.value[:, self.columns.index(name)]
        return out

    def check(self, *, vocabulary: int | None = None, tokenizer: Any = None) -> Menu:
        """This menu, or an error that says why it is none for such a model.

        vocabulary: how many tokens the model's logits have.  tokenizer: the model's
        """
        if tokenizer is not None:
            vocabulary = len(tokenizer) if vocabulary is None else vocabulary
        if vocabulary is not None and vocabulary < self.vocabulary:
            raise ValueError(
                f"the menu needs a vocabulary of at least {self.vocabulary} tokens, but the model's has {vocabulary}. Use "
                "the model whose vocabulary was given the tokens of these ids, or build the menu with its tokens."
            )
        if tokenizer is not None and self.names and _digest_of_names(tokenizer, self.tree) != self.names:
            raise ValueError(
                f"the menu was built with other names for its tokens: token {int(self.tree.word[1])}, say, is "
                f"{_names(tokenizer, self.tree.word[1:2])[0]!r} to this tokenizer. Use the tokenizer it was built with, or "
                "build the menu again."
            )
        return self

    # ---- on disk ------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write all of it to one file, in one step."""
        path, arrays = Path(path), self._arrays()
        spots, at = {}, 0
        for name, x in arrays.items():
            spots[name] = {"dtype": x.dtype.str, "shape": list(x.shape), "at": at}
            at += -(-x.nbytes // ALIGN) * ALIGN
        scalars = {name: getattr(self.tree, name) for name in ("end", "depth", "fan", "few", "same", "exact")}
        head = {
            "arrays": spots, "scalars": scalars, "columns": self.columns, "vocabulary": self.vocabulary,
            "names": self.names, "fingerprint": self.fingerprint, "about": self.about, "bytes": at,
        }  # fmt: skip
        text = json.dumps(head).encode()
        begin = FORMAT + f"{len(text):016d}\n".encode() + text
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(begin + b" " * (-len(begin) % ALIGN))
                for x in arrays.values():
                    file.write(np.ascontiguousarray(x).tobytes())
                    file.write(b"\0" * (-x.nbytes % ALIGN))
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o644)  # menus are shared; temporary files are their owner's alone
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    @classmethod
    def load(cls, path: str | Path, *, tokenizer: Any = None, vocabulary: int | None = None, verify=False) -> Menu:
        """The menu at `path`, mapped into memory.

        tokenizer, vocabulary: see `check`.  verify: read it all and hold it against its fingerprint
        """
        refuse = f"menu '{path}' must be a file written by `Menu.save`"
        with open(path, "rb") as file:
            if file.read(len(FORMAT)) != FORMAT:
                raise ValueError(f"{refuse}, but does not begin like one. Build the menu again.")
            try:
                size = int(file.read(17))
                head = json.loads(file.read(size))
                begin = -(-(len(FORMAT) + 17 + size) // ALIGN) * ALIGN
                if os.fstat(file.fileno()).st_size != begin + head["bytes"]:
                    raise ValueError("its length differs")
            except (ValueError, KeyError) as error:
                raise ValueError(f"{refuse}, but is cut short or damaged ({error}). Build the menu again.") from None
            # Copy on write: nothing is ever written, and arrays that may be are what torch and numba take without a word.
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        found = {}
        for name, spot in head["arrays"].items():
            dtype, count = np.dtype(spot["dtype"]), int(np.prod(spot["shape"], dtype=np.int64))
            flat = np.frombuffer(memory, dtype, count, begin + spot["at"]) if count else np.zeros(0, dtype)
            found[name] = flat.reshape(spot["shape"])
        order, places = found.pop("order"), found.pop("places")
        menu = cls(
            Tree(**found, **head["scalars"]), order, places, tuple(head["columns"]), head["vocabulary"], head["names"],
            head["fingerprint"], head["about"],
        )  # fmt: skip
        if verify and menu._digest() != menu.fingerprint:
            raise ValueError(f"menu '{path}' does not hold what was written: its fingerprint differs. Build it again.")
        return menu.check(tokenizer=tokenizer, vocabulary=vocabulary)

    # ---- parts ----------------------------------------------------------------------------------------------

    def _arrays(self) -> dict[str, np.ndarray]:
        tree = {name: x for name, x in self.tree._asdict().items() if isinstance(x, np.ndarray)}
        return {**tree, "order": self.order, "places": self.places}

    def _digest(self) -> str:
        says = [list(self.columns), self.vocabulary, self.names, self.about, self.tree.end, self.tree.depth]
        digest = hashlib.sha256(json.dumps(says).encode())
        for name, x in self._arrays().items():
            digest.update(f"{name} {x.dtype.str} {x.shape}".encode())
            digest.update(np.ascontiguousarray(x).data if x.size else b"")
        return digest.hexdigest()[:16]

    def _below(self, klass, classes, value, big, lines) -> tuple[np.ndarray, np.ndarray]:
        """(G, H) how many items of each class lie below each line, and (G, C, H) the sums of their values."""
        first, stop = np.asarray(self.tree.first), np.asarray(self.tree.stop)
        held = np.zeros((classes, lines), np.int32)
        total = np.zeros((classes, value.shape[1], lines))
        for start, end in itertools.pairwise(self.about["start"]):
            line = np.repeat(
                big[start:end], stop[start:end] - first[start:end]
            )  # (M,) of each item's node in this level
            own = np.flatnonzero(line >= 0)
            at = klass[own].astype(np.int64) * lines + line[own]
            held += np.bincount(at, minlength=held.size).reshape(held.shape).astype(np.int32)
            for c in range(value.shape[1]):
                total[:, c] += np.bincount(at, value[own, c], held.size).reshape(held.shape)
        return held, total


# ---- words --------------------------------------------------------------------------------------------------


def _words(catalog: Catalog, first: Any, words: Any, tokenizer: Any) -> list[np.ndarray]:
    """For each place, the vocabulary's token of each of the catalog's."""
    if (first is None) == (words is None):
        raise ValueError(
            "a menu needs either `first` (the first token of the ids, where they follow each other) or `words` (the tokens "
            "of each place), not both. For a tokenizer with names like <a_12>: words=['<a_{}>', '<b_{}>'], tokenizer=it."
        )
    if words is None:
        if isinstance(first, bool) or not isinstance(first, int | np.integer) or first < 0:
            raise ValueError(f"`first` must be a whole number of at least 0, got {first!r}.")
        starts = first + np.cumsum([0, *catalog.sizes[:-1]])
        return [np.arange(start, start + size) for start, size in zip(starts, catalog.sizes, strict=True)]
    if len(words) != catalog.depth:
        raise ValueError(f"`words` must have one entry for each of {catalog.depth} places of an id, got {len(words)}.")
    return [_place(place, given, catalog, tokenizer) for place, given in enumerate(words)]


def _place(place: int, given: Any, catalog: Catalog, tokenizer: Any) -> np.ndarray:
    size = catalog.sizes[place]
    if isinstance(given, str):
        given = [given.format(code) for code in range(size)]
        if len(set(given)) < size:
            raise ValueError(f"`words[{place}]` must have a place for the number, like '<a_{{}}>', got {given[0]!r}.")
    if len(given) and isinstance(given[0], str):
        if tokenizer is None:
            raise ValueError("`words` are names, which only a tokenizer can read: give `tokenizer` too.")
        found = tokenizer.convert_tokens_to_ids(list(given))
        unknown = {None, getattr(tokenizer, "unk_token_id", None)}
        for name, token in zip(given, found, strict=True):
            if token in unknown:
                raise ValueError(
                    f"the tokenizer has no token {name!r}, which place {place} of the ids needs. Add the names of the ids to "
                    "it, or use the tokenizer the model was trained with."
                )
        given = found
    table = np.asarray(given.cpu() if isinstance(given, torch.Tensor) else given)
    if table.shape != (size,) or table.dtype.kind not in "iu" or table.min() < 0:
        raise ValueError(
            f"`words[{place}]` must be {size} whole numbers from 0 on, one for each token of this place, got "
            f"{table.dtype} of shape {table.shape}."
        )
    if len(np.unique(table)) < size:
        raise ValueError(f"`words[{place}]` names one token of the vocabulary twice: ids could not be told apart.")
    return table.astype(np.int64)


def _check_marks(between, end, table) -> None:
    for name, token in [("between", t) for t in between] + ([] if end is None else [("end", end)]):
        if isinstance(token, bool) or not isinstance(token, int | np.integer) or token < 0:
            raise ValueError(f"`{name}` must be a token of the vocabulary, a whole number from 0 on, got {token!r}.")
    if end is not None and (end in table[0] or end in between):
        raise ValueError(
            f"`end` must differ from the tokens that begin an item or stand between items, got {end}: a slate that is over "
            "could not be told from one that goes on."
        )


def _names(tokenizer: Any, words: np.ndarray) -> list[str]:
    return [str(x) for x in tokenizer.convert_ids_to_tokens([int(w) for w in words])]


def _digest_of_names(tokenizer: Any, tree: Tree) -> str:
    words = np.unique(tree.word[1:])
    if len(tokenizer) <= words[-1]:
        return "other"
    return hashlib.sha256("\n".join(_names(tokenizer, words)).encode()).hexdigest()[:16]


# ---- values -------------------------------------------------------------------------------------------------


def _column(name: str, given: Any, items: int) -> np.ndarray:
    try:
        column = np.asarray(given.detach().cpu() if isinstance(given, torch.Tensor) else given).astype(np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"column '{name}' must be numbers, one for each item of the catalog.") from None
    if column.shape != (items,):
        raise ValueError(
            f"column '{name}' must have one number for each of the catalog's {items} items, got shape {column.shape}. "
            "Give the values of the items this menu was built from, in their order."
        )
    if not np.isfinite(column).all() or column.min() < 0:
        raise ValueError(
            f"column '{name}' must be finite and not negative, got {column[~np.isfinite(column) | (column < 0)][0]}. "
            "Shift values to start at 0, and state a wish for less as `at_most`."
        )
    return column


def _classes(value: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """Class of each item, least and largest values of each class, and whether items of one class are all alike."""
    rows, columns = value.shape
    levels = [np.unique(value[:, c], return_inverse=True) for c in range(columns)]
    code, exact = np.zeros(rows, np.int64), True
    for distinct, inverse in levels:
        code = np.unique(code * len(distinct) + inverse, return_inverse=True)[1]
    if code.max(initial=0) >= CLASSES:
        code, exact = _boxes(levels, rows), False
    klass = np.unique(code, return_inverse=True)[1].reshape(rows)
    by = np.argsort(klass, kind="stable")
    cuts = np.flatnonzero(np.r_[True, np.diff(klass[by]) > 0])
    low, high = np.minimum.reduceat(value[by], cuts, axis=0), np.maximum.reduceat(value[by], cuts, axis=0)
    return klass.astype(np.uint8), low, high, exact


def _boxes(levels, rows: int) -> np.ndarray:
    """(M,) a box of values for each item: columns with few values keep them, the others are cut where items are."""
    many = [c for c, (distinct, _) in enumerate(levels) if len(distinct) > 4]
    few = np.prod([len(distinct) for c, (distinct, _) in enumerate(levels) if c not in many], dtype=np.int64)
    if few * 2 ** len(many) > CLASSES:  # too many columns of few values: cut all of them
        many, few = list(range(len(levels))), 1
    cuts = max(2, int((CLASSES / few) ** (1 / max(len(many), 1))))
    code = np.zeros(rows, np.int64)
    for c, (distinct, inverse) in enumerate(levels):
        if c in many:
            rank = np.cumsum(np.bincount(inverse)) - 1  # of the last item with each value: equal ones stay together
            inverse = (rank * cuts // rows)[inverse]
        code = code * (cuts if c in many else len(distinct)) + inverse
    code = np.unique(code, return_inverse=True)[1]
    return np.minimum(code, CLASSES - 1)  # with very many columns the last box takes what is left
