"""Warm start: the smallest prices whose static top-K keeps the targets, read off the first scores.

With one floor and 0/1 values this is one subtraction: the price at which the last objective item that is
needed draws level with the last plain item that fits. Otherwise prices are bisected, one after the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .guard import near_power, slack_of

ROUNDS = 3  # passes over the prices when there are several
STEPS = 40  # halvings of a price's bracket
# Prices are sought between these, in units of how far a plain slate's relevance spreads per largest value.
RANGE = 1e-6, 1e15


def warm_prices(
    relevance: Tensor,
    value: Tensor,
    open_: Tensor,
    target: Tensor,
    column,
    sign: Tensor,
    slots: int,
    guarded: bool = False,
) -> Tensor:
    """(R, P) prices of P promises.

    relevance, open_: (R, N).  value: (C, 1 or R, N).  target: (R, P) value units a slate can really reach
    guarded: a guard keeps the targets, so the price may stop a hair short of doing it itself
    """
    size = min(slots, relevance.shape[1])
    if len(column) == 1 and is_binary(value[column[0]]):
        return _two_groups(relevance, value[column[0]] > 0, open_, target, float(sign[0]) > 0, size, guarded)
    return _bisect(relevance, value, open_, target, column, sign, size)


def traffic_prices(
    relevance: Tensor, value: Tensor, open_: Tensor, target: Tensor, column, sign: Tensor, slots: int
) -> Tensor:
    """(P,) prices, shared by all rows, whose static top-K keeps the targets on average. target: (P,)"""
    rows = len(relevance)
    prices = _bisect(
        relevance, value, open_, target.expand(rows, -1), column, sign, min(slots, relevance.shape[1]), shared=True
    )
    return prices[0]


def is_binary(value: Tensor) -> bool:
    return bool(((value == 0) | (value == 1)).all())


def _two_groups(relevance, has, open_, target, is_floor, size, guarded):
    """One promise, 0/1 values. `size` items: `need` of one kind, the rest of the other."""
    barred = ~open_
    wanted = has if is_floor else ~has
    inside = relevance.masked_fill(barred | ~wanted, -torch.inf).topk(size, 1).values
    outside = relevance.masked_fill(barred | wanted, -torch.inf).topk(size, 1).values
    filled = open_.sum(1, keepdim=True).clamp_max(size)
    need = (target - slack_of(target)).ceil() if is_floor else filled - (target + slack_of(target)).floor()
    need = torch.minimum(need.long().clamp_min(0), filled)  # (R, 1) items of the wanted kind
    last = inside.gather(1, (need - 1).clamp_min(0))
    rival = outside.gather(1, (size - need).clamp(0, size - 1))
    # Level, but for a hair. Without a guard above, or a level rival with a lower number would win. With one below: where
    # several items are level, a price above would take more of the wanted kind than needed, each at the price's cost.
    hair = (1e-12 * (rival.abs() + last.abs())).clamp_min(1e-300)
    price = (rival - last - hair).clamp_min(0) if guarded else rival - last + hair
    # No rival, or one that loses anyway: any price does, so none is asked.
    idle = (need == 0) | torch.isinf(rival) | torch.isinf(last) | (rival < last)
    return price.masked_fill(idle, 0)


def _bisect(relevance, value, open_, target, column, sign, size, shared=False):
    rows, promises = len(relevance), len(column)
    finite = relevance.masked_fill(~open_, -torch.inf)
    # Not the spread over all items: one far down (a score of -1e9 that means "never") would coarsen the search.
    best = finite.topk(size, 1).values
    unit = (best[:, 0] - best.masked_fill(torch.isinf(best), torch.inf).amin(1)).nan_to_num(0.0, 0.0, 0.0)
    if shared:
        unit = unit.mean(0, keepdim=True).expand(rows)
    unit = torch.where(unit > 0, unit, 1.0)
    prices = torch.zeros(rows, promises, dtype=torch.float64, device=relevance.device)

    def kept(prices, p):
        scores = finite
        for q, c in enumerate(column):
            scores = scores + (prices[:, q] * sign[q])[:, None] * value[c]
        place = scores.topk(size, 1).indices
        worth = value[column[p]].expand(rows, -1).gather(1, place) * open_.gather(1, place)
        total = worth.sum(1)
        goal = target[:, p]
        if shared:
            total, goal = total.mean().expand(rows), goal.mean().expand(rows)
        return (sign[p] * (total - goal)) >= -slack_of(goal)

    for _ in range(ROUNDS if promises > 1 else 1):
        for p, c in enumerate(column):
            largest = value[c].amax().expand(rows) if shared else value[c].amax(1).expand(rows)
            low_end, high_end = ((unit * end / near_power(largest)).log() for end in RANGE)
            trial = prices.clone()
            trial[:, p] = -low_end.exp()  # free is what is kept even where level items go the wrong way
            free = kept(trial, p)
            low, high = low_end.clone(), high_end.clone()
            for _ in range(STEPS):
                middle = (low + high) / 2
                trial[:, p] = middle.exp()
                enough = kept(trial, p)
                low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
            prices[:, p] = torch.where(free, torch.zeros_like(high), high.exp())
    return prices
