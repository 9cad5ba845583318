"""`spdd evaluate` and `spdd tune`: what decoders cost on a trained model, and which settings meet a target at least cost."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from .model_commands import Device
from .terminal import Debug, Quiet, bar, check_positive, in_words, print_page

Run = Annotated[Path, typer.Argument(help="The run folder of `spdd train`.")]
Prepared = Annotated[Path, typer.Argument(help="The prepared file it was trained on.")]
Objectives = Annotated[
    list[str], typer.Option("--objective", "-o", help="One floor: 'new>=3', 'categories=Cycling>=30%'.")
]
Slots = Annotated[int, typer.Option("--slots", "-k", help="Items per slate.")]
Items = Annotated[
    Path | None, typer.Option("--items", help="A table with a column `item` and your own columns of values.")
]
Users = Annotated[int | None, typer.Option("--users", help="Only the first so many.")]
BatchOf = Annotated[int, typer.Option("--batch", help="Users decoded together; shared prices move once a batch.")]
Beams = Annotated[int | None, typer.Option("--beams", help="Beams inside an item, for models that spell.")]
Seed = Annotated[int, typer.Option("--seed", help="Of decoders that draw, and of the search.")]


def evaluate(
    run: Run,
    prepared: Prepared,
    objective: Objectives,
    out: Annotated[Path, typer.Option("--out", help="Folder for the sweep and report.html; one found there goes on.")],
    slots: Slots = 10,
    items: Items = None,
    users: Users = None,
    part: Annotated[str, typer.Option("--part", help="Whose later events judge: 'test' or 'validation'.")] = "test",
    batch: BatchOf = 256,
    seeds: Annotated[int, typer.Option("--seeds", help="Runs of each bandit.")] = 1,
    rates: Annotated[bool, typer.Option(help="Also slow and fast prices (72 more points).")] = False,
    workers: Annotated[int, typer.Option("--workers", help="Processes that share the points.")] = 1,
    beams: Beams = None,
    device: Device = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Sweep every decoder over its settings and write a report: fronts, floors kept, slot by slot."""
    began = time.perf_counter()
    with in_words(debug, kept=out / "sweep"), bar("points") as show:
        import functools

        from .data import prepared as files
        from .domains import bench_of
        from .evaluate import grid
        from .evaluate.sweep import read, sweep
        from .evaluate.verdicts import verdict
        from .report import evidence
        from .report.colophon import colophon
        from .report.page import Page, write
        from .wish import wish_of

        check_positive(users=users, slots=slots, batch=batch, seeds=seeds, workers=workers)
        split = files.load(prepared)
        wish = wish_of(split, objective, slots=slots, items=items)
        load = functools.partial(
            bench_of, run, split, values=wish.value, floor=wish.floor, slots=slots, part=part, users=users, device=device,
            beams=beams,
        )  # fmt: skip
        points = grid.points(
            wish.floor, slots, seeds=range(seeds) if part == "test" else (), unit=float(wish.value.max())
        )
        extra = grid.rates(slots, unit=float(wish.value.max())) if rates else []
        told = show(len(points) + len(extra))
        sweep(load, points, out / "sweep", batch=batch, workers=workers, progress=told)
        if extra:
            sweep(load, extra, out / "rates", batch=batch, workers=workers, progress=told)
        swept = read(out / "sweep")
        sections = evidence.sections(swept, read(out / "rates") if extra else None, objective=wish.name)
        lead = ["What each decoder costs and delivers, on one model and the same users. " + evidence.HOW]
        made = colophon([shlex.join(["spdd", *sys.argv[1:]])], model=str(run), seeds=str(seeds))
        path = write(Page(f"{run.name}: {wish}", lead, sections, made), out / "report.html")
        if not quiet:
            print_page(_summary(evidence.said(swept, verdict(swept)), path, time.perf_counter() - began))


def tune(
    run: Run,
    prepared: Prepared,
    objective: Objectives,
    out: Annotated[
        Path, typer.Option("--out", help="Folder for policy.toml, report.html and the search; one there goes on.")
    ],
    slots: Slots = 10,
    items: Items = None,
    attained: Annotated[
        float, typer.Option("--attained", help="Share of slates that hold the floor, where it is per slate.")
    ] = 0.95,
    trials: Annotated[int, typer.Option("--trials", help="Settings that are tried, beside the usual ones.")] = 40,
    seconds: Annotated[float, typer.Option("--seconds", help="Try nothing new after so many.")] = float("inf"),
    users: Users = None,
    batch: BatchOf = 256,
    seed: Seed = 0,
    beams: Beams = None,
    device: Device = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Find the settings that meet a target at least cost on validation users, judge them on test users, write the policy."""
    began = time.perf_counter()
    with in_words(debug, kept=out / "search"), bar("settings") as show:
        from .data import prepared as files
        from .domains import bench
        from .evaluate import tune as search
        from .policy_text import policy_text
        from .report import tuning
        from .report.colophon import colophon
        from .report.page import write
        from .trained import open_run
        from .wish import wish_of

        check_positive(users=users, slots=slots, batch=batch)
        split = files.load(prepared)
        wish = wish_of(split, objective, slots=slots, items=items)
        view = "average" if wish.per == "traffic" else "slate"
        opened = open_run(run, split, device=device, beams=beams)
        made_of: dict[str, Any] = {"values": wish.value, "floor": wish.floor, "slots": slots, "users": users}
        told = show(search.steps(trials))
        found = search.tune(
            bench(opened, split, part="validation", name="validation", **made_of), out / "search", view=view,
            attained=attained, trials=trials, seconds=seconds, seed=seed, batch=batch, progress=told,
        )  # fmt: skip
        taken = found.chosen or found.nearest
        judged = bench(opened, split, part="test", name="test", **made_of)
        test = search.compare(out / "test", taken.point, [trial.point for trial in found.rivals], judged, batch)
        command = shlex.join(["spdd", *sys.argv[1:]])
        page = tuning.page(found, test, wish=str(wish), made=colophon([command], model=str(run), seed=str(seed)))
        path = write(page, out / "report.html")
        told_by = f"Found by `{command}` on {found.target.users:,} validation users."
        from .files import write_atomically

        write_atomically(out / "policy.toml", policy_text(taken.point, wish.name, wish.column, slots, told_by))
        if not quiet:
            print_page(
                _summary(
                    [*tuning.said(found, test), f"policy: {out / 'policy.toml'}"], path, time.perf_counter() - began
                )
            )
        if found.chosen is None:
            raise ValueError(
                f"nothing that was tried meets the target ({tuning.missed(found)}); the policy is the nearest. Lower the "
                "target, or give it more --trials."
            )


def _summary(lines: list[Any], path: Path, seconds: float) -> str:
    """Plain words for the terminal: no marks of the page."""
    said = [str(line).replace("**", "") for line in lines]
    return "\n".join([*(f"- {line}" for line in said), f"{path}  ({seconds:.0f} s)"])
