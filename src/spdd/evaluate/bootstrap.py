"""How sure a number is: users are drawn again, with replacement, and the number is taken anew.

One set of draws serves every policy that was tried on the same users, so differences are paired: what makes a user easy
or hard for all policies cancels. Intervals are percentiles of the draws.

Letters: U users, D draws, P policies.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .metrics import Ratio, divided

DRAWS = 1000


class Known(NamedTuple):
    """A number, its 95 % interval, and how likely it is not above 0: the two-sided p-value of "it is 0"."""

    value: float
    low: float
    high: float
    p_value: float

    def __str__(self) -> str:
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


def draw_users(users: int, draws: int = DRAWS, seed: int = 0) -> np.ndarray:
    """(D, U) float32, how often each user is in each draw. The same for the same numbers.

    >>> draw_users(4, draws=2).sum(1)
    array([4., 4.], dtype=float32)
    """
    random = np.random.default_rng(seed)
    counts = np.zeros((draws, users), dtype=np.float32)
    for row in counts:
        row[:] = np.bincount(random.integers(0, users, users), minlength=users)
    return counts


def redrawn(metric: Ratio, draws: np.ndarray) -> np.ndarray:
    """(D, ...) the metric in each draw. metric: (..., U)"""
    top, bottom = (_weighed(part, draws) for part in metric)
    return divided(top, bottom)


def known(metric: Ratio, draws: np.ndarray) -> Known:
    """One policy's metric with its interval."""
    return summary(float(metric.value()), redrawn(metric, draws))


def difference(one: Ratio, other: Ratio, draws: np.ndarray) -> Known:
    """By how much `one` is above `other`, on the same users."""
    return summary(float(one.value() - other.value()), redrawn(one, draws) - redrawn(other, draws))


def quotient(one: Ratio, other: Ratio, draws: np.ndarray) -> Known:
    """`one` / `other` on the same users; its p-value is that of "they are the same"."""
    value, found = float(divided(one.value(), other.value())), divided(redrawn(one, draws), redrawn(other, draws))
    return summary(value, found, nothing=1.0)


def summary(value: float, found: np.ndarray, nothing: float = 0.0) -> Known:
    """The value with percentiles of its draws (D,). nothing: what the p-value asks about"""
    found = found[np.isfinite(found)]
    if not len(found):
        return Known(value, np.nan, np.nan, np.nan)
    low, high = np.percentile(found, [2.5, 97.5])
    # Never 0: of D draws the rarest thing seen is one in D + 1.
    tail = min((found <= nothing).sum(), (found >= nothing).sum())
    return Known(value, float(low), float(high), float(min(1.0, 2 * (tail + 1) / (len(found) + 1))))


def _weighed(part: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """(D, ...) sums over users, each as often as drawn."""
    flat = np.asarray(part, dtype=np.float32).reshape(-1, part.shape[-1])
    return (draws @ flat.T).astype(np.float64).reshape(len(draws), *part.shape[:-1])
