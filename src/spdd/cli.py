"""The command line: `spdd rerank`, `spdd schema`, `spdd demo`. Thin: words in, one call, words out.

Heavy packages are imported inside the commands, so that help is there at once. A complaint is one plain line on
stderr and exit code 2; `--debug` shows where it came from.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import spdd

if TYPE_CHECKING:
    from rich.console import RenderableType

    from .table import Source, Summary

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    app(prog_name="spdd")


@app.callback(invoke_without_command=True)
def _front(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    """Slates that meet several objectives at once, from any recommender that gives scores."""
    if version:
        print(f"spdd {spdd.__version__}")
        raise typer.Exit


@app.command()
def rerank(
    candidates: Annotated[
        str, typer.Argument(help="A row per user and candidate item: CSV, Parquet or Arrow. - is standard input.")
    ],
    out: Annotated[str, typer.Option("--out", help="Where the slates go. - is standard output.")] = "-",
    slots: Annotated[int | None, typer.Option("--slots", "-k", help="Items per slate; 10 if nobody says.")] = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(
            "--objective", "-o", help="'new>=3', 'margin<=2.5', 'new>=30%', '2<=new<=4', 'new>=3 per traffic'."
        ),
    ] = None,
    at_most_per: Annotated[
        list[str] | None,
        typer.Option("--at-most-per", help="'artist<=2': at most two items with the same label in a slate."),
    ] = None,
    decoder: Annotated[
        str | None,
        typer.Option("--decoder", "-d", help="spdd, greedy, wa, ...; spdd if nobody says. See docs/rerank.md."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the decoder: 'rate=0.2', 'scale=probability'.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option("--policy", "-p", help="A .toml or .json file that says all of this; options come on top."),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option("--state", help="A file with what the decoder has learnt: read if there, written after."),
    ] = None,
    user: Annotated[str, typer.Option("--user", help="The column of users.")] = "user",
    item: Annotated[str, typer.Option("--item", help="The column of items.")] = "item",
    score: Annotated[str, typer.Option("--score", help="The column of scores.")] = "score",
    format_: Annotated[
        str | None, typer.Option("--format", help="csv, parquet or arrow, where suffixes do not say.")
    ] = None,
    in_format: Annotated[str | None, typer.Option("--in-format", help="The same, of the candidates.")] = None,
    out_format: Annotated[str | None, typer.Option("--out-format", help="The same, of the slates.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No summary.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where in the code a complaint came from.")] = False,
) -> None:
    """Build a slate for every user of a table of candidates."""
    began = time.perf_counter()
    with _in_words(debug):
        from .policy_file import Policy, amended, parse_objectives, parse_per_group, parse_setting, read_policy
        from .table import Target, needs, open_source, rerank_table
        from .table.formats import format_of

        _one_thread()
        stated = amended(
            Policy() if policy is None else read_policy(policy),
            decoder=decoder,
            slots=slots,
            objectives=[*parse_objectives(objective or ()), *map(parse_per_group, at_most_per or ())],
            settings=dict(map(parse_setting, set_ or ())),
        )
        source_path, target_path = (None if path == "-" else path for path in (candidates, out))
        came = format_of(source_path, in_format or format_, "--in-format")
        goes = format_of(target_path, out_format or format_, "--out-format")
        _check_apart(target_path, {"candidates": source_path, "--policy": policy, "--state": state})
        with Target(target_path, goes) as target, _progress() as show:
            path, name = _on_disk(source_path, target.folder)
            source = open_source(path, came, {"user": user, "item": item, "score": score, **needs(stated)}, name)
            summary = rerank_table(stated, source, target, state=state, progress=show(source))
        if not quiet:
            _print(summary_page(summary, time.perf_counter() - began))


@app.command()
def schema() -> None:
    """Print the JSON schema of policy files."""
    from .policy_file import Policy

    print(json.dumps(Policy.model_json_schema(), indent=2))


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="The folder it writes to.")] = Path("out/demo"),
    debug: Annotated[bool, typer.Option("--debug", help="Show where in the code a complaint came from.")] = False,
) -> None:
    """A guided tour on a small made-up catalogue."""
    with _in_words(debug):
        from . import demo as tour

        tour.run(out)


# ---- complaints, signals --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _in_words(debug: bool) -> Iterator[None]:
    """Complaints as one plain line; a signal to stop runs the clean-up first."""

    def stop(number, frame):
        raise SystemExit(128 + number)

    before = {s: signal.signal(s, stop) for name in ("SIGTERM", "SIGHUP") if (s := getattr(signal, name, None))}
    try:
        yield
    except KeyboardInterrupt:
        print("spdd: stopped; nothing was written.", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:  # whoever read the output has enough, `| head` say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that closing it fails no more
        raise SystemExit(141) from None
    except (ValueError, TypeError, OSError) as error:
        if debug:
            raise
        print(f"spdd: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except Exception as error:
        if debug:
            raise
        print(
            f"spdd: unexpected {type(error).__name__}: {error}. This is a mistake in spdd; --debug shows where.",
            file=sys.stderr,
        )
        raise SystemExit(1) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _one_thread() -> None:
    """Decode in one thread, unless told otherwise; polars reads and writes with the others.

    The matrices of a chunk are too small to share: on a busy machine, threads that wait for each other in every
    operation make it ten times slower.
    """
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def _check_apart(out: str | None, others: dict[str, str | None]) -> None:
    """The output may not take the place of what is read."""
    for word, path in others.items():
        if out is not None and path is not None and Path(out).resolve() == Path(path).resolve():
            raise ValueError(f"--out must be another file than {word}, got '{out}' for both.")


def _on_disk(path: str | None, folder: Path) -> tuple[Path, str]:
    """Where the candidates can be read more than once, and how messages call them."""
    if path is not None and (not Path(path).exists() or Path(path).is_file() or Path(path).is_dir()):
        return Path(path), f"'{path}'"
    spool = folder / "candidates"
    with contextlib.ExitStack() as stack:
        stream = sys.stdin.buffer if path is None else stack.enter_context(Path(path).open("rb"))
        shutil.copyfileobj(stream, stack.enter_context(spool.open("wb")))
    return spool, "standard input" if path is None else f"'{path}'"


# ---- what people see ------------------------------------------------------------------------------------------------


def _print(page: RenderableType) -> None:
    from rich.console import Console

    Console(stderr=True, highlight=False).print(page)


@contextlib.contextmanager
def _progress():
    """A bar on a terminal, nothing elsewhere. Gives a function: source -> what to tell of rows done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("reading", total=None)

        def show(source: Source):
            bar.update(task, description="rows", total=source.rows)
            return lambda rows: bar.advance(task, rows)

        yield show


def summary_page(summary: Summary, seconds: float) -> RenderableType:
    """What was served and what it cost, on one screen."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    users = max(summary.users, 1)
    lines = [
        f"{summary.users:,} user{'s' * (summary.users != 1)}, {summary.filled:,} of {users * summary.slots:,} slots filled",
        f"{summary.rows:,} rows in {seconds:.1f} s ({summary.rows / max(seconds, 1e-9):,.0f} rows/s)",
    ]
    if summary.few:
        have = "1 user has" if summary.few == 1 else f"{summary.few:,} users have"
        lines.append(f"{have} fewer candidates than slots, and a shorter slate")
    parts: list[RenderableType] = [Text("\n".join(lines))]
    if summary.objectives:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("")
        table.add_column("asked")
        for heading in ("collected", "greedy", "met", "short", "impossible"):
            table.add_column(heading, justify="right")
        for tally in summary.objectives:
            counts = [tally.met, summary.users - tally.met - tally.impossible, tally.impossible]
            shown = ["", "", ""] if tally.per == "traffic" else [_share(n, users) for n in counts]
            per = "" if tally.per == "slate" else f" per {tally.per}"
            average = (f"{tally.gained / users:.3f}", f"{tally.greedy / users:.3f}")
            table.add_row(Text(tally.name), tally.asked + per, *average, *shown)
        table.add_row("slates", "", "", "", *(_share(n, users) for n in summary.status.tolist()), style="bold")
        parts.append(table)
    if summary.exposed is not None:
        least, plain = summary.exposed.least
        parts.append(
            Text(
                f"worst-off of {len(summary.exposed.due):,} providers: {least:.3f} of the exposure due, greedy {plain:.3f}"
            )
        )
    lost = (summary.greedy - summary.relevance) / users
    parts.append(
        Text(
            f"relevance per slate {summary.relevance / users:.4g}, greedy {summary.greedy / users:.4g}: "
            f"{lost:.4g} given up ({summary.scale} scale)"
        )
    )
    return Group(*parts)


def _share(count: int, of: int) -> str:
    """A percentage that says 0 and 100 only where it is so."""
    share = 100 * count / of
    if 0 < share < 0.1:
        return "<0.1%"
    return ">99.9%" if 99.9 < share < 100 else f"{share:.1f}%"


if __name__ == "__main__":
    main()
