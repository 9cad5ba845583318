"""The CPU's inner loop of `stream.py` (numba): one read of the scores finds every group's best and the row's mass.

A block of scores is compared with the last kept of each item's group, by vector instructions that only count; a block
that holds a better one is looked into, which after a short while hardly happens. The exponential is our own, for
numba's calls the C library once per score: relative error below 3e-7, eight or sixteen at a time.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba.extending import intrinsic
from torch import Tensor

from .stream import Lists

BLOCK = 512
STRETCH = 4096  # scores that are passed over at once where none of them matters
TILE = 262144  # columns all rows go through before the next, so that groups are read from a near cache

ZERO, ONE = np.float32(0), np.float32(1)
LEAST = np.float32(-87)  # exp of less counts as exp(-87): 1e-38 of the largest term
LOG2E, ROUND = np.float32(1.4426950408889634), np.float32(127.5)
HIGH, LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)  # log(2) in two parts, the first exact in products
P0, P1, P2, P3, P4, P5 = (  # Cephes' expf
    np.float32(x) for x in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
)
BIAS, MANTISSA = np.int32(127), np.int32(23)

# Sums may be taken in any order and NaN is not looked for (it is at the front door); infinities are left meaning what they do.
SUMS = {"reassoc", "contract", "nsz", "nnan"}  # fmt: skip


class Stream:
    """Running best and mass of all rows. depth: how many to keep of each group.

    first: number of the first item to come.  masked: some items are in no group
    """

    def __init__(
        self, rows: int, depth: list[int], lists: Lists, first: int, mass: bool, dtype: torch.dtype, masked: bool
    ):
        kind = np.float64 if dtype == torch.float64 else np.float32
        self.ends = np.concatenate([[0], np.cumsum(depth)]).astype(np.int64)
        self.best = np.full((rows, self.ends[-1]), -np.inf, dtype=kind)
        self.items = np.full((rows, self.ends[-1]), -1, dtype=np.int64)
        # The last is that of items no row may have: nothing beats it.
        self.bar = np.full((rows, len(depth) + 1), -np.inf, dtype=kind)
        self.bar[:, -1] = np.inf
        self.least = self.bar.min(1)  # what a score must be above to matter to any group
        self.lists = [x.numpy() for x in lists]
        self.next = (lists.items < first).sum(1).numpy()
        self.top = np.full(rows, -np.inf, dtype=kind)
        self.total = np.zeros(rows)
        self.masked, self.massed = masked, mass

    def feed(self, scores: Tensor, first: int, member: Tensor) -> None:
        """scores: (R, n) float32 or float64.  first: number of the first item.  member: (n,)"""
        if scores.stride(1) != 1:
            scores = scores.contiguous()
        rows, count = scores.shape
        apart = scores.stride(0)
        # As one line: what numba reads through two strides it does not read in vectors.
        line = scores.as_strided((max(0, rows - 1) * apart + count,), (1,)).numpy()
        arguments = [line, rows, apart, count, first, member.numpy(), self.ends, *self.lists, self.masked, self.massed]
        arguments += [self.best, self.items, self.bar, self.least, self.next, self.top, self.total]
        _scan(*arguments)

    def found(self) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.best), torch.from_numpy(self.items)

    def mass(self) -> Tensor | None:
        if not self.massed:
            return None
        with np.errstate(divide="ignore"):  # a row with nothing there has log 0
            return torch.from_numpy(np.log(self.total) + self.top.astype(np.float64).clip(-1.8e308))[:, None]


@numba.njit(cache=True, nogil=True)
def _scan(
    line,
    rows,
    apart,
    count,
    first,
    member,
    ends,
    lists,
    gone,
    masked,
    massed,
    best,
    items,
    bar,
    least,
    next_,
    top,
    total,
):
    groups = len(ends) - 1
    room = np.empty(BLOCK, dtype=line.dtype)
    lowest = -bar[0, groups]
    for tile in range(0, count, TILE):
        for row in range(rows):
            start, stop = tile, min(tile + TILE, count)
            while start < stop:
                far = min(start + STRETCH, stop)
                if start % STRETCH == 0 and not massed:
                    none = next_[row] == lists.shape[1] or lists[row, next_[row]] >= first + far
                    if none and _above(line[row * apart + start : row * apart + far], least[row]) == 0:
                        start = far
                        continue
                end = min(start + BLOCK, stop)
                x, m = line[row * apart + start : row * apart + end], member[start:end]
                begin = next_[row]
                while next_[row] < lists.shape[1] and lists[row, next_[row]] < first + end:
                    next_[row] += 1
                if next_[row] > begin:  # barred items fall in here: strike them from a copy
                    room[: end - start] = x
                    for i in range(begin, next_[row]):
                        room[lists[row, i] - first - start] = lowest
                    x = room[: end - start]
                # Most blocks have nothing for any group: that is seen without looking at who belongs where.
                if _above(x, least[row]) > 0 and _beats(x, m, bar[row]) > 0:
                    for j in range(len(x)):
                        g = m[j]
                        if x[j] > bar[row, g]:
                            _keep(x[j], first + start + j, ends[g], ends[g + 1], best[row], items[row])
                            bar[row, g] = best[row, ends[g + 1] - 1]
                            least[row] = bar[row].min()
                            if massed and x[j] > top[row]:
                                total[row] *= math.exp(top[row] - x[j])
                                top[row] = x[j]
                if massed:
                    for i in range(begin, next_[row]):
                        if not gone[row, i]:  # still part of the distribution
                            j = lists[row, i] - first - start
                            if m[j] < groups:
                                room[j] = line[row * apart + start + j]
                                if room[j] > top[row]:
                                    total[row] *= math.exp(top[row] - room[j])
                                    top[row] = room[j]
                    if top[row] > lowest and masked:
                        total[row] += _mass_of(x, m, groups, top[row])
                    elif top[row] > lowest:
                        total[row] += _mass(x, top[row])
                start = end


@numba.njit(cache=True, nogil=True)
def _keep(score, item, start, end, best, items):
    """Insertion; an equal score that came before stays before."""
    place = end - 1
    while place > start and best[place - 1] < score:
        best[place], items[place] = best[place - 1], items[place - 1]
        place -= 1
    best[place], items[place] = score, item


@numba.njit(cache=True, nogil=True, fastmath=SUMS)
def _above(x, bar):
    hits = ZERO
    for j in range(x.shape[0]):
        hits += ONE if x[j] > bar else ZERO
    return hits


@numba.njit(cache=True, nogil=True, fastmath=SUMS)
def _beats(x, member, bar):
    hits = ZERO
    for j in range(x.shape[0]):
        hits += ONE if x[j] > bar[member[j]] else ZERO
    return hits


@numba.njit(cache=True, nogil=True, fastmath=SUMS)
def _mass(x, top):
    """Sum of exp(x - top)."""
    total = ZERO
    for j in range(x.shape[0]):
        total += _exp(np.float32(x[j] - top))
    return total


@numba.njit(cache=True, nogil=True, fastmath=SUMS)
def _mass_of(x, member, groups, top):
    """As `_mass`, over members of a group."""
    total = ZERO
    for j in range(x.shape[0]):
        e = _exp(np.float32(x[j] - top))
        total += e if member[j] < groups else ZERO
    return total


def _float_of(typingctx, bits):
    """The float32 of these bits."""

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.FloatType())

    return numba.types.float32(numba.types.int32), generate


as_float: Any = intrinsic(_float_of)


@numba.njit(inline="always")
def _exp(x):
    """exp of a float32 that is at most 0, or hardly more."""
    x = x if x > LEAST else LEAST
    power = np.int32(
        x * LOG2E + ROUND
    )  # the nearest whole power of two, plus 127: never negative, so cutting off rounds
    k = np.float32(power - BIAS)
    f = x - k * HIGH - k * LOW
    p = P0 * f + P1
    p = p * f + P2
    p = p * f + P3
    p = p * f + P4
    p = p * f + P5
    return (p * f * f + f + ONE) * as_float(np.int32(power << MANTISSA))
