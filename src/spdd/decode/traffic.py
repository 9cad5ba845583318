"""Targets on the average over traffic: one price per promise, shared by all rows and moved after every batch.

The price is multiplied by exp(rate * (1 - average / target)) for a floor, the reverse for a cap. Because the
steps add up, the running average comes back to the target after a shift, not only the latest batch.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..files import write_atomically

REACH = 1e4  # a price stays within this factor of where it began, so that an unreachable target cannot wind it up


@dataclass(frozen=True)
class Traffic:
    """What traffic has taught so far. One entry a promise, e.g. "new at_least"; everything is plain numbers.

    price: today's prices.  initial: the first batch's.  gained: value per slate, averaged over all slates served
    """

    promises: tuple[str, ...]
    target: tuple[float, ...]
    price: tuple[float, ...] = ()
    initial: tuple[float, ...] = ()
    gained: tuple[float, ...] = ()
    slates: int = 0
    batches: int = 0

    def begun(self, price: list[float]) -> Traffic:
        """With the first prices. A multiplicative step cannot leave 0, so they start above it."""
        price = [max(p, 1e-3) for p in price]
        return replace(self, price=tuple(price), initial=tuple(price), gained=(0.0,) * len(price))

    def moved(self, mean: list[float], rows: int, rate: list[float]) -> Traffic:
        """After a batch of `rows` slates that gained `mean` per slate."""
        price, gained = [], []
        for i, name in enumerate(self.promises):
            sign = 1 if name.endswith("at_least") else -1
            error = 1 - mean[i] / self.target[i] if self.target[i] > 0 else -mean[i]
            step = rate[i] * sign * max(-1.0, min(1.0, error))
            span = math.log(REACH)
            moved = math.log(self.price[i] / self.initial[i]) + step
            price.append(self.initial[i] * math.exp(max(-span, min(span, moved))))
            gained.append((self.gained[i] * self.slates + mean[i] * rows) / (self.slates + rows))
        return replace(self, price=tuple(price), gained=tuple(gained), slates=self.slates + rows, batches=self.batches + 1)

    def save(self, path: str | Path) -> None:
        """Write to `path` so that a crash leaves either the old file or the new one."""
        write_atomically(path, json.dumps({"kind": "spdd traffic", "version": 1, **asdict(self)}, indent=2) + "\n")

    def load(self, path: str | Path) -> Traffic:
        """What `path` holds, if it was saved for the same promises."""
        try:
            text = Path(path).read_text(encoding="utf-8")
            found = json.loads(text)
            if not isinstance(found, dict) or found.pop("kind", None) != "spdd traffic" or found.pop("version", None) != 1:
                raise ValueError("it is not a traffic state")
            loaded = Traffic(**{k: tuple(v) if isinstance(v, list) else v for k, v in found.items()})
            numbers = (*loaded.target, *loaded.price, *loaded.initial, *loaded.gained, loaded.slates, loaded.batches)
            if not all(isinstance(x, (int, float)) and math.isfinite(x) for x in numbers):
                raise ValueError("it holds something that is not a finite number")
        except (TypeError, ValueError, UnicodeDecodeError) as error:
            raise ValueError(
                f"traffic state '{path}' cannot be read: {error}. Start again without it, or restore a good copy."
            ) from None
        if loaded.promises != self.promises:
            raise ValueError(
                f"traffic state '{path}' belongs to other objectives: it holds {', '.join(loaded.promises) or 'none'}, "
                f"this decoder has {', '.join(self.promises) or 'none'}. Load it into the decoder that saved it."
            )
        return replace(loaded, target=self.target)  # the target may have been moved on purpose; the price follows
