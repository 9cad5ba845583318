"""The CPU's inner loops of `stream.py` and `tiles.py` (numba): one read of the scores finds every group's best and the row's mass.

A block of scores is compared with the last kept of each item's group, by vector instructions that only count; a block
that holds a better one is looked into, which after a short while hardly happens. The exponential is our own, for
numba's calls the C library once per score: relative error 3e-7, and 1.5e-8 for each nat below the largest, eight or sixteen at a time.
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

BLOCK, FEW = 1024, 64  # scores looked at together; fewer where one of them is barred
TILE = 262144  # with items no row may have: columns all rows go through before the next, so that groups stay in a near cache

ZERO, ONE = np.float32(0), np.float32(1)
LEAST = np.float32(-86)  # exp of less counts as exp(-86): 1e-38 of the largest term
LOG2E, ROUND = (
    np.float32(1.4426950408889634),
    np.float32(1.5 * 2**23),
)  # added, it leaves whole numbers in the last bits
# 2**x on [-1/2, 1/2], least squares weighted until the largest relative error was smallest: 7.5e-8
P0, P1, P2, P3, P4, P5 = (
    np.float32(x)
    for x in (1.0000001192092896, 0.6931469440460205, 0.24022120237350464, 0.05550713464617729, 0.009675540961325169,
              0.0013276466634124517)
)  # fmt: skip
MANTISSA = np.int32(23)

# Sums may be taken in any order and NaN is not looked for (it is at the front door); infinities are left meaning what they do.
SUMS = {"reassoc", "contract", "nsz", "nnan"}  # fmt: skip


class Stream:
    """Running best and mass of all rows. depth: how many to keep of each group.

    first: number of the first item to come.  there: how many items each group has, and last how many are in none; None if those are 0
    """

    def __init__(
        self, rows: int, depth: list[int], lists: Lists, first: int, mass: bool, dtype: torch.dtype,
        there: list[int] | None,
    ):  # fmt: skip
        kind = np.float64 if dtype == torch.float64 else np.float32
        self.ends = np.concatenate([[0], np.cumsum(depth)]).astype(np.int64)
        self.best = np.full((rows, self.ends[-1]), -np.inf, dtype=kind)
        self.items = np.full((rows, self.ends[-1]), -1, dtype=np.int64)
        # Nothing beats the bar of a group that has nothing, nor the last, that of items no row may have: were it to stay at -inf, no
        # block would ever be quiet.
        self.bar = np.full((rows, len(depth) + 1), -np.inf, dtype=kind)
        self.bar[:, np.array([*(depth if there is None else there[: len(depth)]), 0]) == 0] = np.inf
        self.least = self.bar.min(1)  # what a score must be above to matter to any group
        self.lists = [x.numpy() for x in lists]
        self.next = (lists.items < first).sum(1).numpy()
        self.top = np.full(rows, -np.inf, dtype=kind)
        self.total = np.zeros(rows)
        self.masked, self.massed = there is not None, mass

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
    step = TILE if masked and massed else max(count, 1)
    for tile in range(0, count, step):
        for row in range(rows):
            begun, start, stop = row * apart, tile, min(tile + step, count)
            while start < stop:
                size = BLOCK
                if not massed:  # barred items that are no better need not be known
                    start = _quiet(line, begun + start, begun + stop, least[row]) - begun
                elif top[row] > lowest:
                    far = stop
                    if next_[row] < lists.shape[1]:
                        far = min(far, start + (lists[row, next_[row]] - first - start) // FEW * FEW)
                    if not masked:
                        start, here = _quiet_mass(line, begun + start, begun + far, least[row], top[row])
                        start -= begun
                        total[row] += here
                    if start == far:
                        size = FEW
                if start >= stop:
                    break
                end = min(start + size, stop)
                x, m = line[begun + start : begun + end], member[start:end]
                while next_[row] < lists.shape[1] and lists[row, next_[row]] < first + start:
                    next_[row] += 1
                begin = next_[row]
                while next_[row] < lists.shape[1] and lists[row, next_[row]] < first + end:
                    next_[row] += 1
                if next_[row] > begin:  # barred items fall in here: strike them from a copy
                    _copy(x, room[: end - start])
                    for i in range(begin, next_[row]):
                        room[lists[row, i] - first - start] = lowest
                    x = room[: end - start]
                before = top[row]
                if _above(x, least[row]) > 0:
                    two = groups == 2 and not masked
                    if (_beats_two(x, m, bar[row, 0], bar[row, 1]) if two else _beats(x, m, bar[row])) > 0:
                        for part in range(0, len(x), FEW):
                            if _above(x[part : part + FEW], least[row]) > 0:
                                for j in range(part, min(part + FEW, len(x))):
                                    g = m[j]
                                    if x[j] > bar[row, g]:
                                        _keep(x[j], first + start + j, ends[g], ends[g + 1], best[row], items[row])
                                        bar[row, g] = best[row, ends[g + 1] - 1]
                                        top[row] = max(top[row], x[j])
                        least[row] = bar[row].min()
                if massed:
                    for i in range(begin, next_[row]):
                        if not gone[row, i]:  # still part of the distribution
                            j = lists[row, i] - first - start
                            if m[j] < groups:
                                room[j] = line[begun + start + j]
                                top[row] = max(top[row], room[j])
                    if top[row] > before:
                        total[row] *= math.exp(before - top[row])
                    if top[row] > lowest:
                        total[row] += _mass_of(x, m, groups, top[row]) if masked else _mass(x, top[row])
                start = end


@numba.njit(cache=True, nogil=True)
def _quiet(line, start, stop, bar):
    """Where the first block with a score above the bar begins, or `stop`."""
    while start < stop:
        end = min(start + BLOCK, stop)
        if _above(line[start:end], bar) > 0:
            return start
        start = end
    return stop


@numba.njit(cache=True, nogil=True)
def _quiet_mass(line, start, stop, bar, top):
    """As `_quiet`, and the mass of what comes before."""
    total = 0.0
    while start < stop:
        end = min(start + BLOCK, stop)
        hits, here = _above_and_mass(line[start:end], bar, top)
        if hits > 0:
            return start, total
        total += here
        start = end
    return stop, total


@numba.njit(cache=True, nogil=True)
def tile_bounds(
    line,
    rows,
    apart,
    count,
    first,
    width,
    value,
    price,
    shut,
    lists,
    gone,
    powers,
    relative,
    massed,
    next_,
    sofar,
    bound,
    top,
    total,
    known,
):
    """The numbers of a `tiles.Part`; see `tiles._parts`, the plain twin. bound: (R, T), the rest (R,), written to.

    shut: (n,) items no row may have, or none at all.  price: (R, C).  value: (C, n)
    """
    room, scored = np.empty(count, dtype=line.dtype), np.empty(width, dtype=line.dtype)
    least = np.finfo(line.dtype).min
    for row in range(rows):
        _copy(line[row * apart : row * apart + count], room)
        for j in range(len(shut)):
            if shut[j]:
                room[j] = -np.inf
        begin = next_[row]
        while next_[row] < lists.shape[1] and lists[row, next_[row]] < first + count:
            if gone[row, next_[row]]:
                room[lists[row, next_[row]] - first] = -np.inf
            next_[row] += 1
        high = _largest(room)
        mass = 0.0
        if massed and high >= least:
            for start in range(0, count, BLOCK):
                mass += _mass(room[start : start + BLOCK], high)
            here = high + math.log(mass)
            both = max(sofar[row], here)
            sofar[row] = both + math.log(math.exp(sofar[row] - both) + math.exp(here - both))
        if relative:
            sofar[row] = max(sofar[row], high)
        top[row], total[row], known[row] = high, mass, max(sofar[row], least)
        for i in range(begin, next_[row]):
            room[lists[row, i] - first] = -np.inf
        for tile in range(bound.shape[1]):
            start, end = tile * width, min(tile * width + width, count)
            x, y = room[start:end], scored[: end - start]
            if powers:
                _powered(x, line.dtype.type(known[row]), y)
            else:
                _copy(x, y)
            for c in range(len(value)):
                _add(price[row, c], value[c, start:end], y)
            bound[row, tile] = _largest_where(x, y, least)


@numba.njit(cache=True, nogil=True, fastmath=SUMS)
def _powered(x, known, out):
    for j in range(x.shape[0]):
        out[j] = _exp(np.float32(x[j] - known))


@numba.njit(cache=True, nogil=True)
def _copy(x, out):
    """Several times as fast as `out[:] = x`, which asks whether they overlap."""
    for j in range(out.shape[0]):
        out[j] = x[j]


@numba.njit(cache=True, nogil=True, fastmath=SUMS)
def _add(price, value, out):
    for j in range(out.shape[0]):
        out[j] += price * value[j]


@numba.njit(cache=True, nogil=True)
def _largest(x):
    high = x[0]
    for j in range(x.shape[0]):
        high = greater(high, x[j])
    return high


@numba.njit(cache=True, nogil=True)
def _largest_where(x, y, least):
    """The largest of y where x is a number."""
    high = -x.dtype.type(np.inf)
    for j in range(x.shape[0]):
        high = greater(high, y[j] if x[j] >= least else -x.dtype.type(np.inf))
    return high


@numba.njit(cache=True, nogil=True)
def keep_best(logits, member, ends, allowed, masked, best, items):
    """The best items of every group, in order, by insertion. logits: (R, M).  best, items: (R, N), written to

    Here and not in `cpu.py`: numba looks only at the file of a function to see whether what it compiled is still true.
    """
    groups = len(ends) - 1
    last = np.empty(groups, dtype=logits.dtype)
    for row in range(logits.shape[0]):
        last[:] = -np.inf
        for start in range(0, logits.shape[1], FEW):
            x, m = logits[row, start : start + FEW], member[start : start + FEW]
            if (_beats_two(x, m, last[0], last[1]) if groups == 2 else _beats(x, m, last)) == 0:
                continue
            for j in range(len(x)):
                score, g = x[j], m[j]
                if score > last[g] and not (masked and not allowed[row, start + j]):
                    _keep(score, start + j, ends[g], ends[g + 1], best[row], items[row])
                    last[g] = best[row, ends[g + 1] - 1]


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
def _above_and_mass(x, bar, top):
    """Both from one read. The mass means nothing where a score is above `top`."""
    hits, total = ZERO, ZERO
    for j in range(x.shape[0]):
        hits += ONE if x[j] > bar else ZERO
        total += _exp(np.float32(x[j] - top))
    return hits, total


@numba.njit(cache=True, nogil=True, fastmath=SUMS)
def _beats(x, member, bar):
    hits = ZERO
    for j in range(x.shape[0]):
        hits += ONE if x[j] > bar[member[j]] else ZERO
    return hits


@numba.njit(cache=True, nogil=True, fastmath=SUMS)
def _beats_two(x, member, bar, other):
    """As `_beats` with two groups, whose bars need not be gathered."""
    hits = ZERO
    for j in range(x.shape[0]):
        hits += ONE if x[j] > (other if member[j] else bar) else ZERO
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


def _bits_of(typingctx, number):
    """The bits of this float32."""

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(32))

    return numba.types.int32(numba.types.float32), generate


def _fused(typingctx, x, y, z):
    """x · y + z in float32, rounded once where the processor can."""

    def generate(context, builder, signature, args):
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType()] * 3)
        return builder.call(builder.module.declare_intrinsic("llvm.fmuladd", [ir.FloatType()], kind), args)

    real = numba.types.float32
    return real(real, real, real), generate


def _greater(typingctx, x, y):
    """The larger of two numbers of one type. Python's own `max` is not read in vectors, for what it does with NaN."""

    def generate(context, builder, signature, args):
        real = context.get_value_type(signature.return_type)
        larger = builder.module.declare_intrinsic("llvm.maxnum", [real], ir.FunctionType(real, [real, real]))
        return builder.call(larger, args, fastmath=("nnan", "nsz"))

    return x(x, x), generate


greater: Any = intrinsic(_greater)
as_float: Any = intrinsic(_float_of)
as_bits: Any = intrinsic(_bits_of)
fused: Any = intrinsic(_fused)


# Not inlined by numba but by LLVM, which keeps these flags: were sums free here, adding ROUND and taking it off would do nothing.
@numba.njit(cache=True, nogil=True, fastmath={"nnan", "nsz"})
def _exp(x):
    """exp of a float32 that is at most 0, or hardly more: 2 to a whole power, times 2 to a rest of at most a half."""
    x = x if x > LEAST else LEAST
    whole = fused(x, LOG2E, ROUND)
    rest = fused(x, LOG2E, ROUND - whole)
    p = fused(P5, rest, P4)
    p = fused(p, rest, P3)
    p = fused(p, rest, P2)
    p = fused(p, rest, P1)
    p = fused(p, rest, P0)
    return as_float(as_bits(p) + (as_bits(whole) << MANTISSA))
