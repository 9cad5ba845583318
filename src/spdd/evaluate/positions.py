"""Where things stand: per slot, how many items of the objective there are and how many items are consumed."""

from __future__ import annotations

import numpy as np

from .bootstrap import redrawn
from .metrics import Outcome, Ratio

NAMES = ("share", "consumption", "objective_consumption")


def by_position(outcome: Outcome, draws: np.ndarray | None = None) -> dict[str, dict[str, list[float]]]:
    """For each of NAMES: `value`, and with draws `low` and `high` (95 %), one number per slot.

    share: value of the items in the slot.  consumption: share of users who consumed what stands there.
    objective_consumption: the same of items that have value

    >>> both = np.array([[True, False]])
    >>> by_position(Outcome(both, both.astype(float), both | True))["share"]
    {'value': [1.0, 0.0]}
    """
    own = outcome.hit & (outcome.value > 0)
    found = {}
    for name, column in zip(NAMES, (outcome.value, outcome.hit, own), strict=True):
        metric = Ratio(column.T.astype(np.float64), np.ones_like(column.T, dtype=np.float64))  # (K, U)
        found[name] = {"value": metric.value().tolist()}
        if draws is not None:
            low, high = np.percentile(redrawn(metric, draws), [2.5, 97.5], axis=0)
            found[name] |= {"low": low.tolist(), "high": high.tolist()}
    return found
