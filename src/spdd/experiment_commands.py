"""`spdd experiment`: an A/B test of policies on simulated listeners, or the analysis of a table of your own. Thin, as `cli.py` is."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .terminal import Debug, Quiet, bar, in_words, print_page

if TYPE_CHECKING:
    from rich.console import RenderableType

    from .evaluate.ab import Experiment
    from .evaluate.bootstrap import Known

experiment = typer.Typer(invoke_without_command=True, help="A/B experiments: simulated, or of your own table.")

Alpha = Annotated[float, typer.Option("--alpha", help="The chance of a false finding; intervals leave as much out.")]
Correction = Annotated[str, typer.Option("--correction", help="holm, bh (Benjamini-Hochberg) or none.")]
Cuped = Annotated[bool, typer.Option(help="Take out what made users differ before (CUPED).")]
Peek = Annotated[
    int, typer.Option("--peek", help="Look so many times while users come, with intervals that hold at all looks.")
]
Lift = Annotated[float, typer.Option("--lift", help="The lift whose price in users is told; 0.02 is 2 %.")]


@experiment.callback()
def simulated(
    context: typer.Context,
    arms: Annotated[
        str, typer.Option("--arms", help="Beside the control, with commas: wa, spdd, must-fill, spdd-printed.")
    ] = "wa,spdd",
    arm: Annotated[
        list[str] | None, typer.Option("--arm", help="'name=policy.toml': an arm of your own; may be said again.")
    ] = None,
    users: Annotated[int, typer.Option("--users", help="Listeners, divided by the arms.")] = 2000,
    visits: Annotated[int, typer.Option("--visits", help="Times each listener comes.")] = 4,
    slots: Annotated[int, typer.Option("--slots", "-k", help="Items per slate.")] = 10,
    floor: Annotated[float, typer.Option("--floor", help="Items of new creators a slate should hold.")] = 3,
    model: Annotated[str, typer.Option("--model", help="What scores items: sasrec, knn or popularity.")] = "sasrec",
    seed: Annotated[int, typer.Option("--seed", help="Of world, training, chance and assignment.")] = 0,
    aa: Annotated[
        bool, typer.Option("--aa", help="Give all arms the control's policy: nothing should be found.")
    ] = False,
    peek: Peek = 0,
    lift: Lift = 0.02,
    alpha: Alpha = 0.05,
    correction: Correction = "holm",
    cuped: Cuped = True,
    out: Annotated[Path, typer.Option("--out", help="The folder it writes to.")] = Path("out/experiment"),
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Play an A/B test out on simulated listeners, whose every motive is known, and analyse it as one would."""
    if context.invoked_subcommand:
        return
    began = time.perf_counter()
    with in_words(debug):
        from . import experiments

        files = dict(_named(text) for text in arm or ())
        names = [name.strip() for name in arms.split(",") if name.strip()]
        on = experiments.stage(
            out / f"{model}-{users}-{seed}", users=users, floor=floor, slots=slots, model=model, seed=seed
        )
        tried = experiments.arms_of(on, names, files)
        with bar("listeners") as show:
            result = experiments.play(
                on, tried, visits=visits, seed=seed, aa=aa, peek=peek, lift=lift, alpha=alpha, correction=correction, cuped=cuped,
                progress=show(experiments.steps(on, tried, aa)),
            )  # fmt: skip
        title = "An A/A experiment on simulated listeners" if aa else "An A/B experiment on simulated listeners"
        written = experiments.write(result, out, title, _typed(), seed=str(seed))
        if not quiet:
            print_page(experiment_screen(result, time.perf_counter() - began, written))


@experiment.command()
def analyse(
    table: Annotated[str, typer.Argument(help="A row per user: CSV, Parquet or Arrow.")],
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", "-m", help="'minutes', or 'skip rate=skips/looks'; all columns of numbers if none."),
    ] = None,
    control: Annotated[str, typer.Option("--control", help="The arm that others are compared with.")] = "control",
    share: Annotated[
        list[str] | None, typer.Option("--share", help="'arm=2': how users should divide; evenly if nobody says.")
    ] = None,
    user: Annotated[str, typer.Option("--user", help="The column of users.")] = "user",
    arm: Annotated[str, typer.Option("--arm", help="The column of arms.")] = "arm",
    before: Annotated[
        str, typer.Option("--before", help="What ends the name of a column that tells what was before.")
    ] = " before",
    order: Annotated[str | None, typer.Option("--order", help="The column of when users came.")] = None,
    peek: Peek = 0,
    planned: Annotated[
        int | None, typer.Option("--planned", help="Users there will be in the end, for --peek.")
    ] = None,
    lift: Lift = 0.02,
    alpha: Alpha = 0.05,
    correction: Correction = "holm",
    cuped: Cuped = True,
    out: Annotated[Path, typer.Option("--out", help="The folder it writes to.")] = Path("out/experiment"),
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Analyse a table of an experiment's results: sample ratio, lifts, intervals, corrected p-values."""
    began = time.perf_counter()
    with in_words(debug):
        from . import experiments

        result = experiments.of_table(
            table, metrics=metric or (), control=control, user=user, arm=arm, suffix=before, order=order, peek=peek, planned=planned,
            shares={name: _number(name, x) for name, x in map(_named, share)} if share else None, lift=lift, alpha=alpha,
            correction=correction, cuped=cuped,
        )  # fmt: skip
        written = experiments.write(result, out, f"The experiment in {Path(table).name}", _typed())
        if not quiet:
            print_page(experiment_screen(result, time.perf_counter() - began, written))


def _named(text: str) -> tuple[str, str]:
    name, sign, rest = text.partition("=")
    if not (name.strip() and sign and rest.strip()):
        raise ValueError(f"an arm must be said as 'name=...', got '{text}'.")
    return name.strip(), rest.strip()


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"the share of arm '{name}' must be a number, got '{text}'.") from None


def _typed() -> str:
    return shlex.join(["spdd", *sys.argv[1:]])


# ---- what people see ------------------------------------------------------------------------------------------------


def experiment_screen(result: Experiment, seconds: float, written: list[Path]) -> RenderableType:
    """The result on one screen."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from .evaluate.experiment import CORRECTIONS

    seen = result.analysis
    divided = ", ".join(f"{arm} {users:,}" for arm, users in zip(result.arms, seen.ratio.users, strict=True))
    verdict = "NOT as they should be: believe nothing below" if seen.ratio.wrong else "as they should be"
    lines = [f"{sum(seen.ratio.users):,} users: {divided}; divided {verdict} (p {seen.ratio.p_value:.3g})"]
    if result.aa:
        lines.append("A/A: every arm has the control's policy; whatever is found is an error")
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
    for heading in ("arm", "metric"):
        table.add_column(heading, no_wrap=True)
    truth = ["truth"] if result.truth else []
    for heading in ("level", "lift", f"{1 - seen.alpha:.0%} interval", *truth, "adj. p", "could\nfind"):
        table.add_column(heading, justify="right", no_wrap=True)
    able = {p.metric: p.found for p in result.plan}
    for e in seen.estimates:
        told = [_change(result.truth[e.arm, e.metric].lift)] if truth else []
        table.add_row(
            Text(e.arm), Text(e.metric), f"{e.level:.4g}", _change(e.lift.value), _span(e.lift), *told,
            "-" if e.adjusted != e.adjusted else f"{e.adjusted:.3f}", _change(able[e.metric])[1:] if e.metric in able else "",
            style="bold" if e.adjusted < seen.alpha else None,
        )  # fmt: skip
    told = CORRECTIONS[seen.correction].split(":")[0]
    end = [f"bold: found, with {told}"]
    if result.plan:
        end.append(f"could find: the least lift that {sum(seen.ratio.users):,} users show in 80 of 100 experiments")
    if result.looks:
        end.append(f"{len(result.looks)} looks: intervals and p-values hold at all of them together")
    end.append(f"{seconds:.0f} s; {', '.join(map(str, written))}")
    return Group(Text("\n".join(lines)), table, Text("\n".join(end)))


def _change(x: float) -> str:
    """A change in per cent; large ones without decimals."""
    return "-" if x != x else f"{x:+.1%}" if abs(x) < 1 else f"{x:+.0%}"


def _span(known: Known) -> str:
    return "-" if known.low != known.low else f"{_change(known.low)} to {_change(known.high)}"
