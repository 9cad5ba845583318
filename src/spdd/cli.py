"""The command line: `spdd rerank | data | train | slate | evaluate | tune | audit | experiment | ...`. Thin: words in, one call, words out.

Heavy packages are imported inside the commands, so that help is there at once. A complaint is one plain line on
stderr and exit code 2; `--debug` shows where it came from.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

import spdd

from . import audit_command, evaluate_commands, experiment_commands, model_commands
from .terminal import Debug, Quiet, bar, check_apart, in_words, print_page, summary_page

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
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Build a slate for every user of a table of candidates."""
    began = time.perf_counter()
    with in_words(debug):
        from .policy_file import policy_said
        from .table import Target, needs, open_source, rerank_table
        from .table.formats import format_of

        _one_thread()
        stated = policy_said(
            policy, decoder=decoder, slots=slots, objectives=objective, at_most_per=at_most_per, settings=set_
        )
        source_path, target_path = (None if path == "-" else path for path in (candidates, out))
        came = format_of(source_path, in_format or format_, "--in-format")
        goes = format_of(target_path, out_format or format_, "--out-format")
        check_apart(target_path, {"candidates": source_path, "--policy": policy, "--state": state})
        with Target(target_path, goes) as target, bar("rows") as show:
            path, name = _on_disk(source_path, target.folder)
            source = open_source(path, came, {"user": user, "item": item, "score": score, **needs(stated)}, name)
            summary = rerank_table(stated, source, target, state=state, progress=show(source.rows))
        if not quiet:
            print_page(summary_page(summary, time.perf_counter() - began))


app.add_typer(model_commands.data, name="data")
app.command()(model_commands.train)
app.command()(model_commands.slate)
app.command()(evaluate_commands.evaluate)
app.command()(evaluate_commands.tune)
app.command()(audit_command.audit)
app.add_typer(experiment_commands.experiment, name="experiment")


@app.command()
def schema() -> None:
    """Print the JSON schema of policy files."""
    from .policy_file import Policy

    print(json.dumps(Policy.model_json_schema(), indent=2))


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="The folder it writes to.")] = Path("out/demo"),
    data: Annotated[
        Path | None, typer.Option("--data", help="Your table (user, item, time, attributes), or a prepared file.")
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option("--objective", "-o", help="'new>=3', about columns of your data; long tail if left out."),
    ] = None,
    users: Annotated[int, typer.Option("--users", help="Listeners; of your data, how many are judged.")] = 2000,
    seed: Annotated[int, typer.Option("--seed", help="Of the world, the model and all that draws.")] = 0,
    workers: Annotated[int, typer.Option("--workers", help="Processes that share the sweep.")] = 2,
    debug: Debug = False,
) -> None:
    """The whole story in minutes: a model, every decoder swept, an A/B test, one report."""
    with in_words(debug, kept=out, again=""):
        from . import demo as story

        if objective is not None and data is None:
            raise ValueError("--objective is about columns of your data. Give it with --data.")
        typed = shlex.join(["spdd", *sys.argv[1:]])
        story.run(out, data=data, objective=objective, users=users, seed=seed, workers=workers, command=typed)


@app.command()
def tour(
    out: Annotated[Path, typer.Option("--out", help="The folder it writes to.")] = Path("out/tour"),
    debug: Debug = False,
) -> None:
    """Every decoder on a made-up table of candidates, in seconds, and one `spdd rerank`."""
    with in_words(debug, kept=out, again=""):
        from . import tour as guided

        guided.run(out)


# ---- the candidates ---------------------------------------------------------------------------------------------------


def _one_thread() -> None:
    """Decode in one thread, unless told otherwise; polars reads and writes with the others.

    The matrices of a chunk are too small to share: on a busy machine, threads that wait for each other in every
    operation make it ten times slower.
    """
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def _on_disk(path: str | None, folder: Path) -> tuple[Path, str]:
    """Where the candidates can be read more than once, and how messages call them."""
    if path is not None and (not Path(path).exists() or Path(path).is_file() or Path(path).is_dir()):
        return Path(path), f"'{path}'"
    spool = folder / "candidates"
    with contextlib.ExitStack() as stack:
        stream = sys.stdin.buffer if path is None else stack.enter_context(Path(path).open("rb"))
        shutil.copyfileobj(stream, stack.enter_context(spool.open("wb")))
    return spool, "standard input" if path is None else f"'{path}'"


if __name__ == "__main__":
    main()
