"""`spdd data`, `spdd train` and `spdd slate`: from publishers' files to slates decoded item by item. Thin, as `cli.py` is."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from .terminal import Debug, Quiet, bar, check_apart, check_positive, in_words, print_page, summary_page

data = typer.Typer(no_args_is_help=True, help="Bring data into the form models learn from.")

Options = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting, 'name=value'; the command's page in docs/ lists them."),
]
Device = Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1; the GPU where there is one.")]


@data.command()
def prepare(
    kind: Annotated[str, typer.Argument(help="Whose format it is: amazon, kuairand, movielens, playlists or table.")],
    path: Annotated[Path, typer.Argument(help="The raw file, or the folder of raw files.")],
    out: Annotated[Path, typer.Option("--out", help="The prepared file, .npz.")],
    core: Annotated[int, typer.Option("--core", help="The least events of a user and of an item; 0 keeps all.")] = 0,
    core_of: Annotated[
        str, typer.Option("--core-of", help="'train' counts after the cut and leaks nothing; 'all' as papers do.")
    ] = "train",
    split: Annotated[
        str, typer.Option("--split", help="'last' events of each user, or everything after a 'time'.")
    ] = "last",
    n: Annotated[int, typer.Option("--n", help="How many last events are held out.")] = 1,
    share: Annotated[
        float, typer.Option("--share", help="Of all events, held out by time where --at does not say.")
    ] = 0.1,
    at: Annotated[int | None, typer.Option("--at", help="Milliseconds: the test begins here.")] = None,
    validation_at: Annotated[
        int | None, typer.Option("--validation-at", help="Milliseconds: validation begins.")
    ] = None,
    most_bad: Annotated[float, typer.Option("--most-bad", help="The largest share of malformed lines.")] = 0.01,
    set_: Options = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Read raw files, filter, split by time, and write one prepared file."""
    with in_words(debug), bar("bytes") as show:
        from .data.command import describe
        from .data.command import prepare as prepared
        from .policy_file import parse_setting

        found = prepared(
            kind, path, out, core=core, core_of=core_of, split=split, n=n, at=at, validation_at=validation_at, share=share,
            most_bad=most_bad, progress=show(None), options=dict(map(parse_setting, set_ or ())),
        )  # fmt: skip
        if not quiet:
            print_page(describe(found))


@data.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A data set whose publisher lets it be downloaded; see docs/data.md.")],
    folder: Annotated[Path, typer.Argument(help="Where its files go.")],
    debug: Debug = False,
) -> None:
    """Download a publisher's files, going on where an earlier try stopped, and check them."""
    with in_words(debug, kept=folder), bar("bytes") as show:
        from .data import download

        tell, told = {}, {}

        def come(file: str, bytes_: int, whole: int | None) -> None:
            if file not in tell:
                tell[file] = show(whole)
            tell[file](bytes_ - told.get(file, 0))
            told[file] = bytes_

        print(download.fetch(name, folder, told=come))


def train(
    model: Annotated[str, typer.Argument(help="sasrec, transact or lmrec.")],
    prepared: Annotated[Path, typer.Argument(help="What `spdd data prepare` wrote.")],
    out: Annotated[Path, typer.Option("--out", help="The run folder; a run found there goes on.")],
    set_: Options = None,
    device: Device = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew, whatever the folder holds.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train a model; killed and started again it ends with the same weights."""
    again = f"; the same command{' without --fresh' * fresh} goes on from there"
    with in_words(debug, kept=out / "last.pt", again=again):
        from .data import prepared as files
        from .policy_file import parse_setting
        from .trained import train_model

        began = time.perf_counter()
        split = files.load(prepared)
        done = train_model(model, split, out, dict(map(parse_setting, set_ or ())), device=device, resume=not fresh)
        if quiet or int(os.environ.get("RANK", 0)):  # torchrun starts several of us; the first one speaks
            return
        best = ", ".join(f"{name} {value:.4f}" for name, value in done.best.items()) or "no validation"
        which = f"best epoch {done.epoch} of {done.epochs}" if done.epoch >= 0 else "part of its first epoch"
        print_page(
            f"{model}: {which}, {best}\n{done.steps:,} steps; ended because {done.why}; "
            f"{time.perf_counter() - began:.0f} s\n{done.folder / 'best.pt'}"
        )


def slate(
    run: Annotated[Path, typer.Argument(help="The run folder of `spdd train`.")],
    prepared: Annotated[Path, typer.Argument(help="The prepared file it was trained on.")],
    out: Annotated[str, typer.Option("--out", help="Where the slates go: .parquet, .csv or .arrow.")],
    slots: Annotated[int | None, typer.Option("--slots", "-k", help="Items per slate; 10 if nobody says.")] = None,
    objective: Annotated[
        list[str] | None,
        typer.Option("--objective", "-o", help="'new>=3', 'categories=Cycling>=30%', 'popularity<=500'."),
    ] = None,
    at_most_per: Annotated[list[str] | None, typer.Option("--at-most-per", help="'artist<=2'.")] = None,
    decoder: Annotated[str | None, typer.Option("--decoder", "-d", help="spdd if nobody says.")] = None,
    set_: Options = None,
    policy: Annotated[str | None, typer.Option("--policy", "-p", help="A .toml or .json policy file.")] = None,
    items: Annotated[
        Path | None, typer.Option("--items", help="A table with a column `item` and your own columns of values.")
    ] = None,
    part: Annotated[
        str,
        typer.Option(
            "--part", help="Whose slates: users of 'test' or 'validation' as they stood then, or 'all' today."
        ),
    ] = "test",
    users: Annotated[int | None, typer.Option("--users", help="Only the first so many.")] = None,
    batch: Annotated[int, typer.Option("--batch", help="Users decoded together.")] = 256,
    beams: Annotated[int | None, typer.Option("--beams", help="Beams inside an item, for models that spell.")] = None,
    compare: Annotated[bool, typer.Option(help="Decode plainly too, to say what objectives cost.")] = True,
    device: Device = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Decode slates item by item from a trained model, which is asked again after every choice."""
    began, folder = time.perf_counter(), Path(f"{out}.parts")
    with in_words(debug, kept=folder):
        from .data import prepared as files
        from .item_columns import item_columns
        from .policy_file import policy_said
        from .slates import slate_table
        from .table import Target
        from .table.formats import format_of
        from .trained import RUN_FILES, open_run

        stated = policy_said(
            policy, decoder=decoder, slots=slots, objectives=objective, at_most_per=at_most_per, settings=set_
        )
        check_positive(users=users, batch=batch)
        form = format_of(out, None, "--out")
        of_run = {f"the run's {name}": run / name for name in RUN_FILES}
        check_apart(
            out, {"the prepared file": prepared, "the run": run, **of_run, "--policy": policy, "--items": items}
        )
        split = files.load(prepared)
        opened = open_run(run, split, device=device, beams=beams)
        if stated.slots > len(split.items.id):
            raise ValueError(
                f"slates of {stated.slots:,} slots cannot be filled from {len(split.items.id):,} items. Give fewer: --slots."
            )
        columns = item_columns(split, stated.columns, items)
        asked = opened.asked(split, part).first(users)
        whose: dict[str, Any] = {
            "run": str(run),
            "weights": opened.digest,
            "data": split.items.fingerprint(),
            "part": part,
            "beams": beams,
        }
        with Target(out, form) as target, bar("users") as show:
            summary = slate_table(
                stated, opened.model, split.items.id, columns, asked, target, folder=folder, run=whose, batch=batch,
                compare=compare, progress=show(len(asked.user)),
            )  # fmt: skip
        shutil.rmtree(folder)
        if not quiet:
            print_page(summary_page(summary, time.perf_counter() - began, counted="users"))
