"""The last per cent: where scores stand still, exchange items while that raises relevance and keeps every promise.

One price per objective picks the best slate for one 0/1 objective. With real values or several objectives it can
stop an item or two short of the best (the duality gap). Two neighbourhoods close most of it: the best exchange of a
single item, until none helps; then every way to trade up to FREE items of the slate for any of NEAR others at once,
around the border the prices draw, where the gap lives.
"""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from .guard import Guard

POOL = 128  # columns tried for an exchange: the best at the first prices
LONGEST = 64  # slots of a slate that is polished at all: longer ones leave no room in the pool, and hardly any gap
FREE, NEAR = 6, 8  # C(14, 6) = 3,003 slates are weighed in a trade
ROUNDS = 2  # of trades: the second around the slate the first one left
CELLS = 1 << 20  # slates weighed at a time: few enough to stay in a CPU's cache
BETTER = 1e-12  # gains below this are rounding
NEVER = 1e300  # given up for a column that may not be had


class Pool(NamedTuple):
    """The columns that may be exchanged. P of them; C' guarded objectives.

    worth, rank: (R, P) relevance, and relevance at the first prices.  can: (R, P) open.  value: (C', R, P)
    low, high: (R, C') what the slate's values must lie between
    """

    worth: Tensor
    rank: Tensor
    can: Tensor
    value: Tensor
    low: Tensor
    high: Tensor

    def take(self, rows) -> Pool:
        return Pool(*(x[:, rows] if x is self.value else x[rows] for x in self))


def polish(relevance: Tensor, value: Tensor, open_: Tensor, priced: Tensor, guard: Guard, chosen: Tensor) -> Tensor:
    """(R, N) bool: the items of each row's slate after the exchanges.

    relevance, open_, priced: (R, N).  value: (C, 1 or R, N).  chosen: (R, K) columns, -1 for empty slots
    """
    rows, width = relevance.shape
    slate = torch.zeros(rows, width + 1, dtype=torch.bool, device=relevance.device)
    slate = slate.scatter(1, chosen.remainder(width + 1), True)[:, :width]
    # The slate's own columns are always in the pool, so that an item given up may come back.
    place = _best(priced.masked_fill(~open_, -torch.inf).masked_fill(slate, torch.inf), min(width, POOL))
    worth, rank, can, inside = (x.gather(1, place) for x in (relevance, priced, open_, slate))
    values = torch.stack([v.expand(rows, -1).gather(1, place) for v in value[guard.columns]])
    pool = Pool(worth, rank, can, values, guard.low, guard.high)
    inside = _exchanged(pool, inside, chosen.shape[1])
    for _ in range(ROUNDS):
        traded = _traded(pool, inside, min(FREE, chosen.shape[1], inside.shape[1]))
        moved = (traded != inside).any(1).nonzero()[:, 0]  # the others have found their place
        if not len(moved):
            break
        inside = inside.index_copy(0, moved, _exchanged(pool.take(moved), traded[moved], chosen.shape[1]))
    return torch.zeros_like(open_).scatter(1, place, inside)


def _exchanged(pool: Pool, inside: Tensor, slots: int) -> Tensor:
    """(R, P) the slates after the best exchange of one item, again and again while one helps."""
    inside, moving = inside.clone(), torch.arange(len(inside), device=inside.device)
    for _ in range(2 * slots):
        now, part = inside[moving], pool.take(moving)
        held = (~now).byte().argsort(dim=1, stable=True)[:, :slots]  # (r, K) the slate's columns, then others
        gain = part.worth[:, None] - part.worth.gather(1, held)[:, :, None]  # (r, K, P)
        fine = now.gather(1, held)[:, :, None] & (part.can & ~now)[:, None]
        for c, value in enumerate(part.value):
            after = ((value * now).sum(1, keepdim=True) - value.gather(1, held))[:, :, None] + value[:, None]
            fine &= (after >= part.low[:, c, None, None]) & (after <= part.high[:, c, None, None])
        best, place = gain.masked_fill(~fine, -torch.inf).flatten(1).max(1)
        better = best > BETTER
        moving, place = moving[better], place[better]
        if not len(moving):
            break
        inside[moving, held[better].gather(1, place[:, None] // now.shape[1])[:, 0]] = False
        inside[moving, place % now.shape[1]] = True
    return inside


def _traded(pool: Pool, inside: Tensor, free: int) -> Tensor:
    """(R, P) the slates after the best trade of their `free` items nearest the border for any of the NEAR outside it."""
    border = pool.rank.masked_fill(~inside, torch.inf).argsort(dim=1, stable=True)
    beyond = pool.rank.masked_fill(inside | ~pool.can, -torch.inf).argsort(dim=1, stable=True, descending=True)
    core = torch.cat([border[:, :free], beyond[:, :NEAR]], 1)  # (R, n)
    slates = _slates(free, core.shape[1], core.device)
    rows = max(1, CELLS // len(slates.member))
    cuts = [slice(i, i + rows) for i in range(0, max(1, len(core)), rows)]
    return torch.cat([_best_slate(pool.take(cut), inside[cut], core[cut], free, slates) for cut in cuts])


def _best_slate(pool: Pool, inside: Tensor, core: Tensor, free: int, slates: Slates) -> Tensor:
    given, wanted = core[:, :free], core[:, free:]
    kept = inside.scatter(1, given, False)
    # Columns that may not be had are there to fill the matrix up; a row with too few of its own has nothing to trade.
    fair = torch.cat([inside.gather(1, given), (pool.can & ~inside).gather(1, wanted)], 1)
    worth = pool.worth.gather(1, core).masked_fill(~fair, -NEVER)
    fine = fair[:, :free].all(1, keepdim=True).expand(-1, len(slates.member))
    for c, value in enumerate(pool.value):
        total = (value * kept).sum(1, keepdim=True) + _totals(value.gather(1, core), slates)
        fine = fine & (total >= pool.low[:, c, None]) & (total <= pool.high[:, c, None])
    best, place = _totals(worth, slates).masked_fill(~fine, -torch.inf).max(1)
    better = best > worth[:, :free].sum(1) + BETTER
    # Added, not set: a column that fills the matrix up may stand in it twice, and is chosen at most once.
    traded = kept.byte().scatter_add(1, core, slates.member[place].byte()) > 0
    return torch.where(better[:, None], traded, inside)


class Slates(NamedTuple):
    """Every way to have so many of n columns. member: (S, n).  first, second: (S,) which subset of either half it has"""

    member: Tensor
    first: Tensor
    second: Tensor


@functools.cache
def _slates(free: int, n: int, device: torch.device) -> Slates:
    ways = torch.tensor(list(itertools.combinations(range(n), free)), device=device)
    member = torch.zeros(len(ways), n, dtype=torch.bool, device=device).scatter(1, ways, True)
    bit = 1 << torch.arange(n, device=device)
    half = n // 2
    return Slates(member, (member[:, :half] * bit[:half]).sum(1), (member[:, half:] * bit[: n - half]).sum(1))


def _totals(column: Tensor, slates: Slates) -> Tensor:
    """(R, S) what the columns (R, n) of each slate add up to, in the same order in any batch."""
    half = column.shape[1] // 2
    first, second = _sums(column[:, :half]), _sums(column[:, half:])
    return first.index_select(1, slates.first) + second.index_select(1, slates.second)


def _sums(column: Tensor) -> Tensor:
    """(R, 2^n) the sum of every subset of n columns; bit i of a subset's number says whether column i is in it."""
    sums = torch.zeros_like(column[:, :1])
    for i in range(column.shape[1]):
        sums = torch.cat([sums, sums + column[:, i : i + 1]], 1)
    return sums


def _best(scores: Tensor, k: int) -> Tensor:
    """(R, k) columns of the k largest scores, ascending; of equal ones the lower columns (`topk` takes any)."""
    least = scores.topk(k, 1).values[:, -1:]
    above, level = scores > least, scores == least
    taken = above | (level & (level.cumsum(1) <= k - above.sum(1, keepdim=True)))
    return taken.nonzero()[:, 1].view(len(scores), k)
