"""SPDD, and the two decoders that are its ends: plain greedy, and a quota filled at the last moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..slate import Slate
from .decoder import Decoder, Settings
from .traffic import Traffic
from .warm import traffic_prices, warm_prices


@dataclass(eq=False)
class Greedy(Decoder):
    """The model's own slate. Objectives given here are only counted."""


@dataclass(eq=False)
class MustFill(Decoder):
    """A quota: the model's own slate until the guard forces items in to keep the targets."""

    def settings(self, rows):
        return Settings(guard=True)


@dataclass(eq=False)
class SPDD(Decoder):
    """Stochastic primal-dual decoding: every floor and cap has a price that moves after each choice.

    objectives: what slates should have; floors and caps of each
    slots:  items per slate
    scale:  how relevance is expressed before prices are added; see `spdd.SCALES`
    start:  the first price: "warm" (the smallest that would do if scores stood still) or a number
    rate:   how fast prices move; 0 keeps them
    guard:  never end short of a target that could have been kept
    pace:   what a choice is compared with: "even" (target / slots) or "remaining" (missing / slots left)
    traffic_rate: how fast the shared prices of per="traffic" objectives move after a batch

    The paper's Algorithm 1 is `SPDD(objectives, slots, scale="probability", start=1.0, rate=1.0, guard=False)`.
    """

    objectives: Sequence = ()
    slots: int = 10
    scale: str = "logit"
    start: Any = "warm"
    rate: Any = 0.1
    guard: bool = True
    pace: str = "even"
    traffic_rate: float = 0.5
    trace: bool = False
    traffic: Traffic = field(init=False, repr=False)

    def __post_init__(self):
        super().__post_init__()
        if self.start != "warm":
            self.start = _number(self.start, "start", 'a number, or "warm"')
        self.rate = _number(self.rate, "rate", "a number")
        self.traffic_rate = _number(self.traffic_rate, "traffic_rate", "a number")
        if self.pace not in ("even", "remaining"):
            raise ValueError(f"`pace` must be 'even' or 'remaining', got {self.pace!r}.")
        if not isinstance(self.guard, bool):
            raise TypeError(f"`guard` must be True or False, got {self.guard!r}.")
        self.traffic = Traffic(*self._traffic_promises())

    def save(self, path: str | Path) -> None:
        """Keep what traffic has taught (the shared prices), whole or not at all."""
        self.traffic.save(path)

    def load(self, path: str | Path) -> SPDD:
        """Go on from a saved state. Returns the decoder."""
        self.traffic = self.traffic.load(path)
        return self

    def settings(self, rows):
        return Settings("targets", self.rate, self.pace, self.guard)

    def first_prices(self, problem, target, view):
        shared = self._shared(problem)
        column, sign = problem.promises.column, problem.promises.sign
        if self.start == "warm":
            prices = torch.zeros_like(target)
            own = [p for p in range(len(column)) if p not in shared]
            if own:
                prices[:, own] = warm_prices(
                    view.relevance,
                    view.value,
                    view.open,
                    target[:, own],
                    [column[p] for p in own],
                    sign[own],
                    self.slots,
                )
                if not self.guard:
                    prices = prices.clamp_min(1e-6)  # a multiplicative step cannot leave 0
        else:
            prices = torch.full_like(target, self.start)
        if shared:
            if not self.traffic.price:
                first = self._first_shared(shared, prices, target, view, column, sign)
                self.traffic = self.traffic.begun(first, _unit(view, self.slots))
            prices[:, shared] = torch.tensor(self.traffic.price, dtype=torch.float64, device=prices.device)
        return prices

    def ceiling(self, problem, initial):
        # Where the guard keeps the promise, a price above the static optimum's only buys more than was asked.
        capped = self.guard and self.start == "warm"
        ceiling = initial.clone() if capped else torch.full_like(initial, torch.inf)
        ceiling[:, self._shared(problem)] = torch.inf
        return ceiling

    def served(self, slate: Slate) -> Slate:
        if self.traffic.promises and len(slate):
            names = [o.name for o in self.objectives]
            gained = slate.gained.mean(0).tolist()
            mean, rate = [], []
            for promise in self.traffic.promises:
                c = names.index(promise.rsplit(" ", 1)[0])
                mean.append(gained[c])
                rate.append(self.traffic_rate)
            self.traffic = self.traffic.moved(mean, len(slate), rate)
        return slate

    def _first_shared(self, shared, prices, target, view, column, sign):
        if self.start != "warm":
            return prices[0, shared].tolist()
        goal = torch.tensor(self.traffic.target, dtype=torch.float64, device=target.device)
        picked = [column[p] for p in shared]
        return traffic_prices(view.relevance, view.value, view.open, goal, picked, sign[shared], self.slots).tolist()

    def _shared(self, problem) -> list[int]:
        """Promises whose price all rows share."""
        return [p for p, c in enumerate(problem.promises.column) if self.objectives[c].in_traffic]

    def _traffic_promises(self):
        names, targets = [], []
        for o in self.objectives:
            for word, target in zip(("at_least", "at_most"), o.targets(self.slots), strict=True):
                if o.in_traffic and target is not None:
                    names.append(f"{o.name} {word}")
                    targets.append(float(target))
        return tuple(names), tuple(targets)


def _unit(view, slots: int) -> float:
    """What a price is measured in: the spread of relevance over a plain slate, averaged over rows."""
    best = view.relevance.masked_fill(~view.open, -torch.inf).topk(min(slots + 1, view.relevance.shape[1]), 1).values
    least = best.masked_fill(torch.isinf(best), torch.inf).amin(1)
    spread = (best[:, 0] - least).nan_to_num(0.0, 0.0, 0.0).mean().item()
    return spread if spread > 0 else 1.0


def _number(given: Any, name: str, what: str) -> float:
    if isinstance(given, (bool, str)) or not isinstance(given, int | float | np.number) or not 0 <= given < np.inf:
        raise ValueError(f"`{name}` must be {what}, finite and not negative, got {given!r}.")
    return float(given)
