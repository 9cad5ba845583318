"""How good slates were: what users consumed of them, what the objective got, and whether targets were kept.

Every metric is a ratio of two sums over users, kept as two numbers per user until the end, because users are what is
resampled (`bootstrap.py`) and because a mean over those users who have something to find is a ratio too. A slate is
judged by what its user did later: consumption counts all of it, the objective's metrics only what has value.

Letters: U users, K slots, P policies. All functions take any axes in front of (U, K), so many policies go in at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..objective import TOLERANCE


class Ratio(NamedTuple):
    """A metric before it is summed over users: its value is sum(top) / sum(bottom). Both (..., U)."""

    top: np.ndarray
    bottom: np.ndarray

    def value(self) -> np.ndarray:
        """(...) the metric; nan where no user has anything to say."""
        return divided(self.top.sum(-1), self.bottom.sum(-1))


class Truth(NamedTuple):
    """What users did after the moment their slates are for.

    relevant: (U,) how many known items they consumed.  wanted: (U,) how many of those have value for the objective
    """

    relevant: np.ndarray
    wanted: np.ndarray


class Outcome(NamedTuple):
    """What became of slates.

    hit:   (..., U, K) bool, whether the user consumed the item later.  value: (..., U, K) what it gives the objective
    filled: (..., U, K) bool, whether there is an item at all
    """

    hit: np.ndarray
    value: np.ndarray
    filled: np.ndarray


def truth_of(targets: np.ndarray, value: np.ndarray) -> Truth:
    """What there is to find. targets: (U, T) distinct items consumed later, -1 for none.  value: (M,) or (U, M)

    >>> truth_of(np.array([[2, 0], [1, -1]]), np.array([0, 0, 1]))
    Truth(relevant=array([2, 1]), wanted=array([1, 0]))
    """
    there = targets >= 0
    return Truth(there.sum(1), (there & (given(value, targets) > 0)).sum(1))


def outcome_of(items: np.ndarray, targets: np.ndarray, value: np.ndarray) -> Outcome:
    """What became of slates. items: (U, K), -1 for an empty slot.  targets, value: as for `truth_of`

    >>> outcome_of(np.array([[2, 1, -1]]), np.array([[0, 2]]), np.array([0, 0, 1])).hit
    array([[ True, False, False]])
    """
    filled = items >= 0
    # One number per user and item, so that membership is one look-up for all users together.
    width = int(max(items.max(initial=0), targets.max(initial=0))) + 1
    user = np.arange(len(items))[:, None] * width
    hit = filled & np.isin(user + items, (user + targets)[targets >= 0])
    return Outcome(hit, given(value, items).astype(np.float32), filled)


def given(value: np.ndarray, items: np.ndarray) -> np.ndarray:
    """(U, K) what items (U, K) give; 0 for -1. value: (M,) or (U, M)"""
    value = np.asarray(value)
    at = items.clip(0)
    found = value[at] if value.ndim == 1 else np.take_along_axis(value, at, 1)
    return np.where(items >= 0, found, 0)


def measure(outcome: Outcome, truth: Truth, floor: Any = None) -> dict[str, Ratio]:
    """Every metric by name.

    ndcg, precision:        of what was consumed
    objective_ndcg, objective_precision: of what was consumed and has value; ndcg over users who have any to find
    stream_share:           consumed items with value / consumed items, over all users together
    share:                  value per slot, shown whether consumed or not
    attained, shortfall:    share of slates that meet the floor, and the value they miss on average; with a floor alone

    floor: value units per slate, one number or (U,)
    """
    own = outcome.hit & (outcome.value > 0)
    everyone = np.ones(outcome.hit.shape[:-1])
    slots = outcome.hit.shape[-1]
    found = {
        "ndcg": ndcg(outcome.hit, truth.relevant),
        "objective_ndcg": ndcg(own, truth.wanted),
        "precision": precision(outcome.hit),
        "objective_precision": precision(own),
        "stream_share": Ratio(own.sum(-1).astype(float), outcome.hit.sum(-1).astype(float)),
        "share": Ratio(outcome.value.sum(-1, dtype=np.float64) / slots, everyone),
    }
    if floor is not None:
        missing = shortfall(outcome.value.sum(-1, dtype=np.float64), floor)
        found["attained"] = Ratio((missing == 0).astype(float), everyone)
        found["shortfall"] = Ratio(missing, everyone)
    return found


def ndcg(hit: np.ndarray, relevant: np.ndarray) -> Ratio:
    """NDCG of slates with 0/1 gains, over users who have something to find.

        sum over slots k of hit_k / log2(1 + k),  over the same sum of the best slate

    hit: (..., U, K) bool.  relevant: (U,) how many items there are to find

    >>> ndcg(np.array([[False, True], [False, False]]), np.array([1, 0])).value().round(3)
    np.float64(0.631)
    """
    discount = 1 / np.log2(np.arange(2, hit.shape[-1] + 2))
    best = np.concatenate([[0.0], discount.cumsum()])[np.minimum(relevant, hit.shape[-1])]
    there = np.broadcast_to(relevant > 0, hit.shape[:-1])
    return Ratio(divided(hit @ discount, best, 0.0) * there, there.astype(float))


def precision(hit: np.ndarray) -> Ratio:
    """Consumed items / slots."""
    return Ratio(hit.mean(-1), np.ones(hit.shape[:-1]))


def shortfall(gained: np.ndarray, floor: Any) -> np.ndarray:
    """Value missing to the floor, per slate; 0 within rounding. gained: (..., U)

    >>> shortfall(np.array([2.0, 3.0, 4.0]), 3)
    array([1., 0., 0.])
    """
    floor = np.asarray(floor, dtype=np.float64)
    missing = floor - gained
    return np.where(missing <= TOLERANCE * np.abs(floor), 0.0, missing)


def divided(top: np.ndarray, bottom: np.ndarray, otherwise: float = np.nan) -> np.ndarray:
    top, bottom = np.broadcast_arrays(np.asarray(top, dtype=np.float64), bottom)
    return np.divide(top, bottom, out=np.full(top.shape, otherwise), where=bottom != 0)
