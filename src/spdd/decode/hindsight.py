"""The best slate in hindsight: for scores that were seen at every slot and would have been the same whatever was shown.

That is how Assumption 1 is read when its steps are drawn once per slot and item. For a model whose mood follows what it
shows it is no optimum, but what the slate is worth that could have been put together from the scores seen on the way.
"""

from __future__ import annotations

import heapq
import math

import numpy as np

FEW = 8  # distinct values up to which the best of each are picked at once


def undominated(relevance: np.ndarray, value: np.ndarray, slots: int) -> np.ndarray:
    """(N,) the items that are enough to build a best slate from, whatever the floor; none of the others is needed.

    An item that `slots` others match in relevance and in value can be exchanged for one of them that is not shown.

    relevance, value: (M,)

    >>> undominated(np.array([0.9, 0.8, 0.7, 0.1]), np.array([0, 1, 0, 2]), 1)
    array([0, 1, 3])
    """
    levels = np.unique(value)
    if len(levels) <= FEW:
        groups = [np.flatnonzero(value == level) for level in levels]
        best = [g[np.argpartition(-relevance[g], slots - 1)[:slots]] if len(g) > slots else g for g in groups]
        return np.sort(np.concatenate(best))
    most: list[float] = []  # the `slots` largest values so far
    kept = []
    order = np.lexsort((-value, -relevance))
    for item, worth in zip(order.tolist(), value[order].tolist(), strict=True):
        if len(most) < slots:
            heapq.heappush(most, worth)
        elif worth > most[0]:
            heapq.heapreplace(most, worth)
        else:
            continue
        kept.append(item)
    return np.sort(np.array(kept))


def moving_certificate(scores: np.ndarray, value: np.ndarray, *, floor: float, eligible: np.ndarray | None = None):
    """An upper bound on the relevance of any slate with the floor, where slot k is worth scores[:, k]: (R,).

        min over l >= 0 of  max over ways to give every slot an item of its own, sum_k p_k(j_k) + l (b(j_k) - R/K)

    -inf where the floor is out of reach. As `bounds.certificate`, which it equals where scores stand still.

    scores: (R, K, M).  value: (M,).  eligible: (R, M) bool, as many items as slots at least

    >>> moving_certificate(np.array([[[0.9, 0.3, 0.1], [0.8, 0.2, 0.1]]]), np.array([0, 0, 1]), floor=1).round(6)
    array([1.])
    """
    found = np.full(len(scores), -math.inf)
    for row, own in enumerate(scores):
        items = np.arange(own.shape[1]) if eligible is None else np.flatnonzero(eligible[row])
        if np.sort(value[items])[-len(own) :].sum() < floor - 1e-9:
            continue
        pool = items[np.unique(np.concatenate([undominated(p[items], value[items], len(own)) for p in own]))]
        found[row] = _least(own[:, pool].astype(np.float64), value[pool].astype(np.float64), floor)
    return found


def _least(scores, value, floor) -> float:
    """The least of the maxima over prices: where the lines of two assignments cross, ask for the best one there.

    Whatever price it ends at, what is returned bounds every slate.
    """
    from scipy.optimize import linear_sum_assignment

    def best(price):
        slot, item = linear_sum_assignment(scores + price * value, maximize=True)
        return scores[slot, item].sum(), value[item].sum() - floor

    low, low_surplus = best(0.0)
    if low_surplus >= -1e-9:
        return low
    price = max(scores.max() - scores.min(), 1e-12) / value.max()
    for _ in range(60):  # the price at which the floor is met
        high, high_surplus = best(price)
        if high_surplus >= -1e-9:
            break
        price *= 2
    least = min(low, high + price * high_surplus)
    if high_surplus < -1e-9:
        return least
    for _ in range(100):  # each round finds a corner; a handful is usual
        price = (low - high) / (high_surplus - low_surplus)
        new, surplus = best(price)
        least = min(least, new + price * surplus)
        if new + price * surplus <= low + price * low_surplus + 1e-12 * (1 + abs(low)):
            break
        if surplus < 0:
            low, low_surplus = new, surplus
        else:
            high, high_surplus = new, surplus
    return least
