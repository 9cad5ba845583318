"""Items and the tree of their ids: what lies below each prefix, who its children are, which items it ends in.

An id is L tokens, and several items may share one. Items stand sorted by id, so those below any prefix are one
range, and so are its children in the next level: every level is a few flat arrays, and nothing here loops over rows,
nodes or items. Ids of one token each are plain item ids, by the same code. Two rules hold everywhere: -1 is a node
that does not exist (its children and items are -1 too), and ties go to the lower item number.
"""

from __future__ import annotations

import hashlib
import itertools
import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .files import atomic

FORMAT = "spdd catalog 1"


class Level(NamedTuple):
    """The N nodes of one level, in the order of their prefixes.

    token:  (N,) the last token of the prefix; -1 for the root
    parent: (N,) node in the level above; -1 for the root
    first:  (N + 1,) the items below node n are order[first[n] : first[n + 1]]
    child:  (N + 1,) its children are nodes child[n] to child[n + 1] of the next level; all 0 in the last level
    key:    (N,) parent * V + token, ascending: what a step searches in
    """

    token: Tensor
    parent: Tensor
    first: Tensor
    child: Tensor
    key: Tensor


class Collisions(NamedTuple):
    """ids: distinct ids. shared: ids that name several items. items: how many items these are. largest: of one id"""

    ids: int
    shared: int
    items: int
    largest: int


@dataclass(frozen=True, eq=False)
class Catalog:
    """M items and the tree of their ids. Made by `Catalog.of`; level 0 is the root, level L holds the leaves.

    tokens: (M, L) the id of each item
    order:  (M,) item numbers sorted by id, inside an id by item number
    levels: L + 1 of them
    sizes:  V_1 to V_L, how many tokens each place of an id can hold
    fans:   the most children a node has, in levels 0 to L - 1
    items:  the fingerprint of the vocabulary whose items these are, "" where none was given
    """

    tokens: Tensor
    order: Tensor
    levels: tuple[Level, ...]
    sizes: tuple[int, ...]
    fans: tuple[int, ...]
    items: str = ""

    @classmethod
    def of(cls, tokens: Any, *, sizes: Any = None, items: str = "") -> Catalog:
        """The catalog of these ids.

        tokens: (M, L) whole numbers, the token of each item at each place, from 0; (M,) is one token per item
        sizes:  L numbers, how many tokens there are at each place; as many as are used if not given
        items:  the fingerprint of the vocabulary, kept with the catalog

        >>> catalog = Catalog.of([[0, 1], [0, 1], [1, 0], [0, 0]])
        >>> catalog.order.tolist(), [len(level.token) for level in catalog.levels]
        ([3, 0, 1, 2], [1, 2, 3])
        """
        ids = _checked(tokens)
        sizes = _sizes(sizes, ids)
        order = np.lexsort(ids.T[::-1])  # stable: inside an id by item number
        ends = [np.array([0, len(ids)])]  # (N + 1,) per level: where each node's items begin, and where the last's end
        names = [(np.array([-1]), np.array([-1]), np.array([-1]))]  # token, parent, key
        new = np.zeros(len(ids), bool)  # where the prefix differs from that of the item before
        new[0] = True
        number = np.zeros(len(ids), np.int64)  # of the node each item lies below
        for place, size in enumerate(sizes):
            token = ids[order, place]
            new[1:] |= token[1:] != token[:-1]
            first = np.flatnonzero(new)
            names.append((token[first], number[first], number[first] * size + token[first]))
            number = np.cumsum(new) - 1
            ends.append(np.append(first, len(ids)))
        child = [np.searchsorted(below, here) for here, below in itertools.pairwise(ends)]
        child.append(np.zeros_like(ends[-1]))
        levels = (
            Level(*map(_tensor, (token, parent, first, child, key)))
            for (token, parent, key), first, child in zip(names, ends, child, strict=True)
        )
        fans = tuple(int(np.diff(x).max()) for x in child[:-1])
        return cls(_tensor(ids), _tensor(order), tuple(levels), sizes, fans, items)

    def __len__(self) -> int:
        return len(self.order)

    @property
    def depth(self) -> int:
        """L, the length of an id."""
        return len(self.sizes)

    @property
    def device(self) -> torch.device:
        return self.order.device

    def to(self, device: Any) -> Catalog:
        """The same catalog with its tensors on `device`."""
        levels = (Level(*(x.to(device) for x in level)) for level in self.levels)
        return replace(self, tokens=self.tokens.to(device), order=self.order.to(device), levels=tuple(levels))

    # ---- what lies below each node ----------------------------------------------------------------------------

    def count(self, open: Tensor | None = None) -> list[Tensor]:
        """How many items lie below each node: (1, N) per level, or (R, N) where rows have items `open`.

        open: (R, M) bool, the items a row may still have; all if not given
        """
        return self._up(self._open(open).double(), "sum")

    def mean(self, value: Tensor, open: Tensor | None = None) -> list[Tensor]:
        """The mean value of the open items below each node, (1, N) or (R, N) float64 per level; 0 where there are none.

        Without `open` it is the mean over all items below the prefix, each with the same weight. In the last level
        it is the value of the item itself wherever an id names one item.

        value: (M,) or (R, M)
        open:  (R, M) bool, the items a row may still have; all if not given

        >>> catalog = Catalog.of([[0, 1], [0, 1], [1, 0], [0, 0]])
        >>> catalog.mean(torch.tensor([1.0, 0, 0, 1]))[1]
        tensor([[0.6667, 0.0000]], dtype=torch.float64)
        >>> catalog.mean(torch.tensor([1.0, 0, 0, 1]), torch.tensor([[False, True, True, True]]))[1]
        tensor([[0.5000, 0.0000]], dtype=torch.float64)
        """
        mask = self._open(open)
        total = self._up(self._value(value).masked_fill(~mask, 0), "sum")
        return [t / n.clamp_min(1) for t, n in zip(total, self._up(mask.double(), "sum"), strict=True)]

    def largest(self, value: Tensor, open: Tensor | None = None) -> list[Tensor]:
        """The largest value of an open item below each node, like `mean`; -inf where there are none."""
        return self._up(self._value(value).masked_fill(~self._open(open), -torch.inf), "max")

    def at(self, level: int) -> Tensor:
        """(M,) the node of `level` each item lies below."""
        here = self.levels[level]
        node = torch.repeat_interleave(here.first.diff(), output_size=len(self))
        return torch.empty_like(node).scatter(0, self.order, node)

    def _open(self, open: Tensor | None) -> Tensor:
        return torch.ones((1, len(self)), dtype=torch.bool, device=self.device) if open is None else open

    def _value(self, value: Any) -> Tensor:
        value = torch.as_tensor(value, device=self.device).double()
        if value.dim() not in (1, 2) or value.shape[-1] != len(self):
            raise ValueError(
                f"`value` must be (M,) or (R, M) with M = {len(self)} items of the catalog, got {tuple(value.shape)}. "
                "Give one number per item."
            )
        return value.reshape(-1, len(self))

    def _up(self, x: Tensor, how: str) -> list[Tensor]:
        """From the items (R, M) up to the root: each level reduces the one below it, so no sum is longer than a fan."""
        x = x[:, self.order]
        found = [x := _reduce(x, self.levels[-1].first, how)]
        found += [x := _reduce(x, level.child, how) for level in self.levels[-2::-1]]
        return found[::-1]

    # ---- from node to node ------------------------------------------------------------------------------------

    def branches(self, level: int, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """The children of nodes (...) at `level`, and their tokens: two (..., W), with -1 behind the last child.

        W is the largest number of children in this level: the compact form of `children`, token ascending.
        """
        here, below = self.levels[level], self.levels[level + 1]
        first, stop = here.child[nodes.clamp_min(0)], here.child[nodes.clamp_min(0) + 1]
        child = first[..., None] + torch.arange(self.fans[level], device=self.device)
        child = child.masked_fill((child >= stop[..., None]) | (nodes < 0)[..., None], -1)
        return child, below.token[child.clamp_min(0)].masked_fill(child < 0, -1)

    def children(self, level: int, nodes: Tensor) -> Tensor:
        """(..., V) the child of nodes (...) at `level` by each token of the next place; -1 where no item has that id.

        >>> Catalog.of([[0, 1], [0, 1], [1, 0], [0, 2]]).children(1, torch.tensor([[0, 1, -1]]))
        tensor([[[-1,  0,  1],
                 [ 2, -1, -1],
                 [-1, -1, -1]]])
        """
        size = self.sizes[level]
        child, token = self.branches(level, nodes)
        table = torch.full((*nodes.shape, size + 1), -1, device=self.device)
        return table.scatter(-1, token.masked_fill(child < 0, size), child)[..., :size]

    def step(self, level: int, nodes: Tensor, tokens: Tensor) -> Tensor:
        """(...) the child that nodes (...) at `level` have by these tokens (...), -1 where there is none."""
        size, below = self.sizes[level], self.levels[level + 1]
        key = nodes * size + tokens
        child = torch.searchsorted(below.key, key).clamp_max(len(below.key) - 1)
        legal = (nodes >= 0) & (tokens >= 0) & (tokens < size) & (below.key[child] == key)
        return child.masked_fill(~legal, -1)

    def find(self, tokens: Tensor) -> Tensor:
        """(...) the node of each prefix (..., l) at level l, -1 where no item has it.

        >>> Catalog.of([[0, 1], [0, 1], [1, 0]]).find(torch.tensor([[0, 1], [1, 1]]))
        tensor([ 0, -1])
        """
        nodes = torch.zeros(tokens.shape[:-1], dtype=torch.int64, device=self.device)
        for level in range(tokens.shape[-1]):
            nodes = self.step(level, nodes, tokens[..., level])
        return nodes

    # ---- from nodes to items ----------------------------------------------------------------------------------

    def below(self, level: int, nodes: Tensor, n: int = 1, open: Tensor | None = None) -> Tensor:
        """(..., n) the first n items below nodes (...) at `level`, -1 where there are fewer: by id, then item number.

        At `level=catalog.depth` these are the items that share an id, lowest number first, or as `preferring` says.

        open: (R, M) bool, the items a row may still have, with nodes (R, B); all if not given

        >>> catalog = Catalog.of([[0, 1], [0, 1], [1, 0]])
        >>> catalog.below(2, torch.tensor([[0, 1]]), n=2, open=torch.tensor([[False, True, True]]))
        tensor([[[ 1, -1],
                 [ 2, -1]]])
        """
        here, ranks = self.levels[level], torch.arange(n, device=self.device)
        first, stop = here.first[nodes.clamp_min(0)], here.first[nodes.clamp_min(0) + 1]
        if open is None:
            place = first[..., None] + ranks
            missing = place >= stop[..., None]
        else:
            seen = open[:, self.order].cumsum(1)  # (R, M) open items up to and with each place
            before = seen.gather(1, (first - 1).clamp_min(0)).masked_fill(first == 0, 0)
            rank = before[..., None] + ranks + 1  # (R, B, n)
            missing = rank > seen.gather(1, stop - 1)[..., None]
            place = torch.searchsorted(seen, rank.flatten(1)).view_as(rank)
        missing = missing | (nodes < 0)[..., None]
        return self.order[place.clamp_max(len(self) - 1)].masked_fill(missing, -1)

    def preferring(self, preference: Any) -> Catalog:
        """The same catalog, but items that share an id stand by `preference` (M,), largest first, then by number."""
        preference = self._value(preference)
        if len(preference) != 1:
            raise ValueError(f"`preference` must be (M,), one number per item, got {tuple(preference.shape)}.")
        order = preference[0].argsort(descending=True, stable=True)
        return replace(self, order=order[self.at(self.depth)[order].argsort(stable=True)])

    def collisions(self) -> Collisions:
        """How many ids name several items.

        >>> Catalog.of([[0, 1], [0, 1], [1, 0]]).collisions()
        Collisions(ids=2, shared=1, items=2, largest=2)
        """
        held = self.levels[-1].first.diff()
        shared = held[held > 1]
        return Collisions(len(held), len(shared), int(shared.sum()), int(held.max()))

    # ---- on disk ----------------------------------------------------------------------------------------------

    def fingerprint(self) -> str:
        """16 hex digits that name these ids of these items: what a model trained on them is kept with."""
        head = f"{FORMAT} {tuple(self.tokens.shape)} {self.sizes} {self.items}\n"
        tokens = self.tokens.cpu().numpy().astype("<i8").tobytes()
        return hashlib.sha256(head.encode() + tokens).hexdigest()[:16]

    def save(self, path: str | Path) -> None:
        """Write the ids to one .npz file, in one step. What `preferring` asked for is not kept."""
        tokens = self.tokens.cpu().numpy()
        with atomic(path) as file:
            np.savez(
                file,
                format=np.array(FORMAT),
                tokens=tokens.astype(np.min_scalar_type(max(self.sizes) - 1)),
                sizes=np.array(self.sizes, np.int64),
                items=np.array(self.items),
                fingerprint=np.array(self.fingerprint()),
            )

    @classmethod
    def load(cls, path: str | Path, *, items: str | None = None) -> Catalog:
        """The catalog that was saved at `path`.

        items: the fingerprint of the vocabulary at hand; a catalog of another one is refused
        """
        names = ("format", "tokens", "sizes", "items", "fingerprint")
        try:
            with (
                open(path, "rb") as raw,
                np.load(raw, allow_pickle=False) as file,
            ):  # numpy forgets to close broken ones
                kind, tokens, sizes, made_for, fingerprint = (file[name] for name in names)
        except FileNotFoundError:
            raise
        except (
            OSError,
            EOFError,
            KeyError,
            ValueError,
            TypeError,
            AttributeError,
            zipfile.BadZipFile,
            zlib.error,
        ) as e:
            raise ValueError(
                f"{path} must be a catalog written by `Catalog.save`, but cannot be read as one ({type(e).__name__}: {e}). "
                "It is truncated or something else; build the ids again."
            ) from e
        if str(kind) != FORMAT:
            raise ValueError(f"{path} must be of format '{FORMAT}', got '{kind}'. Build the ids again.")
        catalog = cls.of(tokens, sizes=sizes.tolist(), items=str(made_for))
        if catalog.fingerprint() != str(fingerprint):
            raise ValueError(f"{path} does not hold what was written: its fingerprint differs. Build the ids again.")
        if items is not None and items != catalog.items:
            raise ValueError(
                f"{path} holds ids for the vocabulary '{catalog.items}', but the items at hand are '{items}'. "
                "Use the catalog that was built with these items, or build the ids again."
            )
        return catalog


def _tensor(x: np.ndarray) -> Tensor:
    return torch.from_numpy(x.astype(np.int64))


def _reduce(x: Tensor, cuts: Tensor, how: str) -> Tensor:
    """(R, N) the sum or largest of each range cuts[n] to cuts[n + 1] of x (R, P). No range is empty."""
    if len(cuts) == x.shape[1] + 1:
        return x  # one each
    if len(cuts) == 2:
        return x.sum(1, keepdim=True) if how == "sum" else x.amax(1, keepdim=True)
    # unsafe: without a check of the cuts, which would wait for the device.
    return torch.segment_reduce(x, how, offsets=cuts.expand(len(x), -1).contiguous(), axis=1, unsafe=True)


def _checked(tokens: Any) -> np.ndarray:
    """(M, L) int64, or an error that says what is wrong."""
    ids = np.asarray(tokens.cpu() if isinstance(tokens, Tensor) else tokens)
    ids = ids[:, None] if ids.ndim == 1 else ids
    if ids.ndim != 2 or not ids.size:
        raise ValueError(
            f"`tokens` must be (M, L), one id of L >= 1 tokens for each of M >= 1 items, got {ids.shape}. "
            "Give at least one item, and as many tokens to each."
        )
    if not np.issubdtype(ids.dtype, np.integer):
        raise TypeError(f"`tokens` must be whole numbers, got {ids.dtype}. Number the tokens of each place from 0.")
    if ids.min() < 0:
        raise ValueError(f"`tokens` must be >= 0, got {ids.min()}. Number the tokens of each place from 0.")
    return ids.astype(np.int64)


def _sizes(sizes: Any, ids: np.ndarray) -> tuple[int, ...]:
    most = ids.max(0)
    sizes = tuple(int(x) for x in (most + 1 if sizes is None else sizes))
    if len(sizes) != ids.shape[1] or any(x <= m for x, m in zip(sizes, most, strict=False)):
        raise ValueError(
            f"`sizes` must say for each of {ids.shape[1]} places how many tokens there are, above the largest that is "
            f"used ({', '.join(map(str, most))}), got {sizes}. Leave it out to take what is used."
        )
    return sizes
