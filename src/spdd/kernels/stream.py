"""The best items of every value group, and each row's log-sum-exp, in one pass over scores that come piece by piece.

Scores of a `Product` exist only as the piece at hand: B rows by a few thousand items, small enough for the CPU's cache.
Exclusions are short lists; their items are struck from the piece they fall in. What is kept of everything else is k
items per group and one sum per row. numba's twin of the inner loop is in `cpu_stream.py`.
"""

from __future__ import annotations

import importlib.util
import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from .pool import in_parts
from .reference import Barred, Groups, Product, _best, columns

PIECE = 1 << 19  # scores at hand: 2 MB of float32
PIECE_THERE = 1 << 25  # on a device that has no cache to stay in, but a start-up time for every operation


class Found(NamedTuple):
    """logit: (R, N) each group's k best, best first; -inf where there are fewer.  items: (R, N), -1 there.  group: (N,)

    mass: (R, 1) float64 log-sum-exp over the items that are there at all, or None
    """

    logit: Tensor
    items: Tensor
    group: Tensor
    mass: Tensor | None


def group_topk(scores: Tensor | Product, groups: Groups, k: int, barred: Barred, mass: bool) -> Found:
    """As computed in the precision of the scores; `priced.py` proves the order where it matters."""
    rows, count = shape(scores)
    if isinstance(scores, Product) and scores.table.is_cuda and importlib.util.find_spec("triton"):
        from . import gpu

        if dtype_of(scores) == torch.float32 and gpu.takes(scores, groups):
            return gpu.group_topk(scores, groups, k, barred, mass)
    depth = [min(k, size) for size in groups.size]
    device = scores.device if isinstance(scores, Tensor) else scores.table.device
    group = columns(depth, device)
    member = groups.member
    if barred.eligible is not None:
        member = member.masked_fill(~barred.eligible, len(depth))  # a group of its own that nothing is kept of
    lists = Lists.of(barred, rows, count, device)
    if device.type == "cpu" and importlib.util.find_spec("numba"):
        from .cpu_stream import Stream
    else:
        Stream = TorchStream
    there = None  # how many items a group has, and last how many are in none
    if barred.eligible is not None and Stream is not TorchStream:
        there = member.bincount(minlength=len(depth) + 1).tolist()

    def work(first: int, end: int):
        stream = Stream(rows, depth, lists, first, mass, dtype_of(scores), there)
        come = pieces(scores, first, end)
        if isinstance(scores, Tensor) and scores.dtype == dtype_of(scores) and Stream is not TorchStream:
            come = [(first, scores[:, first:end])]  # nothing to convert: numba goes through them in one call
        for at, piece in come:
            stream.feed(piece, at, member[at : at + piece.shape[1]])
        return *stream.found(), stream.mass()

    parts = in_parts(work, rows, count, 512, device)
    best, items, masses = zip(*parts, strict=True)
    best, items = _merged(best, items, depth) if len(parts) > 1 else (best[0], items[0])
    total = torch.logsumexp(torch.cat(masses, 1), 1, keepdim=True) if mass else None
    return Found(best, items, group, total)


def _merged(best, items, depth):
    """The best of every group over parts of the catalogue, whose order decides between equals."""
    kept, ends = [], torch.tensor([0, *depth]).cumsum(0).tolist()
    for start, end in itertools.pairwise(ends):
        scores, names = (torch.cat([part[:, start:end] for part in x], 1) for x in (best, items))
        order = scores.sort(dim=1, descending=True, stable=True).indices[:, : end - start]
        kept.append((scores.gather(1, order), names.gather(1, order)))
    return tuple(torch.cat(x, 1) for x in zip(*kept, strict=True))


def shape(scores: Tensor | Product) -> tuple[int, int]:
    return (len(scores), scores.shape[1]) if isinstance(scores, Tensor) else (len(scores.hidden), len(scores.table))


def dtype_of(scores: Tensor | Product) -> torch.dtype:
    """In which type pieces come: float64 where anything is, else float32."""
    given = [scores.dtype] if isinstance(scores, Tensor) else [scores.hidden.dtype, scores.table.dtype]
    return torch.float64 if torch.float64 in given else torch.float32


def pieces(scores: Tensor | Product, first: int, end: int, multiple: int = 64):
    """Number of the first item, and the scores of the items from there on, a piece at a time.

    Logits that need no conversion come as they lie, not to be written to. Memory of the rest is used for the next piece.
    """
    kind, (rows, _) = dtype_of(scores), shape(scores)
    device = scores.device if isinstance(scores, Tensor) else scores.table.device
    step = max(1, (PIECE if device.type == "cpu" else PIECE_THERE) // max(1, rows) // multiple) * multiple
    if isinstance(scores, Tensor):
        for at in range(first, end, step):
            yield at, scores[:, at : min(at + step, end)].to(kind)
        return
    hidden = scores.hidden.to(kind)
    room = torch.empty(rows * step, dtype=kind, device=hidden.device)
    for at in range(first, end, step):
        part = scores.table[at : min(at + step, end)].to(kind)
        piece = room[: rows * len(part)].view(rows, len(part))
        torch.mm(hidden, part.T, out=piece)
        if scores.row_scale is not None:
            piece *= scores.row_scale[at : min(at + step, end)].to(kind)
        yield at, piece


class Lists(NamedTuple):
    """Barred items of each row in ascending order. items: (R, L), `nowhere` at the end.  gone: (R, L) not there at all."""

    items: Tensor
    gone: Tensor

    @classmethod
    def of(cls, barred: Barred, rows: int, count: int, device) -> Lists:
        parts = [x.long() for x in (barred.seen, barred.used) if x is not None]
        if not parts:
            empty = torch.empty(rows, 0, dtype=torch.int64, device=device)
            return cls(empty, empty.bool())
        items = torch.cat(parts, 1)
        first = 0 if barred.seen is None else barred.seen.shape[1]
        gone = (torch.arange(items.shape[1], device=device) < first).expand(rows, -1)
        items = items.masked_fill(items < 0, count)
        # An item in both lists is not there: seen comes first among equals, and the second is struck out.
        order = items.argsort(dim=1, stable=True)
        items, gone = items.gather(1, order), gone.gather(1, order)
        again = torch.nn.functional.pad(items[:, 1:] == items[:, :-1], (1, 0), value=False)
        items = items.masked_fill(again, count)
        order = items.argsort(dim=1, stable=True)
        return cls(items.gather(1, order).contiguous(), gone.gather(1, order).contiguous())


def struck(items: Tensor, there: Tensor, first: int, count: int) -> Tensor:
    """(R, count) True where a piece that begins with item `first` holds one of these. items, there: (R, L)

    Not by their places, which only the host could count.
    """
    place = (items - first).masked_fill(~there, count)
    return torch.zeros(len(items), count + 1, dtype=torch.bool, device=items.device).scatter(1, place, True)[:, :count]


class TorchStream:
    """The plain twin of `cpu_stream.Stream`, on any device."""

    def __init__(
        self,
        rows: int,
        depth: list[int],
        lists: Lists,
        first: int,
        mass: bool,
        dtype: torch.dtype,
        there: list[int] | None,
    ):
        device = lists.items.device
        self.depth, self.lists = depth, lists
        self.best = [torch.full((rows, k), -torch.inf, dtype=dtype, device=device) for k in depth]
        self.items = [torch.full((rows, k), -1, device=device) for k in depth]
        self.total = torch.full((rows, 1), -torch.inf, dtype=torch.float64, device=device) if mass else None

    def feed(self, scores: Tensor, first: int, member: Tensor) -> None:
        here = (self.lists.items >= first) & (self.lists.items < first + scores.shape[1])
        if self.total is not None:
            gone = struck(self.lists.items, here & self.lists.gone, first, scores.shape[1])
            inside = scores.masked_fill((member == len(self.depth)) | gone, -torch.inf)
            top = inside.amax(1, keepdim=True)
            safe = top.clamp_min(torch.finfo(top.dtype).min)
            mass = safe.double() + (inside - safe).exp_().sum(1, keepdim=True, dtype=torch.float64).log()
            self.total = torch.logaddexp(self.total, mass.masked_fill(top == -torch.inf, -torch.inf))
        if self.lists.items.shape[1]:
            scores = scores.masked_fill(struck(self.lists.items, here, first, scores.shape[1]), -torch.inf)
        for g, k in enumerate(self.depth):
            mine = scores.masked_fill(member != g, -torch.inf)
            at = _best(mine, k)
            # What came before has lower numbers: put in front, it keeps its place among equals.
            best = torch.cat([self.best[g], mine.gather(1, at)], 1)
            items = torch.cat([self.items[g], at + first], 1)
            order = best.sort(dim=1, descending=True, stable=True).indices[:, :k]
            self.best[g], self.items[g] = best.gather(1, order), items.gather(1, order)

    def found(self) -> tuple[Tensor, Tensor]:
        best, items = torch.cat(self.best, 1), torch.cat(self.items, 1)
        return best, items.masked_fill(best == -torch.inf, -1)

    def mass(self) -> Tensor | None:
        return self.total
