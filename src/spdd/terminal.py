"""What all commands share with whoever types them: complaints in words, signals, a bar, the summary on one screen."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from .table import Summary

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No summary.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show where in the code a complaint came from.")]


@contextlib.contextmanager
def in_words(
    debug: bool, kept: Path | None = None, again: str = "; the same command goes on from there"
) -> Iterator[None]:
    """Complaints as one plain line; a signal to stop runs the clean-up first.

    kept: where a command that is stopped leaves what it has done, if it has come so far.  again: how to go on from it
    """

    def stop(number, frame):
        raise SystemExit(128 + number)

    before = {s: signal.signal(s, stop) for name in ("SIGTERM", "SIGHUP") if (s := getattr(signal, name, None))}
    try:
        yield
    except KeyboardInterrupt:
        there = kept is not None and kept.exists()
        left = f"what is done so far is in '{kept}'{again}" if there else "nothing was written"
        print(f"spdd: stopped; {left}.", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:  # whoever read the output has enough, `| head` say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that closing it fails no more
        raise SystemExit(141) from None
    except (ValueError, TypeError, OSError) as error:
        if debug:
            raise
        told = f"'{error.filename}': {error.strerror}." if isinstance(error, OSError) and error.filename else error
        print(f"spdd: {told}", file=sys.stderr)
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


def check_positive(**given: int | None) -> None:
    """Options that count something, where they are given."""
    for name, number in given.items():
        if number is not None and number < 1:
            raise ValueError(f"--{name} must be at least 1, got {number}.")


def check_apart(out: str | None, others: Mapping[str, str | Path | None]) -> None:
    """The output may not take the place of what is read."""
    for word, path in others.items():
        if out is not None and path is not None and Path(out).resolve() == Path(path).resolve():
            raise ValueError(f"--out must be another file than {word}, got '{out}' for both.")


# ---- what people see ------------------------------------------------------------------------------------------------


def print_page(page: RenderableType | str) -> None:
    from rich.console import Console

    Console(stderr=True, highlight=False).print(page)


@contextlib.contextmanager
def bar(what: str) -> Iterator[Callable[[int | None], Callable[[int], None]]]:
    """A bar on a terminal, nothing elsewhere. Gives a function: how many there are -> what to tell of those done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as shown:
        task = shown.add_task("reading", total=None)

        def show(total: int | None) -> Callable[[int], None]:
            shown.update(task, description=what, total=total)
            return lambda done: shown.advance(task, done)

        yield show


def summary_page(summary: Summary, seconds: float, counted: str = "rows") -> RenderableType:
    """What was served and what it cost, on one screen. counted: what the speed is told in, "rows" or "users"."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    users = max(summary.users, 1)
    done = getattr(summary, counted)
    lines = [
        f"{summary.users:,} user{'s' * (summary.users != 1)}, {summary.filled:,} of {users * summary.slots:,} slots filled",
        f"{done:,} {counted} in {seconds:.1f} s ({done / max(seconds, 1e-9):,.0f} {counted}/s)",
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
        providers = f"worst-off of {len(summary.exposed.due):,} providers"
        parts.append(Text(f"{providers}: {least:.3f} of the exposure due, greedy {plain:.3f}"))
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
