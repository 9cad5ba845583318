"""Any table with a user, an item and a time per row: CSV, Parquet or Arrow.

All other columns go along: those of a second table, by item, as attributes of items; those of the first as columns of
events, unless they are named as attributes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from .interactions import Interactions
from .lines import Progress, Tally
from .rows import LINE, SCALE, columns_of, interactions, sift, split_rows

MILLISECONDS = {"s": 1000, "ms": 1}
BINARY = {".parquet": pl.scan_parquet, ".pq": pl.scan_parquet}
ARROW = (".arrow", ".feather", ".ipc")


def read(
    path: str | Path,
    *,
    user: str = "user",
    item: str = "item",
    time: str | None = "time",
    unit: str = "s",
    items: str | Path | None = None,
    attributes: Sequence[str] = (),
    name: str | None = None,
    most_bad: float = 0.01,
    progress: Progress | None = None,
) -> Interactions:
    """The rows of a table as events.

    user, item, time: the columns with these; time=None takes the order of rows, which cannot be compared between users
    unit:       of a time that is a number: "s" or "ms" since 1970. Dates need none
    items:      a table of items, with the same column `item`; all its other columns are attributes
    attributes: columns of the first table that tell of the item; of an item the first value counts, and a split takes
                it from train rows alone
    most_bad:   the largest share of rows that may be malformed
    """
    if unit not in MILLISECONDS:
        raise ValueError(f"`unit` must be 's' or 'ms', got {unit!r}.")
    path = Path(path)
    ours = {user: "user", item: "item"} | ({} if time is None else {time: "time"})
    if clash := [c for c in attributes if c in ours]:
        raise ValueError(
            f"'{clash[0]}' is an attribute and the {ours[clash[0]]} of '{path}'. Leave it out of `attributes`."
        )
    tally, of_items = Tally(most_bad, "rows"), Tally(most_bad, "rows of items")
    events, about = [], []
    for batch in frames(path, tally, progress):
        columns_of(
            batch,
            [*ours, *attributes],
            path,
            "Rename them, or name them once: `spdd data prepare table FILE --set user=... --set time=... --out FILE.npz` (user=..., time=... in Python).",
        )
        batch = _renamed(batch, ours, path)
        if time is None:
            batch = batch.with_columns(pl.col(LINE).alias("time"))
        kinds = {"user": "id", "item": "id", "time": "time"}
        others = {c: "text" for c in batch.columns if c not in (*kinds, LINE)}
        rows = sift(_dated(batch), kinds | others, path, tally, scale=1 if time is None else MILLISECONDS[unit])
        events.append(rows)
    if items is not None:
        for batch in frames(Path(items), of_items, progress):
            columns_of(batch, [item], Path(items), "Name it: item=... (--set item=... on the command line).")
            batch = _renamed(batch, {item: "item"}, Path(items))
            if clash := [c for c in attributes if c in batch.columns]:
                raise ValueError(
                    f"'{clash[0]}' is an attribute and a column of '{items}'. Leave it out of `attributes`."
                )
            kinds = {c: "text" for c in batch.columns if c != LINE} | {"item": "id"}
            about.append(sift(batch, kinds, Path(items), of_items))
    made = interactions(
        name or path.name.split(".")[0],
        events,
        about,
        tally,
        of_items,
        path=path,
        absolute=time is not None,
        described=attributes,
    )
    return dataclasses.replace(made, events=_numbers(made.events), items=_numbers(made.items))


def frames(path: Path, tally: Tally, progress: Progress | None = None) -> Iterator[pl.DataFrame]:
    """The table in batches, with a column ?line; text only, where it is CSV."""
    kind = path.name.lower().removesuffix(".gz")
    scan = BINARY.get(Path(kind).suffix) or (pl.scan_ipc if kind.endswith(ARROW) else None)
    if not path.is_file():
        raise ValueError(
            f"'{path}' must be a file, and is {'a folder' if path.is_dir() else 'not there'}. Check the path."
        )
    if scan is None:
        if not kind.endswith((".csv", ".tsv", ".txt")):
            raise ValueError(
                f"the format of '{path}' must show in its suffix: .csv, .tsv, .parquet, .arrow or .feather."
            )
        yield from split_rows(path, tally, separator="," if kind.endswith(".csv") else "\t", progress=progress)
        return
    try:
        line = 1
        for batch in scan(path, glob=False).collect_batches(chunk_size=200_000, maintain_order=True):
            tally.read += len(batch)
            yield batch.insert_column(0, pl.int_range(line, line + len(batch), eager=True).alias(LINE))
            line += len(batch)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise ValueError(
            f"'{path}' must be a whole {Path(kind).suffix[1:]} file, and cannot be read: {reason}."
        ) from error
    if progress:
        progress(path.stat().st_size)


def _renamed(batch: pl.DataFrame, ours: dict[str, str], path: Path) -> pl.DataFrame:
    clash = [c for c in batch.columns if c in ours.values() and c not in ours]
    if clash or len(ours) != len(set(ours.values())):
        raise ValueError(f"'{path}' has a column '{clash[0]}' that is not the {clash[0]} you named. Rename or drop it.")
    for old, new in ours.items():
        kind = batch.schema[old]
        moment = kind.is_numeric() or isinstance(kind, pl.Date | pl.Datetime)
        fine = kind == pl.String or kind.is_integer() or (new == "time" and moment)
        if not fine and kind not in (pl.Categorical, pl.Enum):
            raise ValueError(
                f"column '{old}' of '{path}' must hold {'times' if new == 'time' else 'names or whole numbers'}, got {kind}."
            )
        if kind in (pl.Categorical, pl.Enum):
            batch = batch.with_columns(pl.col(old).cast(pl.String))
    return batch.rename(ours)


def _dated(batch: pl.DataFrame) -> pl.DataFrame:
    """Times written as dates, like 2024-05-01 or 2024-05-01T12:30:00, in milliseconds; UTC unless they name an offset."""
    if batch.schema["time"] != pl.String:
        return batch
    text = pl.col("time").str.strip_chars()
    first = batch.select(text.filter(text != "").first()).item()
    if first is None or len(first) < 10 or first[4:5] != "-":
        return batch
    moment = pl.coalesce(
        text.str.to_datetime(f, strict=False, time_unit="ms")
        for f in ("%Y-%m-%dT%H:%M:%S%.fZ", "%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d")
    )
    offset = pl.coalesce(
        text.str.to_datetime(f, strict=False, time_unit="ms", time_zone="UTC").dt.replace_time_zone(None)
        for f in (
            "%Y-%m-%dT%H:%M:%S%.f%:z",
            "%Y-%m-%d %H:%M:%S%.f%:z",
            "%Y-%m-%dT%H:%M:%S%.f%z",
            "%Y-%m-%d %H:%M:%S%.f%z",
        )
    )
    moment = pl.coalesce(moment, offset)
    return batch.with_columns(
        pl.coalesce(moment.dt.epoch("ms").cast(pl.String), text).alias("time"), pl.lit(1).alias(SCALE)
    )


def _numbers(frame: pl.DataFrame) -> pl.DataFrame:
    """Columns of a CSV hold text; those where every value is a number become numbers, whole where all are.

    "007" is a name, and another than "7"; so is what has more digits than a number keeps. Such a column stays text.
    """
    made = []
    for name, kind in frame.schema.items():
        if kind != pl.String or name in ("user", "item"):
            continue
        text = frame[name]
        for wanted in (pl.Int64, pl.Float64):
            cast = text.cast(wanted, strict=False)
            if cast.null_count() != text.null_count() or text.null_count() == len(frame):
                continue
            if wanted == pl.Int64 and not (cast.cast(pl.String) == text).all():
                continue
            if wanted == pl.Float64 and text.str.contains(r"^\s*[+-]?(0\d|\d{16,}\s*$)").any():
                continue
            made.append(cast.alias(name))
            break
    return frame.with_columns(made)
