"""A service played out: listeners whose truth is known come back again and again to what each arm's policy shows them.

Everything is autoregressive. A listener looks at a slate, plays and skips; the mood moves with what is played, and goes on
into the next slate of the same visit; what was played joins the history that the model reads next time. A visit goes on
while enough of what was looked at was played, so a better slate earns more of them. Between visits moods fall back to
the taste.

The same listener on the same day answers to the same draws under every arm, and to others with another noise. So it can be
known what everybody would have done under every arm, which an experiment never sees: `Outcomes`.

What is left out: listeners do not talk to each other, tire of the service or leave it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data.interactions import Sequences, Split
from ..data.listeners import PLAYED, ListenerWorld, Visit
from .experiment import Metric

NAMES = ("minutes", "plays", "looks", "skips", "wanted plays", "parts", "slates", "slots", "wanted slots", "met")
METRICS = (
    Metric("minutes", "minutes", None, "minutes before", None, "minutes played per listener"),
    Metric("plays", "plays", None, "plays before", None, "items played per listener"),
    Metric(
        "stream share", "wanted plays", "plays", "wanted plays before", "plays before", "plays of the objective's items / plays"
    ),
    Metric("skip rate", "skips", "looks", "skips before", "looks before", "items skipped / items looked at", better="lower"),
    Metric("completion", "parts", "plays", "parts before", "plays before", "how much of an item is played, on average"),
)  # fmt: skip
GOES_ON = 0.5  # a visit goes on while at least so much of what was looked at was played


class Callers(NamedTuple):
    """Who stands at the door: what a policy is told.

    user: (R,) listener numbers.  history: (R, L) all they ever played, -1 where nothing.  sitting: (R, S) this visit alone
    """

    user: Tensor
    history: Tensor
    sitting: Tensor


class Arm(NamedTuple):
    """A policy under trial. policy: `Callers` -> their slate, as any decoder gives it.  about: how it is made, in words"""

    name: str
    policy: Callable[[Callers], Any]
    about: str = ""


class Before(NamedTuple):
    """What was known when the experiment began. history: (U, L), -1 where nothing.  columns: by name, (U,) each"""

    history: Tensor
    columns: dict[str, np.ndarray]


class Outcomes(NamedTuple):
    """What every listener would do under every arm.

    arms:    their names, the control first
    columns: by name (`NAMES`), (arms, noises, U) each.  before: by name, (U,) each
    """

    arms: tuple[str, ...]
    columns: dict[str, np.ndarray]
    before: dict[str, np.ndarray]

    @property
    def noises(self) -> int:
        return next(iter(self.columns.values())).shape[1]

    @property
    def users(self) -> int:
        return next(iter(self.columns.values())).shape[2]

    def of(self, user: np.ndarray, arm: np.ndarray, noise: Any = 0) -> dict[str, np.ndarray]:
        """What is seen when these listeners (N,) are put in these arms (N,): columns by name, (N,) each."""
        seen = {name: column[arm, noise, user] for name, column in self.columns.items()}
        return seen | {name: column[user] for name, column in self.before.items()}

    def alike(self, arms: Sequence[str]) -> Outcomes:
        """The control under other names as well: what an A/A experiment is made of."""
        columns = {name: np.repeat(column[:1], len(arms), 0) for name, column in self.columns.items()}
        return Outcomes(tuple(arms), columns, self.before)


def decoded_by(decoder: Any, model: Any) -> Callable[[Callers], Any]:
    """The policy of a decoder and a model that reads histories; nobody is shown what they have played."""
    return lambda callers: decoder.generate(model, callers.history, exclude="seen")


def outcomes(
    world: ListenerWorld,
    arms: Sequence[Arm],
    before: Before,
    *,
    value: np.ndarray,
    floor: float = 3,
    visits: int = 4,
    pages: int = 3,
    noises: int = 1,
    seed: int = 0,
    batch: int = 500,
    progress: Callable[[int], None] = lambda users: None,
) -> Outcomes:
    """Play every listener's visits under every arm.

    value:   (M,) what items give the objective.  floor: value that a slate should hold, for the column `met`
    visits:  times each listener comes.  pages: slates of a visit at most
    noises:  independent repetitions of everything that is left to chance
    progress: told how many listeners are done, of arms * noises * users
    """
    users = len(before.history)
    if users > world.users:
        raise ValueError(f"`before` must know at most the {world.users} listeners of the world, got {users}.")
    columns = {name: np.zeros((len(arms), noises, users)) for name in NAMES}
    worth = torch.as_tensor(np.asarray(value, dtype=np.float64))
    for a, arm in enumerate(arms):
        for noise in range(noises):
            for first in range(0, users, batch):
                rows = torch.arange(first, min(first + batch, users))
                found = _played_out(
                    world, arm, rows, before.history[rows], worth, floor, visits, pages, seed * 1009 + noise
                )
                for name, column in found.items():
                    columns[name][a, noise, rows] = column
                progress(len(rows))
    return Outcomes(tuple(arm.name for arm in arms), columns, before.columns)


def _played_out(world, arm, user, history, value, floor, visits, pages, noise) -> dict[str, np.ndarray]:
    """The columns of these listeners (R,): all their visits under one arm."""
    total = {name: torch.zeros(len(user), dtype=torch.float64) for name in NAMES}
    for visit in range(visits):
        here = torch.arange(len(user))
        sitting = history.new_zeros(len(user), 0)
        for page in range(pages):
            callers = Callers(user[here], history[here], sitting[here])
            items = torch.as_tensor(np.asarray(arm.policy(callers).items), dtype=torch.long)
            answer = world.respond(
                Visit(callers.user, callers.sitting), items, seed=(noise * visits + visit) * pages + page
            )
            known, there = items.clamp_min(0), (items >= 0).double()
            gives = value[known] * there
            held = gives.sum(1)
            found = {
                "minutes": answer.minutes.sum(1),
                "plays": answer.played.sum(1),
                "looks": answer.looked.sum(1),
                "skips": answer.skipped.sum(1),
                "wanted plays": (answer.played * (gives > 0)).sum(1),
                "parts": (answer.minutes / world.minutes[known]).sum(1),
                "slates": torch.ones(len(here), dtype=torch.float64),
                "slots": there.sum(1),
                "wanted slots": (gives > 0).double().sum(1),
                "met": (held >= floor - 1e-9).double(),
            }
            for name, column in found.items():
                total[name][here] += column
            played = history.new_full((len(user), items.shape[1]), -1)
            played[here] = torch.where(answer.played > 0, items, -1)
            history, sitting = torch.cat([history, played], 1), torch.cat([sitting, played], 1)
            here = here[answer.played.sum(1) >= GOES_ON * answer.looked.sum(1).clamp_min(1)]
            if not len(here):
                break
    return {name: column.numpy() for name, column in total.items()}


# ---- what was before ------------------------------------------------------------------------------------------------


def before(world: ListenerWorld, log: Sequences, value: np.ndarray, users: int | None = None) -> Before:
    """What the first `users` listeners had done by the end of the log: covariates, and histories to start from."""
    users = len(log) if users is None else users
    took = log.extra["action"] == PLAYED
    lists = [item[kept] for item, kept in zip(log.lists()[:users], np.split(took, log.start[1:-1]), strict=False)]
    history = np.full((users, max((len(x) for x in lists), default=0)), -1)
    for row, items in zip(history, lists, strict=True):
        row[len(row) - len(items) :] = items
    told = measured(world, log, value)
    return Before(torch.from_numpy(history), {f"{name} before": x[:users] for name, x in told.items()})


def measured(world: ListenerWorld, log: Sequences, value: np.ndarray, sessions: Any = None) -> dict[str, np.ndarray]:
    """What each listener of a log did, (U,) each, by the names an experiment uses. sessions: only these, by number"""
    counts = np.ones(len(log.item), bool) if sessions is None else np.isin(log.extra["session"], sessions)
    played = (log.extra["action"] == PLAYED) * counts
    minutes = log.extra["minutes"] * played
    each = {
        "minutes": minutes,
        "plays": played,
        "looks": counts,
        "skips": counts & ~played,
        "wanted plays": played * (np.asarray(value)[log.item] > 0),
        "parts": minutes / world.minutes.numpy()[log.item],
    }
    return {name: np.bincount(log.rows(), x, minlength=len(log)) for name, x in each.items()}


# ---- the model that is asked ----------------------------------------------------------------------------------------


def learnt_from(world: ListenerWorld, log: Sequences) -> Split:
    """What a model learns from: all plays but each listener's last, which says when to stop. Items keep their numbers."""
    took = log.extra["action"] == PLAYED
    row, item, time = log.rows()[took], log.item[took], log.time[took]
    last = np.append(row[1:] != row[:-1], True)

    def part(some: np.ndarray, user: np.ndarray) -> Sequences:
        place = np.searchsorted(user, row[some])
        return Sequences(log.user[user], np.searchsorted(place, np.arange(len(user) + 1)), item[some], time[some])

    return Split(world.catalog, part(~last, np.arange(len(log))), part(last, row[last]), part(last & False, row[:0]))


def sasrec(
    world: ListenerWorld, log: Sequences, folder: str | Path, *, epochs: int = 8, seed: int = 0, progress: bool = True
) -> Any:
    """A SASRec trained on the plays of a log, kept in `folder`: there it is found again, or gone on with."""
    from ..models.next_item import NextItem
    from ..models.sasrec import Config, SASRec
    from ..models.train import Settings, fit

    split = learnt_from(world, log)
    torch.manual_seed(seed)
    model = SASRec(world.items, Config(width=48, heads=2, history=50, temperature=0.1))
    settings = Settings(epochs=epochs, batch=64, patience=2, seed=seed)
    fit(NextItem(model, split, settings, judged=2000), settings, folder, progress=progress)
    return model.eval()
