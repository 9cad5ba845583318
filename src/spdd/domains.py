"""From a trained model and what users did later to a bench: a domain for sweeps, and the policy of every point in it.

What is judged is what users did in a held-out part of the split. Decoders that learn from feedback (the bandits) hear of
the validation part alone, before the first slate that is judged.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from .data.interactions import Split
from .decode.bandits import Bandit, gini
from .decode.proposals import proposes
from .evaluate import grid
from .evaluate.metrics import outcome_of
from .evaluate.sweep import Bench, Domain, Point, cut
from .slates import digest
from .trained import Asked, Opened, open_run

LESSONS = 2_560  # validation users a bandit learns from
LESSON = 256  # slates between two of its lessons: it draws these without knowing how they go
ROOM = 2 << 30  # bytes of states that are remembered
REWARD = (2 / 3, 1 / 3)  # Gini weights of a bandit's reward: the worse of consumption and objective counts twice


class Batch(NamedTuple):
    """Users asked together: their model (see `Begun`), what it starts from, and what they must not get."""

    model: Any
    histories: Any
    exclude: Any


class Begun:
    """A model that begins with the same users again and again, and works that out once.

    Every point of a sweep asks all users, and what a model makes of a history does not depend on the decoder. Batches
    beyond `room` bytes, and models that propose items, whose states are large, begin anew each time.
    """

    def __init__(self, model: Any, room: int = ROOM):
        self.model, self.room = model, room
        self.held: dict[Any, Any] = {}

    def at(self, name: Any, histories: Any) -> Any:
        """The model, which for these histories starts from what is remembered under this name."""
        if proposes(self.model):
            return self.model
        if name not in self.held:
            with torch.no_grad():
                state = self.model.start(histories)
            if (size := _bytes(state)) > self.room:
                return self.model
            self.held[name], self.room = state, self.room - size
        return _Started(self.model, self.held[name])


class _Started:
    """A model that has begun. Decoding may write into its state, so each gets a copy."""

    def __init__(self, model: Any, state: Any):
        self._model, self._state = model, state

    def start(self, histories: Any) -> Any:
        return copy.deepcopy(self._state)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def bench_of(
    run: Path,
    split: Split,
    *,
    values: np.ndarray,
    floor: float,
    slots: int = 10,
    part: str = "test",
    users: int | None = None,
    name: str | None = None,
    device: str | None = None,
    beams: int | None = None,
) -> Bench:
    """The bench of a run folder.

    values: (M,) what items give the objective.  floor: value units each slate should have
    part:   "test" or "validation", whose events judge the slates.  users: only the first so many
    """
    return bench(
        open_run(run, split, device=device, beams=beams), split, values=values, floor=floor, slots=slots, part=part,
        users=users, name=name or run.name,
    )  # fmt: skip


def bench(
    opened: Opened,
    split: Split,
    *,
    values: np.ndarray,
    floor: float,
    slots: int = 10,
    part: str = "test",
    users: int | None = None,
    name: str = "",
) -> Bench:
    """As `bench_of`, of a model that is open already."""
    if part not in ("validation", "test"):
        raise ValueError(f"`part` must be 'validation' or 'test', got {part!r}: slates are judged by what is held out.")
    values = np.asarray(values, dtype=np.float64)
    if values.shape != (len(split.items.id),):
        raise ValueError(f"`values` must hold one number for each of {len(split.items.id)} items, got {values.shape}.")
    asked = opened.asked(split, part).first(users)
    if not len(asked.user):
        raise ValueError(f"the {part} part has no users to judge slates by. Hold out more: `spdd data prepare --help`.")

    # Another split of the same items has the same fingerprint: what users did tells them apart.
    later, before = targets(asked), [asked.histories(rows) for rows in cut(len(asked.user), LESSON)]

    begun = Begun(opened.model)

    def policy(point: Point):
        decoder = grid.decoder_of(point, values, slots)
        if isinstance(decoder, Bandit):
            if part == "validation":
                raise ValueError(f"'{point.curve}' learns from the validation part, so it cannot be judged by it.")
            _taught(decoder, begun, opened.asked(split, "validation").first(LESSONS), values)
        return lambda batch: decoder.generate(batch.model, batch.histories, exclude=batch.exclude)

    def batch(rows: slice) -> Batch:
        histories = asked.histories(rows)
        return Batch(begun.at((part, rows.start, rows.stop), histories), histories, asked.exclude(rows))

    return Bench(
        Domain(
            name,
            len(asked.user),
            batch,
            later,
            values,
            float(floor),
            digest(opened.digest, split.items.fingerprint(), part, asked.user, values, later, before),
            slots,
            reachable(asked, values, slots),
            {"part": part, "items": len(values), "objective_items": int((values > 0).sum())},
        ),
        policy,
    )


def targets(asked: Asked) -> np.ndarray:
    """(U, T) distinct items each user took later and could have been given, -1 for none."""
    found = []
    for rows in cut(len(asked.user), LESSON):
        later = [np.unique(x[x >= 0]) for x in asked.later(rows)]
        found += [x[keep] for x, keep in zip(later, _may_have(asked, rows, later), strict=True)]
    wide = max((len(x) for x in found), default=0)
    out = np.full((len(found), max(wide, 1)), -1)
    for row, items in zip(out, found, strict=True):
        row[: len(items)] = items
    return out


def reachable(asked: Asked, values: np.ndarray, slots: int) -> np.ndarray:
    """(U,) the most value a slate could hold, of items the user may have."""
    order = np.argsort(-values, kind="stable")
    found = []
    for rows in cut(len(asked.user), LESSON):
        exclude, histories = asked.exclude(rows), asked.histories(rows)
        if isinstance(exclude, str):  # few items are seen, so the best that is left stands near the top
            longest = max((len(h) for h in histories), default=0)
            top = [order[: slots + longest]] * len(histories)
        else:
            top = [order] * len(exclude)
        kept = _may_have(asked, rows, top)
        found += [values[items[keep][:slots]].sum() for items, keep in zip(top, kept, strict=True)]
    return np.array(found)


def _may_have(asked: Asked, rows: slice, items: list[np.ndarray]) -> Iterator[np.ndarray]:
    """For each user of `rows`, which of these items a slate may hold."""
    exclude = asked.exclude(rows)
    if isinstance(exclude, str):
        return (~np.isin(own, seen) for own, seen in zip(items, asked.histories(rows), strict=True))
    if getattr(exclude, "dtype", None) is not None:
        barred = np.asarray(exclude.cpu() if hasattr(exclude, "cpu") else exclude, dtype=bool)
        return (~row[own] for own, row in zip(items, barred, strict=True))
    return (~np.isin(own, list(row)) for own, row in zip(items, exclude, strict=True))


def _taught(decoder: Bandit, begun: Begun, asked: Asked, values: np.ndarray) -> None:
    """Let a bandit serve validation users, and tell it after each batch how their slates went."""
    later = targets(asked)
    for rows in cut(len(asked.user), LESSON):
        histories = asked.histories(rows)
        model = begun.at(("a bandit's lessons", rows.start), histories)
        slate = decoder.generate(model, histories, exclude=asked.exclude(rows))
        items = np.asarray(slate.items.cpu() if hasattr(slate.items, "cpu") else slate.items)
        seen = outcome_of(items, later[rows], values)
        wanted = (later[rows] >= 0).sum(1).clip(1, items.shape[1])
        consumed = seen.hit.sum(1) / wanted
        share = seen.value.mean(1) / max(values.max(), 1e-12)
        decoder.learn(slate, gini([consumed, share], list(REWARD)).numpy())


def _bytes(state: Any) -> int:
    """Of all tensors in a state."""
    if isinstance(state, torch.Tensor):
        return state.numel() * state.element_size()
    return sum(map(_bytes, state)) if isinstance(state, tuple) else 0
