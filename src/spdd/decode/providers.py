"""Fairness among those who provide the items, over all slates served: the worst-off provider's exposure is raised.

After P-MMF (Xu et al. 2023): (1 - w) · relevance + w · min_p share_p / weight_p, summed over traffic, is maximised
online. The minimum is the least of sum_p q_p · share_p / weight_p over distributions q, so q_p / weight_p is the price
that rows share, and after every batch a mirror step moves q towards providers with little exposure. Unlike P-MMF,
traffic has no known end here, so there is no budget to run out of; and the mirror is entropy, which needs no projection.
What is learnt outlives a catalogue: it is kept under the providers' names, and goes on with those that are still there.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
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

    providers: (M,), or (R, M) for one line per row: the provider of each item, any whole numbers; -1 is no provider,
               with neither price nor exposure
    weights:   the exposure each provider is due, in ascending order of its number; None for all the same.
               `numpy.unique(providers, return_counts=True)[1]` makes it due in proportion to its items.
               Or {name: weight}, where a provider that is not named is due 1
    names:     what providers are called in `exposure` and in a saved state, in ascending order of their numbers, so that
               it does not matter how another catalogue numbers them; None for the numbers themselves
    weight:    w in [0, 1)
    rate:      how far the prices move after a batch
    momentum:  how much of the last step goes into the next, in [0, 1)

    Before the first batch all prices are 0, which is greedy decoding. `exposure` says what has been learnt.
    """

    weight: float = 0.5
    providers: Any = field(kw_only=False, repr=False)
    weights: Any = field(default=None, repr=False)
    names: Sequence[str] | None = field(default=None, repr=False)
    rate: float = 0.1
    momentum: float = 0.5
    exposure: Exposure = field(init=False, repr=False)

    def __post_init__(self):
        super().__post_init__()
        in_range(self.rate, "rate", 0, math.inf, "a number, finite and not negative")
        in_range(self.momentum, "momentum", 0, 1, "a number in [0, 1)")
        labels, known = number_groups(self.providers, "providers")
        if not len(known):
            raise ValueError(
                f"`providers` must be one number per item, not all of them -1, got shape {tuple(labels.shape)}."
            )
        self._number, self._placed = known, Placed(labels)
        self._held: tuple[np.ndarray, int] | None = None  # slots shown and slates served in `one_batch`
        self.exposure = Exposure.begun(_called(self.names, known.tolist()), self.weights)

    def bind(self, values: Mapping[str, Any], *, providers: Any = None) -> ProviderMaxMin:
        """As for every decoder; and with other items, if their `providers` are given, (M,) or (R, M) of known numbers."""
        placed = self._placed
        if providers is not None:
            given, found = number_groups(providers, "providers")
            strange = found[~torch.isin(found, self._number.to(found.device))]
            if len(strange):
                raise ValueError(
                    f"`providers` must be -1 or one of the {len(self._number)} numbers the decoder began with, got "
                    f"{int(strange[0])}. Begin with all there are, and `load` what was learnt."
                )
            numbers = torch.searchsorted(self._number.to(found.device), found)
            placed = Placed(torch.cat([numbers, numbers.new_tensor([len(self._number)])])[given])
        super().bind(values)
        self._placed = placed
        return self

    @contextlib.contextmanager
    def one_batch(self) -> Iterator[None]:
        """A context in which prices stand still: slates of several calls count as one batch, which ends with it."""
        self._held = (np.zeros(len(self.exposure.provider), dtype=np.int64), 0)
        try:
            yield
            shown, rows = self._held
        finally:
            self._held = None
        if rows:
            self.exposure = self.exposure.moved(shown.tolist(), rows, self.rate, self.momentum)

    def save(self, path: str | Path) -> None:
        """Keep what traffic has taught, whole or not at all."""
        self.exposure.save(path)

    def load(self, path: str | Path) -> ProviderMaxMin:
        """Go on from a saved state, of this catalogue or an earlier one. Returns the decoder.

        Providers the state knows keep their prices, by name; new ones start at 0, the price of one that does averagely;
        those no longer here are remembered in `exposure.away`, for the day they are back.
        """
        self.exposure = self.exposure.load(path)
        return self

    # ---- what the machine asks -----------------------------------------------------------------------------

    def served(self, slate):
        if len(slate):
            (labels,) = self._placed.on(slate.items)
            placed = labels.expand(len(slate), -1).gather(1, slate.items.clamp_min(0))[slate.items >= 0]
            shown = placed.bincount(minlength=len(self.exposure.provider) + 1)[:-1]
            if self._held is None:
                self.exposure = self.exposure.moved(shown.tolist(), len(slate), self.rate, self.momentum)
            else:
                self._held = (self._held[0] + shown.cpu().numpy(), self._held[1] + len(slate))
        return slate

    def _shape(self):
        return tuple(self._placed.first[0].shape)

    def _bonus(self):
        price = self._price * torch.tensor([*self.exposure.price, 0.0], dtype=torch.float64)
        gain: list[Tensor] = []  # (M,) or (R, M), looked up once for all slots

        def bonus(chosen: Tensor, filled: int | None = None) -> Tensor:
            if not gain:
                gain.append(price.to(chosen.device)[self._placed.on(chosen)[0]])
            return gain[0].expand(len(chosen), -1)

        return bonus


@dataclass(frozen=True)
class Exposure:
    """What has been shown so far, and the prices that follow. One entry a provider; everything is plain numbers.

    provider: its name, or else its number, ascending by number
    weight: exposure it is due, of all that providers get; they sum to 1
    dual:   q, what each provider's exposure counts in the minimum; they sum to 1 after every batch
    pull:   share / weight, averaged over the latest batches by the momentum
    shown:  slots filled with its items
    away:   providers of earlier catalogues that are not in this one: (name, price, pull, shown) as they left. They
            take no part: nothing of theirs can be shown, so they would only draw all of q to themselves
    """

    provider: tuple[int | str, ...]
    weight: tuple[float, ...]
    dual: tuple[float, ...]
    pull: tuple[float, ...]
    shown: tuple[int, ...]
    slates: int = 0
    batches: int = 0
    away: tuple[tuple[int | str, float, float, int], ...] = ()

    @classmethod
    def begun(cls, provider: Sequence[int | str], weights: Any) -> Exposure:
        due = np.ones(len(provider))
        if isinstance(weights, Mapping):
            weights = [weights.get(name, 1.0) for name in provider]
        if weights is not None:
            try:
                due = np.asarray(weights.cpu() if isinstance(weights, Tensor) else weights, dtype=np.float64)
            except (TypeError, ValueError):
                raise TypeError(f"`weights` must be numbers, one per provider, got {type(weights).__name__}.") from None
        if due.shape != (len(provider),) or not np.all(np.isfinite(due)) or not np.all(due > 0):
            raise ValueError(
                f"`weights` must be one number above 0 for each of the {len(provider)} providers, got shape {due.shape}"
                f"{f' with smallest {due.min():g}' if due.size else ''}. For no provider at all, give its items -1 (no label, in a table)."
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
        """What `path` holds, for the providers of this one. See `ProviderMaxMin.load`."""
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
            kind = isinstance(found, dict) and (found.pop("kind", None), found.pop("version", None))
            if kind != ("spdd providers", 1):
                raise ValueError("it is not a state of providers")
            lists = (tuple(found[k]) for k in ("provider", "weight", "dual", "pull", "shown"))
            away = tuple(map(tuple, found.get("away", ())))
            loaded = Exposure(*lists, slates=found["slates"], batches=found["batches"], away=away)
            loaded.check()
        except (KeyError, TypeError, ValueError) as error:
            what = f"it has no {error}" if isinstance(error, KeyError) else error
            raise ValueError(
                f"state of providers '{path}' cannot be read: {what}. Start again without it, or restore a good copy."
            ) from None
        if not set(map(str, self.provider)) & {*map(str, loaded.provider), *(str(name) for name, *_ in loaded.away)}:
            raise ValueError(
                f"state of providers '{path}' belongs to other providers: it holds {_some(loaded.provider)}, none of "
                f"which this decoder has, {_some(self.provider)}. Load one that was saved for the same labels, or "
                "start again without it."
            )
        return self.after(loaded)

    def after(self, learnt: Exposure) -> Exposure:
        """What was learnt, for the providers and weights of this one."""
        names = [str(name) for name in self.provider]  # a number may come back as text, from a table say
        at = {str(name): i for i, name in enumerate(learnt.provider)}
        away = {str(name): entry for name, *entry in learnt.away}
        # Of the providers of both. Where only the catalogue differs, all their weights differ by this factor. Where the
        # weights were changed on purpose, q stays and the prices follow.
        now = sum(due for name, due in zip(names, self.weight, strict=True) if name in at)
        then = sum(learnt.weight[at[name]] for name in names if name in at)
        factor = 1.0 if at.keys() == {*names} else now / max(then, math.ulp(0))
        dual, pull, shown = [], [], []
        for name, due in zip(names, self.weight, strict=True):
            if name in at:
                i = at[name]
                known = (learnt.dual[i] * factor, learnt.pull[i], learnt.shown[i])
            elif name in away:
                price, *rest = away[name]
                known = ((1 + price) * due, *rest)
            else:
                known = (due, 1.0, 0)
            for part, number in zip((dual, pull, shown), known, strict=True):
                part.append(number)
        left = zip(learnt.provider, learnt.price, learnt.pull, learnt.shown, strict=True)
        here = set(names)
        gone = tuple(entry for entry in (*learnt.away, *left) if str(entry[0]) not in here)
        return Exposure(
            self.provider, self.weight, tuple(dual), tuple(pull), tuple(shown), learnt.slates, learnt.batches, gone
        )

    def check(self) -> None:
        """A ValueError says what is impossible about it."""
        lists = (self.provider, self.weight, self.dual, self.pull, self.shown)
        if not all(isinstance(x, tuple) for x in lists) or len({len(x) for x in lists}) != 1:
            raise ValueError("its lists differ in length")
        if not all(len(entry) == 4 for entry in self.away):
            raise ValueError("its `away` must hold a name and three numbers for each provider")
        names = [*self.provider, *(entry[0] for entry in self.away)]
        if not all(isinstance(name, (int, str)) for name in names) or len({*map(str, names)}) != len(names):
            raise ValueError("its providers must be numbers or names, each of them once")
        left = [x for _, *entry in self.away for x in entry]
        numbers = [*(x for part in lists[1:] for x in part), *left, self.slates, self.batches]
        if not all(isinstance(x, (int, float)) and math.isfinite(x) for x in numbers):
            raise ValueError("it holds something that is not a finite number")
        if min(self.weight) <= 0 or min(self.dual) <= 0 or min(self.pull) < 0 or min(self.shown) < 0:
            raise ValueError("it holds a negative number")
        if any(price <= -1 or pull < 0 or shown < 0 for _, price, pull, shown in self.away):
            raise ValueError("it holds a negative number")


def _called(names: Any, numbers: list[int]) -> Sequence[int | str]:
    """What providers are called."""
    if names is None:
        return numbers
    if len(names) != len(numbers) or len(set(names)) != len(names) or not all(isinstance(n, str) for n in names):
        raise ValueError(
            f"`names` must be a text for each of the {len(numbers)} providers, no two alike, got {len(names)}, "
            f"of them {len(set(names))} different."
        )
    return names


def _some(provider: tuple[int | str, ...]) -> str:
    names = ", ".join(map(str, provider[:5]))
    return f"{len(provider)} ({names}{', ...' if len(provider) > 5 else ''})"
