"""Fixed-weight rivals: WA adds a weight inside the loop, EPR re-orders a finished, longer slate.

Both weigh (1 - w) · relevance + w · value, which orders items as relevance + w / (1 - w) · value does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..slate import Slate
from . import primal_dual
from .decoder import Decoder, Settings, _all, _best_of_groups, _renamed
from .search import View, run
from .spdd import Greedy


@dataclass(eq=False)
class WA(Decoder):
    """Online weighted average: the same weight in every slot of every slate.

    weight: in [0, 1) for all objectives together split evenly, or one per objective with a sum below 1; an objective
            with only a cap is weighed against
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


@dataclass(eq=False)
class EPR(WA):
    """Ex-post re-ranking: the model fills a longer list by itself, which is then re-ordered by weighted average and cut.

    pool: items the model generates before any objective has a say; as many as there are where there are fewer

    Relevance is what it was when the model chose the item; ties go to the earlier one. What can be reached is said
    of all items, not of the pool, so a target that only the pool cannot keep is SHORT, not IMPOSSIBLE.
    """

    pool: int = 100

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.pool, bool) or not isinstance(self.pool, int | np.integer) or self.pool < self.slots:
            raise ValueError(f"`pool` must be a whole number of at least `slots` ({self.slots}), got {self.pool!r}.")

    def _static(self, logits, eligible, sampling, trace) -> Slate:
        begun = self._begin_whole(logits, eligible)
        return self._reorder(*begun, self._plain(logits)._static(logits, eligible, sampling, False), trace)

    def _autoregressive(self, model, model_state, logits, eligible, sampling, trace) -> Slate:
        begun = self._begin_whole(logits, eligible)
        plain = self._plain(logits)._autoregressive(model, model_state, logits, eligible, sampling, False)
        return self._reorder(*begun, plain, trace)

    def _plain(self, logits) -> Greedy:
        return Greedy(slots=min(int(self.pool), logits.shape[1]), scale=self.scale)

    def _begin_whole(self, logits, eligible):
        """Problem, reach and state over all items of a row, before anything is generated."""
        value, groups = self._values(logits)
        view = View(logits, value, _all(eligible, logits), None)
        if groups is not None and 2 * self.slots * len(groups.level) <= logits.shape[1]:
            best, items, near = _best_of_groups(logits, groups, self.slots, eligible)
            view = View(best, near, items >= 0, items)
        return self._begin(value, eligible, view)

    def _reorder(self, problem, reach, state, plain, trace) -> Slate:
        """The best of the finished list, in a problem whose items are its places: of equals, the earlier wins."""
        found, items = plain.items >= 0, plain.items.clamp_min(0)  # (R, pool)
        value = problem.value.expand(-1, len(items), -1).gather(2, items.expand(len(problem.value), -1, -1))

        def at_places(function):
            def value(chosen):
                return function(items.gather(1, chosen.clamp_min(0)).where(chosen >= 0, -1)).gather(1, items)

            return value

        moving = tuple((c, at_places(function)) for c, function in problem.moving)
        places = problem._replace(value=value, moving=moving, eligible=found)
        worth = plain.relevance.masked_fill(~found, 0)

        def look(state) -> View:
            return View(worth, primal_dual.value_now(places, state), primal_dual.open_items(places, state), None)

        state, steps = run(places, state, look, lambda chosen, place: None, trace=trace)
        return self._pack(problem, reach, state, _renamed(steps, items))


def prices_of(weight: Any, objectives: int) -> list[float]:
    """The price each objective has under these weights: w / (1 - sum of w)."""
    try:
        weights = np.asarray(weight, dtype=np.float64)
    except (TypeError, ValueError):
        weights = np.asarray(np.nan)  # refused below, with everything else that is no weight
    if weights.ndim == 0:
        weights = np.full(objectives, weights / max(objectives, 1))
    if weights.shape != (objectives,) or not np.all(weights >= 0) or not weights.sum() < 1:
        raise ValueError(
            f"`weight` must be one number in [0, 1), or one per objective ({objectives}) with a sum below 1, got {weight!r}."
        )
    return (weights / (1 - weights.sum())).tolist()
