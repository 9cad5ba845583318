"""Fairness among those who provide the items, over all slates served: the worst-off provider's exposure is raised.

After P-MMF (Xu et al. 2023): (1 - w) · relevance + w · min_p share_p / weight_p, summed over traffic, is maximised
online. The minimum is the least of sum_p q_p · share_p / weight_p over distributions q, so q_p / weight_p is the price
that rows share, and after every batch a mirror step moves q towards providers with little exposure. Unlike P-MMF,
traffic has no known end here, so there is no budget to run out of; and the mirror is entropy, which needs no projection.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..files import write_atomically
from ..values import Placed, number_groups
from .diversity import Diverse, in_range

SHARED = 1e-3  # part of q that always stays spread out, so that a provider long well off can come back soon


@dataclass(eq=False, kw_only=True)
class ProviderMaxMin(Diverse):
    """Provider max-min fairness: (1 - w) · relevance + w · price of the item's provider, moved after every batch.

    providers: (M,) the provider of each item, any whole numbers; -1 is no provider, with neither price nor exposure
    weights:   the exposure each provider is due, in ascending order of its number; None for all the same.
               `numpy.unique(providers, return_counts=True)[1]` makes it due in proportion to its items
    weight:    w in [0, 1)
    rate:      how far the prices move after a batch
    momentum:  how much of the last step goes into the next, in [0, 1)

    Before the first batch all prices are 0, which is greedy decoding. `exposure` says what has been learnt.
    """

    weight: float = 0.5
    providers: Any = field(kw_only=False, repr=False)
    weights: Any = field(default=None, repr=False)
    rate: float = 0.1
    momentum: float = 0.5
    exposure: Exposure = field(init=False, repr=False)

    def __post_init__(self):
        super().__post_init__()
        in_range(self.rate, "rate", 0, math.inf, "a number, finite and not negative")
        in_range(self.momentum, "momentum", 0, 1, "a number in [0, 1)")
        labels, known = number_groups(self.providers, "providers")
        if labels.dim() != 1 or not len(known):
            raise ValueError(
                f"`providers` must be one number per item, not all of them -1, got shape {tuple(labels.shape)}."
            )
        self._placed = Placed(labels)
        self.exposure = Exposure.begun(known.tolist(), self.weights)

    def save(self, path: str | Path) -> None:
        """Keep what traffic has taught, whole or not at all."""
        self.exposure.save(path)

    def load(self, path: str | Path) -> ProviderMaxMin:
        """Go on from a saved state. Returns the decoder."""
        self.exposure = self.exposure.load(path)
        return self

    # ---- what the machine asks -----------------------------------------------------------------------------

    def served(self, slate):
        if len(slate):
            (labels,) = self._placed.on(slate.items)
            shown = labels[slate.items[slate.items >= 0]].bincount(minlength=len(self.exposure.provider) + 1)
            self.exposure = self.exposure.moved(shown[:-1].tolist(), len(slate), self.rate, self.momentum)
        return slate

    def _shape(self):
        return tuple(self._placed.first[0].shape)

    def _bonus(self):
        price = Placed(self._price * torch.tensor([*self.exposure.price, 0.0], dtype=torch.float64))

        def bonus(chosen: Tensor) -> Tensor:
            return price.on(chosen)[0][self._placed.on(chosen)[0]].expand(len(chosen), -1)

        return bonus


@dataclass(frozen=True)
class Exposure:
    """What has been shown so far, and the prices that follow. One entry a provider; everything is plain numbers.

    provider: its number, ascending.  weight: exposure it is due, of all that providers get; they sum to 1
    dual:   q, what each provider's exposure counts in the minimum; they sum to 1
    pull:   share / weight, averaged over the latest batches by the momentum
    shown:  slots filled with its items
    """

    provider: tuple[int, ...]
    weight: tuple[float, ...]
    dual: tuple[float, ...]
    pull: tuple[float, ...]
    shown: tuple[int, ...]
    slates: int = 0
    batches: int = 0

    @classmethod
    def begun(cls, provider: Sequence[int], weights: Any) -> Exposure:
        due = np.ones(len(provider))
        if weights is not None:
            try:
                due = np.asarray(weights.cpu() if isinstance(weights, Tensor) else weights, dtype=np.float64)
            except (TypeError, ValueError):
                raise TypeError(f"`weights` must be numbers, one per provider, got {type(weights).__name__}.") from None
        if due.shape != (len(provider),) or not np.all(np.isfinite(due)) or not np.all(due > 0):
            raise ValueError(
                f"`weights` must be one number above 0 for each of the {len(provider)} providers, got shape {due.shape}"
                f"{f' with smallest {due.min():g}' if due.size else ''}. For no provider at all, give its items -1."
            )
        due = due / due.sum()
        count = len(provider)
        return cls(tuple(provider), tuple(due.tolist()), tuple(due.tolist()), (1.0,) * count, (0,) * count)

    @property
    def price(self) -> list[float]:
        """What an item of each provider gains: q / weight - 1, which is 0 for one that is doing averagely."""
        return [q / due - 1 for q, due in zip(self.dual, self.weight, strict=True)]

    @property
    def share(self) -> list[float]:
        """Exposure so far over the exposure due; 1 is just what is due. Its minimum is what is to be raised."""
        total = max(sum(self.shown), 1)
        return [shown / total / due for shown, due in zip(self.shown, self.weight, strict=True)]

    def moved(self, shown: list[int], rows: int, rate: float, momentum: float) -> Exposure:
        """After a batch of `rows` slates with `shown` slots for each provider."""
        due, count = np.array(self.weight), np.array(shown, dtype=np.float64)
        pull = np.array(self.pull)
        if count.sum():
            pull = momentum * pull + (1 - momentum) * count / count.sum() / due
        dual = np.array(self.dual) * np.exp(rate * (pull.min() - pull))
        dual = (1 - SHARED) * dual / dual.sum() + SHARED * due
        return replace(
            self,
            dual=tuple(dual.tolist()),
            pull=tuple(pull.tolist()),
            shown=tuple(a + b for a, b in zip(self.shown, shown, strict=True)),
            slates=self.slates + rows,
            batches=self.batches + 1,
        )

    def save(self, path: str | Path) -> None:
        """Write to `path` so that a crash leaves either the old file or the new one."""
        write_atomically(path, json.dumps({"kind": "spdd providers", "version": 1, **asdict(self)}) + "\n")

    def load(self, path: str | Path) -> Exposure:
        """What `path` holds, if it was saved for the same providers."""
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
            kind = isinstance(found, dict) and (found.pop("kind", None), found.pop("version", None))
            if kind != ("spdd providers", 1):
                raise ValueError("it is not a state of providers")
            lists = (tuple(found[k]) for k in ("provider", "weight", "dual", "pull", "shown"))
            loaded = Exposure(*lists, slates=found["slates"], batches=found["batches"])
            loaded.check()
        except (KeyError, TypeError, ValueError) as error:
            what = f"it has no {error}" if isinstance(error, KeyError) else error
            raise ValueError(
                f"state of providers '{path}' cannot be read: {what}. Start again without it, or restore a good copy."
            ) from None
        if loaded.provider != self.provider:
            raise ValueError(
                f"state of providers '{path}' belongs to other providers: it holds {_some(loaded.provider)}, this "
                f"decoder has {_some(self.provider)}. Load it into a decoder for the same catalogue."
            )
        return replace(loaded, weight=self.weight)  # what is due may have been changed on purpose; the prices follow

    def check(self) -> None:
        """A ValueError says what is impossible about it."""
        lists = (self.provider, self.weight, self.dual, self.pull, self.shown)
        if not all(isinstance(x, tuple) for x in lists) or len({len(x) for x in lists}) != 1:
            raise ValueError("its lists differ in length")
        numbers = [*(x for part in lists for x in part), self.slates, self.batches]
        if not all(isinstance(x, (int, float)) and math.isfinite(x) for x in numbers):
            raise ValueError("it holds something that is not a finite number")
        if min(self.weight) <= 0 or min(self.dual) <= 0 or min(self.pull) < 0 or min(self.shown) < 0:
            raise ValueError("it holds a negative number")


def _some(provider: tuple[int, ...]) -> str:
    names = ", ".join(map(str, provider[:5]))
    return f"{len(provider)} ({names}{', ...' if len(provider) > 5 else ''})"
