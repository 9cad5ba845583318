"""Fixed-weight rivals: WA adds a weight inside the loop, EPR re-orders a finished, longer slate.

Both weigh (1 - w) · relevance + w · value, which orders items as relevance + w / (1 - w) · value does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..slate import Slate
from .decoder import Decoder, Settings


@dataclass(eq=False)
class WA(Decoder):
    """Online weighted average: the same weight in every slot of every slate.

    weight: in [0, 1) for all objectives together split evenly, or one per objective with a sum below 1
    """

    objectives: Sequence = ()
    slots: int = 10
    weight: Any = 0.3
    scale: str = "logit"
    trace: bool = False

    def __post_init__(self):
        super().__post_init__()
        self._prices = prices_of(self.weight, len(self.objectives))

    def settings(self, rows):
        return Settings("objectives")

    def first_prices(self, problem, target, view):
        return torch.tensor(self._prices, dtype=torch.float64, device=target.device).expand(len(target), -1)


def prices_of(weight: Any, objectives: int) -> list[float]:
    """The price each objective has under these weights: w / (1 - sum of w)."""
    weights = np.asarray(weight, dtype=np.float64)
    if weights.ndim == 0:
        weights = np.full(objectives, weights / max(objectives, 1))
    if weights.shape != (objectives,) or not np.all(weights >= 0) or not weights.sum() < 1:
        raise ValueError(
            f"`weight` must be one number in [0, 1), or one per objective ({objectives}) with a sum below 1, got {weight!r}."
        )
    return (weights / (1 - weights.sum())).tolist()
