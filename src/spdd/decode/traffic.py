"""Targets on the average over traffic: one price per promise, shared by all rows and moved after every batch.

The price rises by rate * unit * (1 - average / target), at most by rate * unit either way, for a floor, the reverse for
a cap, and stays at or above 0. Because the steps add up, the running average comes back to the target after a shift, not only the latest
batch. Steps add, where those inside a slate multiply: a price that traffic no longer needs goes to 0 and
returns from there at once; a multiplied one takes ever longer to come back the longer it was not needed.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..files import write_atomically

MOST = 1e3  # units a price may rise to, so that a target nobody can reach does not wind it up for ever


@dataclass(frozen=True)
class Traffic:
    """What traffic has taught so far. One entry a promise, e.g. "new at_least"; everything is plain numbers.

    price: today's prices.  unit: what a price is measured in.  gained: value per slate, averaged over all served
    """

    promises: tuple[str, ...]
    target: tuple[float, ...]
    price: tuple[float, ...] = ()
    unit: float = 1.0
    gained: tuple[float, ...] = ()
    slates: int = 0
    batches: int = 0

    def begun(self, price: list[float], unit: float) -> Traffic:
        """With the first prices."""
        return replace(self, price=tuple(price), unit=unit, gained=(0.0,) * len(price))

    def moved(self, mean: list[float], rows: int, rate: list[float]) -> Traffic:
        """After a batch of `rows` slates that gained `mean` per slate."""
        price, gained = [], []
        for i, name in enumerate(self.promises):
            sign = 1 if name.endswith("at_least") else -1
            error = 1 - mean[i] / self.target[i] if self.target[i] > 0 else -mean[i]
            step = rate[i] * sign * max(-1.0, min(1.0, error))
            price.append(min(max(self.price[i] + self.unit * step, 0.0), MOST * self.unit))
            gained.append((self.gained[i] * self.slates + mean[i] * rows) / (self.slates + rows))
        return replace(
            self, price=tuple(price), gained=tuple(gained), slates=self.slates + rows, batches=self.batches + 1
        )

    def save(self, path: str | Path) -> None:
        """Write to `path` so that a crash leaves either the old file or the new one."""
        write_atomically(path, json.dumps({"kind": "spdd traffic", "version": 1, **asdict(self)}, indent=2) + "\n")

    def load(self, path: str | Path) -> Traffic:
        """What `path` holds, if it was saved for the same promises."""
        try:
            text = Path(path).read_text(encoding="utf-8")
            found = json.loads(text)
            if (
                not isinstance(found, dict)
                or found.pop("kind", None) != "spdd traffic"
                or found.pop("version", None) != 1
            ):
                raise ValueError("it is not a traffic state")
            lists = ("promises", "target", "price", "gained")
            promises, target, price, gained = (tuple(found[k]) for k in lists)
            loaded = Traffic(promises, target, price, found["unit"], gained, found["slates"], found["batches"])
            numbers = (*loaded.target, *loaded.price, loaded.unit, *loaded.gained, loaded.slates, loaded.batches)
            if not all(isinstance(x, (int, float)) and math.isfinite(x) for x in numbers):
                raise ValueError("it holds something that is not a finite number")
            if len({len(found[k]) for k in lists}) != 1 and loaded.batches:
                raise ValueError("its lists differ in length")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"traffic state '{path}' cannot be read: {error}. Start again without it, or restore a good copy."
            ) from None
        if loaded.promises != self.promises:
            raise ValueError(
                f"traffic state '{path}' belongs to other objectives: it holds {', '.join(loaded.promises) or 'none'}, "
                f"this decoder has {', '.join(self.promises) or 'none'}. Load it into the decoder that saved it."
            )
        return replace(loaded, target=self.target)  # the target may have been moved on purpose; the price follows
