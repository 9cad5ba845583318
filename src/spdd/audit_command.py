"""`spdd audit`: theory's bounds beside what became of a trained model's slates. Thin, as `cli.py` is."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .terminal import Debug, Quiet, bar, in_words, print_page

if TYPE_CHECKING:
    from rich.console import RenderableType

    from .data.interactions import Split
    from .evaluate.audit import Audit
    from .evaluate.walks import Goal

Device = Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1; the GPU where there is one.")]


def audit(
    run: Annotated[Path, typer.Argument(help="The run folder of `spdd train`.")],
    prepared: Annotated[Path, typer.Argument(help="The prepared file it was trained on.")],
    objective: Annotated[
        list[str], typer.Option("--objective", "-o", help="A floor, 'new>=3'; several are audited one by one.")
    ],
    out: Annotated[Path, typer.Option("--out", help="The folder the page and its tables go to.")] = Path("out/audit"),
    slots: Annotated[int, typer.Option("--slots", "-k", help="Items per slate.")] = 10,
    rate: Annotated[
        list[float] | None,
        typer.Option("--rate", help="A rate of the printed algorithm; 0.1, 0.3, 1 and 3 if nobody says."),
    ] = None,
    scale: Annotated[
        list[str] | None,
        typer.Option("--scale", help="What relevance is measured on; probability and relative if nobody says."),
    ] = None,
    items: Annotated[
        Path | None, typer.Option("--items", help="A table with a column `item` and your own columns of values.")
    ] = None,
    part: Annotated[
        str, typer.Option("--part", help="Whose slates: users of 'test' or 'validation', or 'all'.")
    ] = "test",
    users: Annotated[int, typer.Option("--users", help="The first so many.")] = 200,
    close: Annotated[int, typer.Option("--close", help="Users whose best slate is sought.")] = 50,
    seed: Annotated[int, typer.Option("--seed", help="Of the draws of users for intervals.")] = 0,
    device: Device = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Lay theory's bounds beside what becomes of a model's slates, and check what they rest on."""
    began = time.perf_counter()
    with in_words(debug):
        from .data import prepared as files
        from .evaluate.audit import RATES, SCALES, settings
        from .evaluate.audit import audit as audited
        from .files import write_atomically
        from .report import audit as told
        from .report.colophon import colophon
        from .report.page import need_drawing, write
        from .trained import PARTS, open_run

        need_drawing()
        if part not in PARTS:
            raise ValueError(f"--part must be one of {', '.join(PARTS)}, got '{part}'.")
        for name, number in (("--users", users), ("--close", close)):
            if number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}.")
        split = files.load(prepared)
        opened = open_run(run, split, device=device)
        goals = _goals(objective, split, items, slots)
        asked = opened.asked(split, part).first(users)
        rates, scales = tuple(rate or RATES), tuple(scale or SCALES)
        with bar("users") as show:
            found = audited(
                opened.model, lambda rows: (asked.histories(rows), asked.exclude(rows)), len(asked.user), goals, slots=slots,
                rates=rates, scales=scales, close=close, seed=seed,
                progress=show(len(asked.user) * (1 + len(goals) * len(settings(scales, rates)))),
            )  # fmt: skip
        made = colophon(
            [shlex.join(["spdd", *sys.argv[1:]])], seed=str(seed), model=f"{run}, weights {opened.digest}",
            data=f"{prepared}, {len(split.items.id):,} items {split.items.fingerprint()[:16]}, part {part}",
        )  # fmt: skip
        out.mkdir(parents=True, exist_ok=True)
        path = write(told.page(found, run.name, made), out / "audit.html")
        write_atomically(out / "audit.json", json.dumps(told.plain(found) | {"made": told.plain(made)}, indent=1))
        if not quiet:
            print_page(_screen(found, time.perf_counter() - began, path))


def _goals(texts: list[str], split: Split, items: Path | None, slots: int) -> list[Goal]:
    """Floors as typed, each with its values."""
    import numpy as np

    from .evaluate.walks import Goal
    from .item_columns import item_columns
    from .objective import Objective
    from .policy_file import parse_objective

    goals = []
    for text in texts:
        found = parse_objective(text)
        if "at_least" not in found or "at_most" in found or found.get("per", "slate") != "slate":
            raise ValueError(
                f"an audit needs floors of slates, like 'new>=3', got '{text}': the bounds are about those."
            )
        name = found["name"]
        value = item_columns(split, [name], items)[name]
        if value.dtype.kind not in "fiub":
            raise ValueError(f"column '{name}' holds labels. Ask for one of them: '{name}=LABEL>=3'.")
        floor, _ = Objective(name, value, at_least=found["at_least"]).targets(slots)
        goals.append(Goal(name, np.asarray(value, dtype=np.float64), float(floor)))
    return goals


def _screen(found: Audit, seconds: float, path: Path) -> RenderableType:
    """The audit on one screen."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from .report.audit import numbers, verdicts

    lines: list[str] = []
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("", "missed", "short", "paper", "ours", "still", "paper", "ours", "moving", "paper", "ours"):
        table.add_column(heading, justify="right" if heading else "left")
    block = None
    for c in found.cases:
        if block != (c.goal, c.floor, c.scale):
            block = (c.goal, c.floor, c.scale)
            lines.append(f"{c.goal} >= {c.floor:g}, {c.scale} scale")
            table.add_row(Text(f"[{len(lines)}]", style="bold"))
        cells = []
        for reality in (c.shortfall, c.still, c.moving):
            said = {b.name: b.mean for b in reality.bounds}
            cells += [reality.mean, said.get("paper"), said.get("ours")]
        told = ("" if x is None else numbers(x) for x in cells)
        name = "default" if c.rate is None else f"rate {c.rate:g}"
        table.add_row(name, f"{100 * c.missed.value:.1f}%", *told)
    lead = f"{found.users:,} users, slates of {found.slots} out of {found.items:,} items, {seconds:.0f} s"
    return Group(
        Text(lead), table, Text("  ".join(f"[{n}] {line}" for n, line in enumerate(lines, 1))),
        Text("short: value missing; still, moving: relevance lost; each beside the bounds on it; means over users.\n"
        "vacuous: at least the floor, or all that the best slate is worth."),
        *(Text(f"- {line}") for line in verdicts(found)), Text(str(path)),
    )  # fmt: skip
