"""A guided tour: a made-up music service, every decoder on the same scores, one table, one picture, one `spdd rerank`.

Nothing here is evidence. In this small world the truth about clicks is known, and it is believable: the model's scores
are noisy, and too low for new creators, half of which they deserve. Decoders see the scores only; clicks judge them.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console, RenderableType

SLOTS = 10
FLOOR = 3  # new creators every slate should hold
OBJECTIVE = "new creators"
GENRES = ("ambient", "classical", "electronic", "folk", "hip hop", "jazz", "pop", "rock")
ATTENTION = 0.9  # each slot is looked at by so many of those who looked at the one above
BATCH = 100  # slates between two lessons, for decoders that learn from traffic


def run(out: Path, *, users: int = 2000, candidates: int = 200, items: int = 600, seed: int = 7) -> None:
    """Write candidates.parquet, decoders.csv, decoders.svg and .png, and slates.parquet to `out`, and say what they show.

    items: of the catalogue, out of which each user has `candidates`
    """
    from rich.console import Console

    out.mkdir(parents=True, exist_ok=True)
    console = Console(markup=False, highlight=False)
    table, slates, numbers, picture = (out / name for name in FILES)

    world = made_world(users, candidates, items, seed)
    write_candidates(world, table)
    contest = entries(world, seed)
    console.print(
        f"A made-up music service: {users:,} users with {candidates} candidate tracks each; {world.new.mean():.0%} of all\n"
        f"tracks are by new creators. Of the {SLOTS} slots of every slate, {FLOOR} should be theirs.\n"
        f"Filling slates with {len(contest)} settings of {len({e.name for e in contest})} decoders ...\n"
    )
    results = judged(world, contest)
    console.print(results_page(results))
    console.print()
    console.print(bullets(findings(results)))
    write_results(results, numbers)
    trouble = draw(results, picture)

    console.print("\nFor a table of your own this is one command. On the candidates above:\n")
    rerank(table, slates, console)
    written = [
        (table, "the candidates, and what no decoder sees: the chance of a click"),
        (slates, "the slates of the command above"),
        (numbers, "all numbers of the table and the picture, and what is between"),
    ]
    if not trouble:
        written.append((picture, f"the picture; also {picture.with_suffix('.png').name}"))
    console.print("\nWritten:")
    width = max(len(str(path)) for path, _ in written)
    for path, what in written:
        console.print(f"  {path!s:{width}}  {what}", soft_wrap=True)
    if trouble:
        console.print(f"No picture: {trouble}", soft_wrap=True)


FILES = ("candidates.parquet", "slates.parquet", "decoders.csv", "decoders.svg")


# ---- the world ------------------------------------------------------------------------------------------------------


class World(NamedTuple):
    """R users, M tracks. What belongs to no candidate of a user is barred for that user."""

    score: np.ndarray  # (R, M) what the model says, in log-odds
    chance: np.ndarray  # (R, M) of a click, once seen
    barred: np.ndarray  # (R, M) bool
    new: np.ndarray  # (M,) 0 or 1: by a new creator
    genre: np.ndarray  # (M,) number of the genre
    artist: np.ndarray  # (M,) number of the artist
    margin: np.ndarray  # (M,) in [0, 1]
    sound: np.ndarray  # (M, D) what tells tracks apart, for decoders that want them different


def made_world(users: int, candidates: int, items: int, seed: int) -> World:
    import numpy as np

    random = np.random.default_rng(seed)
    normal, genres, width = random.standard_normal, len(GENRES), 16
    artists = max(4, items // 4)

    # Artists have a genre, some many tracks and most a few; those with the fewest are new, and make 12 % of all tracks.
    fame = random.pareto(1.5, artists) + 0.3
    artist = np.sort(random.choice(artists, size=items, p=fame / fame.sum()))
    home = random.integers(0, genres, artists)
    genre = np.where(random.random(items) < 0.85, home[artist], random.integers(0, genres, items))
    tracks = np.bincount(artist, minlength=artists)
    fewest = np.argsort(tracks + random.random(artists))
    new = np.isin(artist, fewest[tracks[fewest].cumsum() <= 0.12 * items]).astype(float)

    centre = normal((genres, width))
    sound = centre[genre] + 0.35 * normal((artists, width))[artist] + 0.35 * normal((items, width))
    taste = random.dirichlet(np.full(genres, 0.4), users) @ centre + 0.3 * normal((users, width))
    fit = taste @ sound.T
    fit = (fit - fit.mean()) / fit.std()
    appeal = 0.7 * normal(items)

    truth = fit + appeal - 0.3 * new + 0.5 * normal((users, items)) - 1.9
    score = 0.9 * fit + 0.8 * appeal - 0.6 * new + 0.4 * normal((users, items)) + 0.3 * normal(items) - 1.9
    found = np.argsort(-fit - 0.7 * normal((users, items)), axis=1)[:, :candidates]  # by an earlier stage, less exact
    barred = np.ones((users, items), dtype=bool)
    np.put_along_axis(barred, found, False, axis=1)
    return World(score, 1 / (1 + np.exp(-truth)), barred, new, genre, artist, random.beta(2, 3, items), sound)


def write_candidates(world: World, path: Path) -> None:
    """A row per user and candidate, best score first, as an earlier stage would hand them over."""
    import numpy as np
    import polars as pl

    user, item = np.nonzero(~world.barred)
    frame = pl.DataFrame(
        {
            "user": user,
            "item": item,
            "score": world.score[user, item],
            "genre": np.array(GENRES)[world.genre[item]],
            "artist": world.artist[item],
            OBJECTIVE: world.new[item].astype(np.int8),
            "margin": world.margin[item].round(3),
            "click chance": world.chance[user, item].round(4),
        }
    )
    named = [pl.format(f"{letter}{{}}", pl.col(c).cast(pl.String).str.zfill(4)).alias(c) for c, letter in NAMED.items()]
    frame.sort("user", "score", descending=[False, True]).with_columns(named).write_parquet(path)


NAMED = {"user": "u", "item": "t", "artist": "a"}


# ---- the decoders ---------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """A decoder with its settings."""

    name: str
    setting: str
    serve: Callable[[World], np.ndarray]  # gives the slates, (R, K) items
    mark: str | None = None  # what its dot is marked with, if it is one of a sweep
    listed: bool = True  # whether the table has a line for it


def entries(world: World, seed: int) -> list[Entry]:
    """Every decoder, at settings that suit its aim; three of them along their whole range."""
    import numpy as np

    import spdd

    def wish(floor: float = FLOOR, per: str = "slate") -> list[spdd.Objective]:
        return [spdd.Objective(OBJECTIVE, value=world.new, at_least=floor, per=per)]

    def at_once(decoder) -> Callable[[World], np.ndarray]:
        return lambda w: decoder.rerank(w.score, exclude=w.barred).items

    def printed(floor: float):
        return spdd.SPDD(wish(floor), SLOTS, scale="probability", start=1.0, rate=1.0, guard=False)

    part = FLOOR / SLOTS
    sides = np.stack([world.new, 1 - world.new], axis=1)  # new creators, all others
    weights, floors = (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7), (0, 1, 2, 3, 4, 5, 6, 8)
    return [
        Entry("Greedy", "", at_once(spdd.Greedy(slots=SLOTS))),
        *(
            Entry("WA", f"weight {w}", at_once(spdd.WA(wish(), SLOTS, weight=w)), f"{w}" if w in (0.3, 0.4, 0.5, 0.6, 0.7) else "", w in (0.3, 0.5, 0.6, 0.7))
            for w in weights
        ),
        Entry("EPR", "weight 0.6 of 30", at_once(spdd.EPR(wish(), SLOTS, weight=0.6, pool=30))),
        Entry("MustFill", f"floor {FLOOR}", at_once(spdd.MustFill(wish(), SLOTS))),
        *(Entry("SPDD printed", f"floor {f}", at_once(printed(f)), f"{f}", f == FLOOR) for f in floors),
        *(
            Entry("SPDD", f"floor {f}", at_once(spdd.SPDD(wish(f), SLOTS)), f"{f}" if f else "", f in (1, FLOOR, 5))
            for f in floors
        ),
        Entry("SPDD", f"{FLOOR} on average", at_once(spdd.SPDD(wish(per="traffic"), SLOTS))),
        Entry("BanditUCB", "", in_lessons(spdd.BanditUCB(wish(), SLOTS, seed=seed), seed)),
        Entry("BanditTS", "", in_lessons(spdd.BanditTS(wish(), SLOTS, seed=seed), seed)),
        Entry("MMR", "weight 0.3", at_once(spdd.MMR(world.sound, slots=SLOTS, weight=0.3))),
        Entry("DPP", "weight 0.3", at_once(spdd.DPP(world.sound, slots=SLOTS, weight=0.3))),
        Entry("Calibrated", f"to {part:.0%}", at_once(spdd.Calibrated(sides, [part, 1 - part], slots=SLOTS, weight=0.98))),
        Entry(
            "ProviderMaxMin",
            f"{part:.0%} due",
            in_batches(spdd.ProviderMaxMin(world.new.astype(int), weights=[1 - part, part], slots=SLOTS, weight=0.7)),
        ),
    ]  # fmt: skip


def in_batches(decoder, lesson: Callable[[World, slice, Any], None] | None = None) -> Callable[[World], np.ndarray]:
    """Slates from a decoder that learns between batches."""
    import numpy as np

    def serve(world: World) -> np.ndarray:
        parts = []
        for first in range(0, len(world.score), BATCH):
            rows = slice(first, first + BATCH)
            slate = decoder.rerank(world.score[rows], exclude=world.barred[rows])
            if lesson is not None:
                lesson(world, rows, slate)
            parts.append(slate.items)
        return np.concatenate(parts)

    return serve


def in_lessons(bandit, seed: int) -> Callable[[World], np.ndarray]:
    """Slates from a bandit that is told, after every batch, what was clicked; clicks are drawn, as in life."""
    import numpy as np

    from .decode.bandits import gini

    random = np.random.default_rng(seed)

    def lesson(world: World, rows: slice, slate) -> None:
        clicked = random.random(slate.items.shape) < expected_clicks(
            world._replace(chance=world.chance[rows]), slate.items
        )
        outcomes = [clicked.sum(1) / SLOTS, (clicked * world.new[slate.items]).sum(1) / SLOTS]
        bandit.learn(slate, gini(outcomes, [0.75, 0.25]))

    return in_batches(bandit, lesson)


# ---- the verdict ----------------------------------------------------------------------------------------------------


class Result(NamedTuple):
    """How one entry fared. Intervals are of 95 %, over users."""

    entry: Entry
    met: float  # share of slates with at least FLOOR new creators
    share: float  # of slots that go to new creators
    given_up: float  # score per slate, against greedy
    clicks: np.ndarray  # (R,) expected per slate
    on_new: float  # of which on new creators, per slate
    change: tuple[float, float]  # clicks per slate against greedy, and half the interval of that difference

    @property
    def title(self) -> str:
        return f"{self.entry.name}, {self.entry.setting}" if self.entry.setting else self.entry.name


def judged(world: World, entries: list[Entry]) -> list[Result]:
    """Every entry's result, with a bar on a terminal while it takes. The first entry is greedy."""
    import numpy as np
    import torch
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    results: list[Result] = []
    best = plain = None
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine, two threads on tensors this small are ten times slower than one
    try:
        with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
            task = bar.add_task("", total=len(entries))
            for entry in entries:
                bar.update(task, description=f"{entry.name} {entry.setting}")
                items = entry.serve(world)
                new, score = world.new[items], np.take_along_axis(world.score, items, 1).sum(1).mean()
                clicks = expected_clicks(world, items)
                total = clicks.sum(1)
                best, plain = (score, total) if plain is None else (best, plain)
                results.append(
                    Result(
                        entry,
                        float((new.sum(1) >= FLOOR).mean()),
                        float(new.mean()),
                        float(best - score),
                        total,
                        float((clicks * new).sum(1).mean()),
                        interval(total - plain),
                    )
                )
                bar.advance(task)
    finally:
        torch.set_num_threads(threads)
    return results


def expected_clicks(world: World, items: np.ndarray) -> np.ndarray:
    """(R, K) the chance that a slot is looked at and its item clicked."""
    import numpy as np

    return np.take_along_axis(world.chance, items, 1) * ATTENTION ** np.arange(items.shape[1])


def interval(x: np.ndarray) -> tuple[float, float]:
    """Mean, and half its 95 % interval. x: (R,) one number per user"""
    return float(x.mean()), float(1.96 * x.std(ddof=1) / len(x) ** 0.5)


def results_page(results: list[Result]) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("decoder", no_wrap=True)
    for heading in (
        f"slates\nwith {FLOOR}",
        "new cre-\nators",
        "score\ngiven up",
        "clicks per\nslate",
        "against\ngreedy",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for r in (r for r in results if r.entry.listed):
        clicks, half = interval(r.clicks)
        change = f"{r.change[0]:+.3f} ±{r.change[1]:.3f}" if r is not results[0] else ""
        table.add_row(
            r.title, _share(r.met), f"{r.share:.1%}", f"{r.given_up:.2f}", f"{clicks:.2f} ±{half:.2f}", change,
            style="bold" if r.entry.name == "SPDD" else None,
        )  # fmt: skip
    return table


def findings(results: list[Result]) -> list[str]:
    """What the numbers say, whoever they favour."""
    listed = [r for r in results if r.entry.listed]
    top = max(listed, key=lambda r: r.clicks.mean())
    most = max(r.met for r in listed)
    sure = max((r for r in listed if r.met == most), key=lambda r: r.clicks.mean())
    ours, quota = (next(r for r in listed if r.title == f"{name}, floor {FLOOR}") for name in ("SPDD", "MustFill"))
    change, half = interval(ours.clicks - quota.clicks)
    return [
        f"Most clicks of all: {top.title} ({top.clicks.mean():.2f}, {_share(top.met)} of slates with {FLOOR}).",
        f"Most clicks with {FLOOR} in {_share(most)} of slates: {sure.title} ({sure.clicks.mean():.2f}).",
        f"SPDD and MustFill at floor {FLOOR} pick the same tracks, as scores stand still here; SPDD shows new creators "
        f"earlier, who get {ours.on_new:.2f} clicks per slate instead of {quota.on_new:.2f}, and clicks in all differ by "
        f"{change:+.3f} ±{half:.3f}.",
        "A bandit's index puts every item of a yes-or-no objective first, whatever its weights: nothing to learn here.",
    ]


def bullets(lines: list[str]) -> RenderableType:
    from rich.table import Table

    page = Table.grid(padding=(0, 1))
    for line in lines:
        page.add_row("-", line)
    return page


def _share(part: float) -> str:
    """A percentage that says 0 and 100 only where it is so."""
    return f"{min(max(part, 0.001), 0.999) if 0 < part < 1 else part:.1%}"


def write_results(results: list[Result], path: Path) -> None:
    import polars as pl

    rows = []
    for r in results:
        clicks, half = interval(r.clicks)
        rows.append(
            {
                "decoder": r.entry.name,
                "setting": r.entry.setting,
                f"slates with {FLOOR}": r.met,
                "share of new creators": r.share,
                "score given up": r.given_up,
                "clicks per slate": clicks,
                "clicks interval": half,
                "clicks on new creators": r.on_new,
                "clicks against greedy": r.change[0],
                "against greedy interval": r.change[1],
            }
        )
    pl.DataFrame(rows).write_csv(path, float_precision=5)


def draw(results: list[Result], path: Path) -> str:
    """Draw the picture. Returns what to do where it cannot be drawn, "" where it was."""
    from .report.charts import Dot, Panel, save, trade_offs

    dots = []
    for r in results:
        e = r.entry
        label = e.mark if e.mark is not None else f"SPDD ({e.setting})" if e.name == "SPDD" else e.name
        dots.append(Dot(e.name, label, (r.share, r.met), float(r.clicks.mean()), r.change[1], e.mark is not None))
    panels = (
        Panel(
            "On average: a fixed weight (WA) costs a little less than SPDD", "average share of new creators in a slate"
        ),
        Panel(
            "In every slate: SPDD and MustFill cost little, a weight much",
            f"share of slates with at least {FLOOR} new creators",
        ),
    )
    notes = (
        f"Numbers along the lines: the weight of WA, the floor of SPDD. MustFill has a floor of {FLOOR}.",
        "Bars: 95 % interval, over users, of the difference to greedy.",
    )
    title = "What new creators' exposure costs in clicks, on a made-up music service"
    try:
        save(trade_offs(dots, panels, y="expected clicks per slate", title=title, notes=notes), path)
    except ModuleNotFoundError as error:
        return str(error)
    return ""


def rerank(table: Path, slates: Path, console: Console) -> None:
    """Run `spdd rerank` as a person would."""
    words = ["rerank", str(table), "--objective", f"{OBJECTIVE}>={FLOOR}", "--out", str(slates)]
    console.print(f"$ {shlex.join(['spdd', *words])}", soft_wrap=True)
    console.file.flush()  # the command writes to the same terminal
    done = subprocess.run([sys.executable, "-P", "-m", "spdd.cli", *words], check=False)
    if done.returncode:
        raise RuntimeError(f"`spdd rerank` ended with exit code {done.returncode}; what it said stands above")
