"""From batches of raw text to `Interactions`: types, the rules rows must keep, duplicates and order.

The rules are the same whatever the format. A user and an item have a name of 1 to 256 characters; a time is a whole
number, neither negative nor past the year 5000; a number, where one is given, is one. A row that breaks a rule counts
as malformed, by the first rule it breaks.
"""

from __future__ import annotations

import ast
import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from .interactions import Interactions, Report
from .lines import Progress, Tally, batches

LATEST = 95_617_584_000_000  # milliseconds: the year 5000
LONGEST_ID = 256  # numpy gives every id the room of the longest
TOGETHER = 100  # lines that one quoted field may run over
LINE = "?line"
SCALE = "?scale"  # milliseconds per unit of time, where it differs from row to row

Pick = Callable[[dict], Sequence[Any]]


def sift(frame: pl.DataFrame, kinds: Mapping[str, str], path: Path, tally: Tally, scale: int = 1) -> pl.DataFrame:
    """The rows that keep the rules, typed. The others go to the tally.

    frame: a column ?line, and those that `kinds` names, text or typed already
    kinds: column -> id, time, order (all needed), whole, number or text (may be missing); an order is a whole number
           of either sign
    scale: milliseconds per unit of time
    """
    typed, rules = [], []
    for name, kind in kinds.items():
        came = pl.col(name)
        text = frame.schema[name] == pl.String
        if kind == "text":
            came = came.cast(pl.String) if frame.schema[name] in (pl.Categorical, pl.Enum) else came
            typed.append(pl.when(came != "").then(came) if text else came)
        elif kind == "id":
            typed.append(came.cast(pl.String))
            size = came.cast(pl.String).str.len_chars().fill_null(0)
            rules.append((size == 0, f"no {name}"))
            rules.append(
                ((size > LONGEST_ID) | came.cast(pl.String).str.contains("\0", literal=True), f"{name} is no id")
            )
        else:
            blank = came.is_null() | (came.str.strip_chars() == "") if text else came.is_null()
            value = _number(came.str.strip_chars() if text else came, kind == "number", frame.schema[name])
            if kind in ("time", "order"):
                rules.append((blank, f"no {name}"))
            rules.append((~blank & value.is_null(), f"{name} is not a {'' if kind == 'number' else 'whole '}number"))
            if kind == "time":
                per = pl.lit(1 if frame.schema[name].is_temporal() else scale, pl.Int64)
                per = pl.col(SCALE) if SCALE in frame.columns else per
                rules.append((value < 0, f"negative {name}"))
                rules.append((value > LATEST // per, f"{name} past the year 5000"))
                value = pl.when(value <= LATEST // per).then(value * per)
            typed.append(value.alias(name))
    reason = pl.coalesce(*(pl.when(bad).then(pl.lit(why)) for bad, why in rules), pl.lit(None, pl.String))
    done = frame.select(pl.col(LINE), reason.alias("?reason"), *typed)
    bad = done.filter(pl.col("?reason").is_not_null()).group_by("?reason")
    for why, line, count in bad.agg(pl.col(LINE).min(), pl.len()).iter_rows():
        tally.skip(path, line, why, count)
    return done.filter(pl.col("?reason").is_null()).select(kinds.keys())


def _number(came: pl.Expr, fractions: bool, kind: pl.DataType) -> pl.Expr:
    if kind.is_temporal():
        return came.dt.epoch("ms")
    real = came.cast(pl.Float64, strict=False)
    real = pl.when(real.is_finite()).then(real)
    if fractions:
        return real
    whole = pl.when((real.round() == real) & (real.abs() < 2.0**53)).then(real).cast(pl.Int64, strict=False)
    return pl.coalesce(came.cast(pl.Int64, strict=False), whole) if kind == pl.String or kind.is_integer() else whole


# ---- JSON lines -----------------------------------------------------------------------------------------------------


def json_rows(
    path: Path, pick: Pick, schema: Mapping[str, Any], tally: Tally, *, literals=False, progress: Progress | None = None
) -> Iterator[pl.DataFrame]:
    """Frames of what `pick` takes from each line's object; a column ?line besides.

    pick:     object -> a value per column of `schema`
    literals: whether a line may be a Python dict instead, as in older metadata
    """
    for lines in batches(path, tally, progress=progress):
        found = []
        for number, text in enumerate(lines.text, lines.first):
            if text is None:
                continue
            row = _object(text, literals)
            if isinstance(row, dict):
                found.append((number, *pick(row)))
            else:
                tally.skip(path, number, "broken JSON" if row is None else "not a JSON object")
        yield frame_of(found, {LINE: pl.Int64, **schema})


def frame_of(rows: list[tuple], schema: Mapping[str, Any]) -> pl.DataFrame:
    """A frame of rows. Half characters, which JSON can name and UTF-8 cannot hold, become question marks."""
    try:
        return pl.DataFrame(rows, schema=schema, orient="row")
    except UnicodeEncodeError:
        return pl.DataFrame([tuple(_whole_text(v) for v in row) for row in rows], schema=schema, orient="row")


def _whole_text(value):
    if isinstance(value, list):
        return [_whole_text(v) for v in value]
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _object(text: str, literals: bool) -> Any:
    """What a line says; None where it says nothing."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if literals:
        try:
            return ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            pass
    return None


def name_of(value: Any) -> str | None:
    """An id as text: text or a whole number; None for all else."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def number_of(value: Any) -> str | None:
    """A number as text, to be judged with all others. What is neither number nor text is none."""
    return None if value is None else str(value) if isinstance(value, int | float | str) else "?"


def text_of(value: Any) -> str | None:
    return value.strip() or None if isinstance(value, str) else None


# ---- fields between separators --------------------------------------------------------------------------------------


def split_rows(
    path: Path,
    tally: Tally,
    *,
    separator: str = ",",
    columns: Sequence[str] | None = None,
    quotes: bool = True,
    encoding: str = "utf-8",
    progress: Progress | None = None,
) -> Iterator[pl.DataFrame]:
    """Frames of text columns, and a column ?line. A line with too many or too few fields is malformed.

    columns: their names; left out, the first line that is not blank says them
    quotes:  whether a field may stand in double quotes, and run over several lines then
    """
    held: list[tuple[int, str]] = []  # an open quote at the end of a batch: what is in it so far
    names = list(columns) if columns else None
    source = batches(path, tally, encoding=encoding, progress=progress)
    lines, after = next(source, None), next(source, None)
    while lines is not None:
        rows = held + [(n, t) for n, t in enumerate(lines.text, lines.first) if t is not None]
        if names is None and rows:
            names = _header(rows.pop(0)[1], separator, quotes, path)
            tally.read -= 1
        if names is not None:
            fields, held = _fields(rows, separator, quotes, path, tally, last=after is None)
            yield _table(fields, names, path, tally)
        lines, after = after, next(source, None)


def columns_of(frame: pl.DataFrame, needed: Sequence[str], path: Path, hint: str = "") -> None:
    """Refuse a table without the columns that are needed."""
    missing = [c for c in needed if c not in frame.columns]
    if missing:
        there = ", ".join(c for c in frame.columns if c != LINE) or "nothing"
        raise ValueError(
            f"'{path}' must have a column '{missing[0]}', and has {there}. {hint or 'Is it the right file?'}"
        )


def _header(text: str, separator: str, quotes: bool, path: Path) -> list[str]:
    fields = _quoted(iter([text]), separator)[0] if quotes else text.split(separator)
    if fields is None:
        raise ValueError(
            f"'{path}' must name its columns in its first line, and that has broken quotes: {text[:80]!r}."
        )
    names = [n.strip() for n in fields]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise ValueError(f"'{path}' must name each column once in its first line, and names '{twice}' again.")
    return names


def _fields(rows, separator, quotes, path, tally, last) -> tuple[pl.DataFrame, list]:
    """A frame of line and list of fields; and rows that an open quote keeps for the next batch."""
    if not quotes or not any('"' in text for _, text in rows):
        frame = pl.DataFrame(rows, schema={LINE: pl.Int64, "text": pl.String}, orient="row")
        return frame.select(LINE, pl.col("text").str.split(separator).alias("fields")), []
    found, at = [], 0
    while at < len(rows):
        line, text = rows[at]
        if '"' not in text:
            found.append((line, text.split(separator)))
            at += 1
            continue
        fields, taken = _quoted((rows[i][1] for i in range(at, min(at + TOGETHER, len(rows)))), separator)
        if fields is None and len(rows) - at < TOGETHER and not last:
            return _listed(found), rows[at:]
        if fields is None:
            tally.skip(path, line, "broken quotes")
        else:
            found.append((line, fields))
            tally.read -= taken - 1
        at += taken
    return _listed(found), []


def _listed(found):
    return pl.DataFrame(found, schema={LINE: pl.Int64, "fields": pl.List(pl.String)}, orient="row")


def _quoted(lines: Iterator[str], separator: str) -> tuple[list[str] | None, int]:
    """The fields of a record that begins the lines, and how many of them it takes. None where quotes do not close."""
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=separator, strict=True)
    try:
        return next(reader), reader.line_num
    except (csv.Error, StopIteration):
        return None, 1


def _table(fields: pl.DataFrame, names: list[str], path: Path, tally: Tally) -> pl.DataFrame:
    count = pl.col("fields").list.len()
    for wrong, why in ((count < len(names), "too few fields"), (count > len(names), "too many fields")):
        if len(bad := fields.filter(wrong)):
            tally.skip(path, bad[LINE][0], why, len(bad))
    whole = fields.filter(count == len(names))
    return whole.select(LINE, *(pl.col("fields").list.get(i).alias(n) for i, n in enumerate(names)))


# ---- all together ---------------------------------------------------------------------------------------------------


def interactions(
    name: str,
    events: list[pl.DataFrame],
    items: list[pl.DataFrame],
    tally: Tally,
    of_items: Tally,
    *,
    path: str | Path,
    absolute: bool = True,
    described: Sequence[str] = (),
) -> Interactions:
    """Everything read, without duplicates, in order. Refused where too much of it was malformed, or nothing is left.

    events:    frames of user, item, time and more, in file order
    items:     frames of item and attributes
    described: columns of events that are attributes
    """
    tally.check()
    of_items.check()
    if not sum(map(len, events)):
        raise ValueError(
            f"'{path}' must hold at least one event, and holds none in {tally.read:,} lines. Is it the right file?"
        )
    came = pl.concat(events)
    once = came.unique(["user", "item", "time"], keep="first", maintain_order=True)
    known = once.select("item").unique().sort("item")
    files = pl.concat(items) if items else None
    first = None if files is None else files.unique("item", keep="first", maintain_order=True)
    report = Report(
        tally.read,
        len(once),
        dict(sorted(tally.skipped.items())),
        len(came) - len(once),
        of_items.read,
        0 if first is None else len(first),
        dict(sorted(of_items.skipped.items())),
        0 if first is None or files is None else len(files) - len(first),
    )
    if first is not None:
        known = known.join(first, on="item", how="left", maintain_order="left")
    if described:
        known = known.join(descriptions(once, described), on="item", how="left", maintain_order="left")
    ordered = once.sort("user", "time", maintain_order=True)
    return Interactions(name, ordered, known, report, absolute, tuple(described))


def descriptions(events: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """What events tell of each item: of every column the first value that is not missing."""
    return events.group_by("item").agg(pl.col(c).drop_nulls().first() for c in columns)
