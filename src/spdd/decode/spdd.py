"""SPDD, and the two decoders that are its ends: plain greedy, and a quota filled at the last moment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..objective import Objective
from ..relevance import LOG_SCALES
from ..slate import Slate
from .decoder import Decoder, Settings
from .order import check_lift
from .traffic import Traffic
from .warm import is_binary, traffic_prices, warm_prices

# The price, in nats, from which models are decoded on log scales unless told otherwise: measured on two data sets
# (docs/defaults.md). A price that meets the floor by itself would move the context of everything that follows.
MODEL_START = 0.3


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
    start:  the first price: "warm" (the smallest that would do if scores stood still), a number, or "auto": warm
            for `rerank`, where it is optimal, and for `generate` what measured best there (MODEL_START)
    rate:   how fast prices move; 0 keeps them
    guard:  never end short of a target that could have been kept
    pace:   what a choice is compared with: "even" (target / slots) or "remaining" (missing / slots left)
    lift:   None leaves items in the order they were chosen; a number sorts the finished slate by the model's first scores plus
            so much per unit of value: the same items, those of the objectives further up (below 0: further down)
    traffic_rate: how fast the shared prices of per="traffic" objectives move after a batch

    The paper's Algorithm 1 is `SPDD(objectives, slots, scale="probability", start=1.0, rate=1.0, guard=False)`.
    """

    objectives: Sequence = ()
    slots: int = 10
    scale: str = "logit"
    start: Any = "auto"
    rate: Any = 0.3
    guard: bool = True
    pace: str = "even"
    traffic_rate: float = 0.5
    trace: bool = False
    lift: float | None = None
    traffic: Traffic = field(init=False, repr=False)

    def __post_init__(self):
        super().__post_init__()
        if self.start not in ("auto", "warm"):
            self.start = _number(self.start, "start", 'a number, "warm" or "auto"')
        self.rate = _number(self.rate, "rate", "a number")
        self.traffic_rate = _number(self.traffic_rate, "traffic_rate", "a number")
        self.lift = check_lift(self.lift, self.objectives)
        if self.pace not in ("even", "remaining"):
            raise ValueError(f"`pace` must be 'even' or 'remaining', got {self.pace!r}.")
        if not isinstance(self.guard, bool):
            raise TypeError(f"`guard` must be True or False, got {self.guard!r}.")
        self.traffic = Traffic(*self._traffic_promises())
        self._held: list[torch.Tensor] | None = None  # what slates gained in `one_batch`

    @contextlib.contextmanager
    def one_batch(self) -> Iterator[None]:
        """A context in which shared prices stand still: slates of several calls count as one batch, which ends with it."""
        self._held = held = []
        try:
            yield
        finally:
            self._held = None
        if held:
            self._learn(torch.cat(held))

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
        shared = [p for p, o in enumerate(self._promised_by()) if o.in_traffic]  # promises whose price all rows share
        column, sign = problem.promises.column, problem.promises.sign
        start = self._start(view)
        if isinstance(start, str):
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
                    self.guard,
                )
                if not self.guard:
                    prices = prices.clamp_min(1e-6)  # a multiplicative step cannot leave 0
        else:
            prices = torch.full_like(target, start)
        if shared and len(target):
            if not self.traffic.price:
                first = self._first_shared(shared, prices, target, view, column, sign)
                self.traffic = self.traffic.begun(first, _unit(view, self.slots))
            prices[:, shared] = torch.tensor(self.traffic.price, dtype=torch.float64, device=prices.device)
        return prices

    def ceiling(self, initial, view):
        # Where the guard keeps the promise, a price above the static optimum's only buys more than was asked.
        capped = self.guard and self._start(view) == "warm"
        ceiling = initial.clone() if capped else torch.full_like(initial, torch.inf)
        ceiling[:, [p for p, o in enumerate(self._promised_by()) if o.in_traffic]] = torch.inf
        return ceiling

    def polished(self, value):
        mine = [o for o in self.objectives if o.at_least is not None or o.at_most is not None]
        if (
            not self.guard
            or self.start not in ("auto", "warm")
            or any(o.in_traffic or o.depends_on_slate for o in mine)
        ):
            return False
        # For one floor or cap on 0/1 values the warm price is exact: there is nothing to gain.
        return len(self._promised_by()) > 1 or (len(mine) == 1 and not is_binary(value[self.objectives.index(mine[0])]))

    def served(self, slate: Slate) -> Slate:
        if self.traffic.promises and len(slate):
            if self._held is None:
                self._learn(slate.gained)
            else:
                self._held.append(slate.gained.cpu())
        return slate

    def _learn(self, gained: torch.Tensor) -> None:
        """Move the shared prices. gained: (R, C) of a batch of slates"""
        names, mean = [o.name for o in self.objectives], gained.mean(0).tolist()
        kept = [mean[names.index(promise.rsplit(" ", 1)[0])] for promise in self.traffic.promises]
        self.traffic = self.traffic.moved(kept, len(gained), [self.traffic_rate] * len(kept))

    def _start(self, view) -> float | str:
        if self.start != "auto":
            return self.start
        return MODEL_START if not view.static and self.scale in LOG_SCALES else "warm"

    def _first_shared(self, shared, prices, target, view, column, sign):
        # A price all rows share is read off the first batch unless a number is given: MODEL_START is about floors that a
        # guard keeps, and traffic would take many batches to get from there to a large target (docs/traffic.md).
        if isinstance(self.start, float):
            return prices[0, shared].tolist()
        goal = torch.tensor(self.traffic.target, dtype=torch.float64, device=target.device)
        picked = [column[p] for p in shared]
        return traffic_prices(view.relevance, view.value, view.open, goal, picked, sign[shared], self.slots).tolist()

    def _promised_by(self) -> list[Objective]:
        """The objective of each promise, in order."""
        return [o for o in self.objectives for target in (o.at_least, o.at_most) if target is not None]

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
