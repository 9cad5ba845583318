"""The whole story in minutes: a model trained, every decoder swept, an A/B test played out, a report that opens anywhere.

Without data of your own it is told on listeners whose every motive is known (`data/listeners.py`): SASRec learns from what
a service showed them, slates are judged by what they play on their next visit, and the A/B test lets them live with each
decoder. With a table of your own everything is the same but the A/B test, which needs people.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

    from .data.interactions import Split
    from .data.listeners import ListenerWorld

SLOTS, FLOOR = 10, 3
TAIL = 0.15  # without an objective of your own: the items with fewest events, which together have so many of them
ASKED = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
PRICES = (0.1, 0.3, 0.5, 0.75, 1.0, 1.35, 1.8, 2.4, 3.2, 4.3, 9.0)
SQUEEZED = (0.1, 0.3, 0.5, 1.0)
HELD_OUT = 2  # the last sessions of every listener: one for validation, one that judges slates
VISITS = 4
# Small enough to be learnt in half a minute on two cores.
MODEL: Mapping[str, Any] = {
    "width": 48, "heads": 2, "history": 50, "temperature": 0.1, "epochs": 8, "batch": 64, "patience": 2,
}  # fmt: skip


class Stage(NamedTuple):
    """What the story is told on. value: (M,) what items give the objective.  world: where there is one"""

    split: Split
    value: np.ndarray
    floor: float
    objective: str
    title: str
    world: ListenerWorld | None = None
    log: Any = None


def run(
    out: Path,
    *,
    data: Path | None = None,
    objective: str | None = None,
    users: int = 2000,
    seed: int = 0,
    workers: int = 2,
    command: str = "spdd demo",
) -> Path:
    """Write report.html, with its figures and tables, to `out`; gives its path.

    data:      a table with columns user, item, time (and attributes of items), or a prepared file; listeners without
    objective: 'new>=3', about columns of the data
    users:     listeners, or the most users of your data that are judged
    """
    from rich.console import Console

    from .evaluate.sweep import read
    from .report import evidence
    from .report.colophon import colophon
    from .report.page import Page, Section, write

    began = time.perf_counter()
    console = Console(highlight=False)
    out.mkdir(parents=True, exist_ok=True)
    with _step(console, "the people and what they did"):
        on = listeners(users, seed) if data is None else of_data(data, objective)
    with _step(console, "SASRec learns from it"):
        trained(on.split, out / "model", seed)
    with _step(console, "every decoder over its settings"):
        swept = read(sweep_all(on, out, users, workers))
    sections = evidence.sections(swept, objective=on.objective)
    said = [_plain(line) for line in evidence.said(swept, evidence.verdict(swept))]
    if on.world is not None:
        from .report import experiment as pages

        with _step(console, f"an A/B test: {users:,} listeners come {VISITS} times"):
            result = played(on, out / "model", seed)
        page = pages.experiment_page(result, "", {})
        parts = [part for section in page.sections for part in section.parts]
        sections.append(Section("An A/B test on the same listeners", [*page.lead, *parts]))
        said += [_plain(line) for line in pages.findings(result)]
    with _step(console, "the report"):
        made = colophon([command], seed=str(seed))
        lead = [_about(on), evidence.HOW]
        path = write(Page(on.title, lead, sections, made), out / "report.html")
    console.print()
    for line in said:
        console.print(f"- {line}")
    console.print(
        f"\nReport: {path}  ({time.perf_counter() - began:.0f} s)\nFigures and tables beside it: {out / 'figures'}, "
        f"{out / 'tables'}",
        soft_wrap=True,
    )
    return path


# ---- the stage ------------------------------------------------------------------------------------------------------


def listeners(users: int, seed: int) -> Stage:
    """Synthetic listeners. Learnt from: what they played in all sessions but the last two."""
    from .data.listeners import ListenerWorld

    if isinstance(users, bool) or not isinstance(users, int) or users < 100:
        raise ValueError(f"`users` must be a whole number of at least 100, got {users!r}: fewer show nothing.")
    world = ListenerWorld(users=users, seed=seed)
    log = world.log()
    return Stage(
        by_session(world, log),
        world.new_creator.numpy().astype(float),
        float(FLOOR),
        "tracks by new creators",
        "Slates that keep promises, on listeners whose truth is known",
        world,
        log,
    )


def by_session(world: ListenerWorld, log: Any) -> Split:
    """Plays alone, cut by session: the last one judges, the one before it validates. Items keep their numbers."""
    import numpy as np

    from .data.interactions import Sequences, Split
    from .data.listeners import PLAYED

    took = log.extra["action"] == PLAYED
    row, item, moment, session = (x[took] for x in (log.rows(), log.item, log.time, log.extra["session"]))
    last = log.extra["session"].max()

    def part(some: np.ndarray) -> Sequences:
        user, place = np.unique(row[some], return_inverse=True)
        ends = np.searchsorted(place, np.arange(len(user) + 1))
        return Sequences(log.user[user], ends, item[some], moment[some])

    return Split(world.catalog, part(session <= last - HELD_OUT), part(session == last - 1), part(session == last))


def of_data(path: Path, objective: str | None) -> Stage:
    """A table of events, or a prepared file. Without an objective: long-tail items."""
    import numpy as np

    from .data import prepared, table
    from .data.split import leave_last
    from .wish import wish_of

    split = prepared.load(path) if path.suffix == ".npz" else leave_last(table.read(path, attributes=_attributes(path)))
    if not len(split.test.user):
        raise ValueError(f"'{path}' has no user with three events or more: nobody can be held out and judged.")
    title = f"Slates that keep promises, on {path.name}"
    if objective is not None:
        wish = wish_of(split, [objective], slots=SLOTS)
        return Stage(split, wish.value, wish.floor, wish.name, title)
    popularity = split.popularity()
    rising = np.argsort(popularity, kind="stable")
    tail = rising[popularity[rising].cumsum() <= TAIL * popularity.sum()]
    value = np.zeros(len(popularity))
    value[tail] = 1.0
    return Stage(split, value, float(FLOOR), f"long-tail items (the rarest, with {TAIL:.0%} of all events)", title)


def _attributes(path: Path) -> list[str]:
    """All columns of the table but user, item and time."""
    from .data.lines import Tally
    from .data.table import frames

    first = next(iter(frames(path, Tally(1.0, "rows"))), None)
    if first is None:
        raise ValueError(f"'{path}' holds no rows. It needs columns user, item and time, and a row per event.")
    return [name for name in first.columns if not name.startswith("?") and name not in ("user", "item", "time")]


# ---- the acts -------------------------------------------------------------------------------------------------------


def trained(split: Split, folder: Path, seed: int) -> None:
    from .trained import train_model

    train_model("sasrec", split, folder, {**MODEL, "seed": seed})


def sweep_all(on: Stage, out: Path, users: int, workers: int) -> Path:
    """Every family at a few settings; the sweep's folder."""
    from .evaluate.sweep import sweep
    from .terminal import bar

    points = points_of(on)
    load = functools.partial(_bench, out / "model", on.split, on.value, on.floor, users)
    with bar("points") as show:
        sweep(load, points, out / "sweep", workers=workers, progress=show(len(points)))
    return out / "sweep"


def points_of(on: Stage) -> list[Any]:
    from .evaluate import grid

    unit = float(on.value.max())
    found = grid.points(on.floor, SLOTS, seeds=(), unit=unit, asked=ASKED, prices=PRICES)
    return [*found, *grid.bandits((0,), SQUEEZED)]


def _bench(folder: Path, split: Split, value: np.ndarray, floor: float, users: int) -> Any:
    """The bench: a function of this module, so that workers can make their own."""
    import torch

    from .domains import bench_of

    torch.set_num_threads(1)  # several workers, and tensors this small gain nothing from a second thread
    return bench_of(folder, split, values=value, floor=floor, slots=SLOTS, users=users, name="Every decoder")


def played(on: Stage, folder: Path, seed: int) -> Any:
    """The A/B test: control, WA, SPDD; the same model, which reads what listeners did as they do it."""
    from . import experiments
    from .evaluate import simulated
    from .terminal import bar
    from .trained import open_run

    assert on.world is not None
    before = simulated.before(on.world, on.log, on.value)
    model = open_run(folder, on.split).model
    scene = experiments.Stage(on.world, on.log, before, model, on.value, on.floor, SLOTS)
    arms = experiments.arms_of(scene)
    with bar("listeners") as show:
        return experiments.play(scene, arms, visits=VISITS, seed=seed, progress=show(experiments.steps(scene, arms)))


# ---- words ----------------------------------------------------------------------------------------------------------


@contextmanager
def _step(console: Console, what: str) -> Iterator[None]:
    """A line when an act begins, and how long it took."""
    began = time.perf_counter()
    console.print(f"  {what} ...", end="" if console.is_terminal else "\n")
    yield
    seconds = f"{time.perf_counter() - began:.0f} s"
    console.print(f" {seconds}" if console.is_terminal else f"    {seconds}")


def _about(on: Stage) -> str:
    people = len(on.split.train.user)
    return (
        f"{people:,} people, {len(on.split.items.id):,} items, {len(on.split.train.item):,} events to learn from. Wanted: "
        f"{on.objective}, which are {(on.value > 0).mean():.0%} of all items; at least {on.floor:g} of the {SLOTS} in every slate."
    )


def _plain(line: Any) -> str:
    return str(line).replace("**", "")
