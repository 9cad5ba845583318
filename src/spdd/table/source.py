"""Reading a table of candidates in chunks of whole users, whatever its size, format and order of rows.

A first pass counts each user's rows, which decides the chunks: users in the order they first appear, cut so that
a chunk has about as many rows as asked for. So the same users meet in the same chunk however rows are ordered.
Where every user's rows stand together the file is streamed; otherwise it is sorted on disk first, in runs that fit
in memory. Columns get names of our own, so that none can clash: user, item, score, and n:, x:, l: or p: before the
column's own for values, any finite numbers, labels, and providers, which are labels too. Labels are text, and may be empty:
null here.
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import errno
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

RUN = 1_000_000  # rows that are sorted in memory at a time


class Source(NamedTuple):
    """A table that is about to be read.

    name:    how messages call it
    path:    where it is on disk
    form:    csv, parquet or arrow
    scan:    columns by our own names, nothing read yet
    names:   what those columns are called in the table
    count:   (U,) rows of each user, in order of first appearance
    marks:   (U,) a hash of each user
    together: whether every user's rows stand together
    """

    name: str
    path: Path
    form: str
    scan: pl.LazyFrame
    names: dict[str, str]
    count: np.ndarray
    marks: np.ndarray
    together: bool

    @property
    def rows(self) -> int:
        return int(self.count.sum())


def open_source(path: str | Path, form: str, names: dict[str, str], name: str | None = None) -> Source:
    """The table at `path`, with the columns that are needed found, their types checked, and its users counted.

    names: our name -> the table's column.  name: how messages call the table
    """
    path, name = Path(path), name or f"'{path}'"
    with plainly(f"{name} cannot be read", _csv_trouble(path, form, names), _whole_again(form)):
        scan = _scan(path, form, None)
        schema = scan.collect_schema()
        _check_columns(names, schema, name)
        if form == "csv":
            scan = _scan(path, form, _csv_types(names, schema))
            schema = scan.collect_schema()
        unused = [c for c in schema if c not in names.values()]
        scan = scan.select(
            *(_typed(own, schema[c], c, name, form) for own, c in names.items()),
            *([pl.any_horizontal(pl.col(unused).is_null()).alias("?")] if unused else []),
        )
        scan, users = _survey(scan, form, list(names))
    if not len(users):
        raise ValueError(f"{name} has no rows. Give it a row per user and candidate item.")
    count = users["rows"].to_numpy().astype(np.int64)
    span = users["last"].to_numpy().astype(np.int64) - users["first"].to_numpy().astype(np.int64) + 1
    return Source(name, path, form, scan, names, count, users["user"].hash().to_numpy(), bool((span == count).all()))


def chunks(source: Source, rows: int, folder: Path) -> Iterator[pl.DataFrame]:
    """Frames of about `rows` rows that hold whole users, a user's rows together and in the table's order.

    folder: where a table that has to be sorted may be kept meanwhile
    """
    ends = source.count.cumsum()
    of_user = (ends - 1) // rows
    last = np.flatnonzero(np.append(of_user[1:] != of_user[:-1], True))  # the last user of each chunk
    batches = _checked(source)
    if source.together:
        yield from _sliced(batches, np.diff(ends[last], prepend=0).tolist(), source)
    else:
        yield from _sorted(batches, source, last + 1, folder)


def providers_of(source: Source, column: str) -> pl.Series:
    """(P,) the labels in a column of providers, of the whole table, each once and in order of their text.

    The column is streamed: memory grows with the number of providers, not with that of rows.
    """
    with plainly(f"{source.name} cannot be read", way_out=_whole_again(source.form)):
        every = source.scan.select(pl.col(f"p:{column}").alias("label")).filter(pl.col("label").is_not_null())
        found = every.unique().collect(engine="streaming")["label"].sort()
    if not len(found):
        raise ValueError(
            f"column '{column}' of {source.name} must name the provider of one item at least, got nothing in all "
            f"{source.rows:,} rows. Name another with --set providers=..., or decode without: --decoder greedy."
        )
    return found


# ---- opening --------------------------------------------------------------------------------------------------


def _scan(path: Path, form: str, types: dict[str, pl.DataType] | None) -> pl.LazyFrame:
    if not path.exists():
        raise FileNotFoundError(2, "there is no such file")
    if form == "csv":
        return pl.scan_csv(
            path,
            infer_schema_length=1000,
            schema_overrides=types,
            glob=False,
            with_column_names=lambda names: [name.replace('""', '"') for name in names],  # polars leaves them doubled
        )
    if path.is_dir():
        raise IsADirectoryError(21, "it is a folder")
    if not path.stat().st_size:
        raise OSError(errno.EINVAL, "it is empty")
    return pl.scan_parquet(path, glob=False) if form == "parquet" else pl.scan_ipc(path, glob=False)


def _check_columns(names: dict[str, str], schema: pl.Schema, name: str) -> None:
    for own, column in names.items():
        if column in schema:
            continue
        close = difflib.get_close_matches(column, schema, n=3, cutoff=0.6) or [
            c for c in schema if c.lower() == column.lower()
        ]
        hint = (
            f" Did you mean {' or '.join(repr(c) for c in close)}?"
            if close
            else f" There is: {', '.join(list(schema)[:20])}."
        )
        option = f" Or name another with --{own}." if own in ("user", "item", "score") else ""
        raise ValueError(f"{name} must have a column '{column}', and has none.{hint}{option}")


def _csv_types(names: dict[str, str], schema: pl.Schema) -> dict[str, pl.DataType]:
    """A CSV has no types, and guesses from its first rows may fail later: values are numbers, all else is text."""
    types: dict[str, pl.DataType] = {c: pl.String() for c in schema if c not in names.values()}
    for own, column in names.items():
        text = own in ("user", "item") or own[:2] in ("l:", "p:")
        flag = own[:2] == "n:" and schema[column] == pl.Boolean
        kind = pl.String() if text else pl.Boolean() if flag else pl.Float64()
        if types.setdefault(column, kind) != kind:
            types[column] = pl.String()  # wanted as a name and as a number
    return types


def _typed(own: str, kind: pl.DataType, column: str, name: str, form: str) -> pl.Expr:
    found = pl.col(column).alias(own)
    if own in ("user", "item") or own[:2] in ("l:", "p:"):
        is_label = own[:2] in ("l:", "p:")
        if kind.is_nested() or kind == pl.Object or (kind == pl.Null and not is_label):
            raise ValueError(f"column '{column}' of {name} must hold names or numbers, one per row, got {kind}.")
        if is_label:
            return _label_or_null(pl.col(column), kind).alias(own)
        return found.cast(pl.String) if kind in (pl.Categorical, pl.Enum) else found
    if form == "csv" and kind == pl.String:
        return found.cast(pl.Float64)
    if not (kind.is_numeric() or (kind == pl.Boolean and own != "score")):
        advice = "Turn it into numbers first." if own == "score" else "Give a number per row: how much the item adds."
        raise ValueError(f"column '{column}' of {name} must hold numbers, got {kind}. {advice}")
    exact = (pl.Float32, pl.Float64) if own == "score" else (pl.Float32, pl.Float64, pl.Boolean)
    return found if kind in exact or (own != "score" and kind.is_integer()) else found.cast(pl.Float64)


def _label_or_null(column: pl.Expr, kind: pl.DataType) -> pl.Expr:
    """As text. A whole number is the same whether or not empty places made its column one of floats."""
    text = column.cast(pl.String)
    if kind.is_float():
        whole = pl.when(column.round() == column).then(column.cast(pl.Int64, strict=False)).cast(pl.String)
        text = pl.when(column.is_not_nan()).then(pl.coalesce(whole, text))
    return pl.when(text != "").then(text)


def _survey(scan: pl.LazyFrame, form: str, columns: list[str]) -> tuple[pl.LazyFrame, pl.DataFrame]:
    """Who is in the table, with rows, first and last row of each; and, for CSV, ids and values as whole numbers.

    Whole numbers are restored only where each is written as Python would: "007" stays text. Of a CSV every column is
    read here, because only then does polars notice lines with too many fields.
    """
    counts = [pl.len().alias("rows"), pl.col("#").min().alias("first"), pl.col("#").max().alias("last")]
    whole = {}
    schema = scan.collect_schema()
    if form == "csv":
        for c in columns:
            if c in ("user", "item"):
                whole[c] = pl.col(c).cast(pl.Int64, strict=False).cast(pl.String) == pl.col(c)
            elif c[:2] == "n:" and schema[c] == pl.Float64:
                whole[c] = (pl.col(c).round() == pl.col(c)) & (pl.col(c).abs() < 2.0**53)
        counts += [test.fill_null(False).all().alias(f"whole {c}") for c, test in whole.items()]
        counts += [pl.col(c).null_count().alias(f"empty {c}") for c in schema if c not in whole]
    users = scan.with_row_index("#").group_by("user").agg(counts).sort("first").collect(engine="streaming")
    restored = [c for c in whole if len(users) and users[f"whole {c}"].all()]
    if "user" in restored:
        users = users.cast({"user": pl.Int64})
    return scan.select(columns).with_columns(pl.col(restored).cast(pl.Int64)), users


# ---- chunks -----------------------------------------------------------------------------------------------------


def _checked(source: Source) -> Iterator[pl.DataFrame]:
    """The table in the order of its rows; what is missing, not finite or negative is refused."""
    schema = source.scan.collect_schema()
    trouble = _csv_trouble(source.path, source.form, source.names)
    bad = {}
    for c, kind in schema.items():
        if c[:2] in ("l:", "p:"):
            continue
        tests = [pl.col(c).is_null()]
        if kind.is_float():
            tests.append(~pl.col(c).is_finite())
        if c[:2] == "n:" and kind != pl.Boolean:
            tests.append(pl.col(c) < 0)
        bad[c] = pl.any_horizontal(tests)
    with plainly(f"{source.name} cannot be read", trouble, _whole_again(source.form)):
        for batch in source.scan.collect_batches(chunk_size=200_000, maintain_order=True):
            found = batch.select(test.any().alias(c) for c, test in bad.items()).row(0, named=True)
            wrong = [c for c, is_bad in found.items() if is_bad]
            if wrong:
                first = batch.filter(pl.any_horizontal(bad[c] for c in wrong)).head(1)
                c = next(c for c in wrong if first.select(bad[c]).item())
                came = first[c].item()
                if came is None and (line := trouble()):
                    raise ValueError(f"{source.name}: {line}")
                raise ValueError(_refusal(c, came, first.row(0, named=True), source))
            yield batch


def _refusal(c: str, came, row: dict, source: Source) -> str:
    if came is None:
        rule, way_out = "must not be empty", "Leave such rows out, or fill them."
    elif c == "score":
        rule, way_out = "must be finite", "Leave out items a user must not get."
    elif c[:2] == "n:":
        rule, way_out = "must be finite and not negative", "Shift values to start at 0, and cap what you want less of."
    else:
        rule, way_out = "must be finite", "Leave such rows out, or fill them."
    got = "nothing" if came is None else came
    return (
        f"column '{source.names[c]}' of {source.name} {rule}, got {got} for user {row['user']!r}, "
        f"item {row['item']!r}. {way_out}"
    )


def _sliced(batches: Iterator[pl.DataFrame], sizes: Sequence[int], source: Source) -> Iterator[pl.DataFrame]:
    held = next(batches)
    for size in sizes:
        parts, have = [held], len(held)
        while have < size:
            more = next(batches, None)
            if more is None:
                raise ValueError(f"{source.name} has changed while it was read. Run again when nothing writes to it.")
            parts.append(more)
            have += len(more)
        whole = pl.concat(parts)
        yield whole[:size]
        held = whole[size:]


def _sorted(batches: Iterator[pl.DataFrame], source: Source, ends: np.ndarray, folder: Path) -> Iterator[pl.DataFrame]:
    """An external sort by who comes first. ends: (chunks,) the user after the last of each chunk."""
    rank = np.argsort(source.marks, kind="stable")
    marks = source.marks[rank]
    runs: list[tuple[Path, np.ndarray]] = []  # file, and the row after each chunk's last
    for part in _gathered(batches, RUN):
        place = rank[np.searchsorted(marks, part["user"].hash().to_numpy()).clip(max=len(marks) - 1)]
        order = np.argsort(place, kind="stable")
        path = folder / f"run-{len(runs):06}.arrow"
        part[order].write_ipc(path, record_batch_size=20_000)
        runs.append((path, np.searchsorted(place[order], ends)))
    for c in range(len(ends)):
        parts = []
        for path, cuts in runs:
            start = int(cuts[c - 1]) if c else 0
            if cuts[c] > start:
                parts.append(pl.scan_ipc(path).slice(start, int(cuts[c]) - start).collect())
        whole = pl.concat(parts)
        # Of users whose hashes are equal, rows may stand mixed: put each behind the user's first.
        yield whole.with_row_index("#").sort(pl.col("#").min().over("user"), maintain_order=True).drop("#")


def _gathered(batches: Iterable[pl.DataFrame], rows: int) -> Iterator[pl.DataFrame]:
    held, have = [], 0
    for batch in batches:
        held.append(batch)
        have += len(batch)
        if have >= rows:
            yield pl.concat(held)
            held, have = [], 0
    if held:
        yield pl.concat(held)


# ---- what went wrong, in words ----------------------------------------------------------------------------------


@contextlib.contextmanager
def plainly(what: str, trouble=lambda: None, way_out: str = ""):
    """What polars and the system complain of, as one plain line.

    trouble: looks closer for the cause.  way_out: what to do where the file itself is at fault
    """
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        reason = getattr(error, "strerror", None) or str(error).strip().split("\n")[0]
        unread = isinstance(error, OSError) and error.errno != errno.EINVAL  # not there, a folder, locked
        raise ValueError(f"{what}: {(trouble() or reason).rstrip('.')}.{'' if unread else way_out}") from error


def _whole_again(form: str) -> str:
    """The way out of a file that polars cannot make sense of. Of a CSV, the line at fault is found instead."""
    name = {"parquet": "Parquet", "arrow": "Arrow IPC"}.get(form)
    return f" The file may be cut off, or be no {name}: write or copy it again." if name else ""


def _csv_trouble(path: Path, form: str, names: dict[str, str]):
    """A function that finds the first line of a CSV with too few or too many fields, or text for a number."""

    def look() -> str | None:
        if form != "csv":
            return None
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                lines = csv.reader(file)
                header = next(lines, None)
                if header is None:
                    return "it is empty"
                wanted = [
                    (header.index(c), c)
                    for own, c in names.items()
                    if own[:2] in ("n:", "x:") or own == "score"
                    if c in header
                ]
                for fields in lines:
                    if fields and len(fields) != len(header):
                        return f"line {lines.line_num} has {len(fields)} fields, the header has {len(header)}"
                    for at, column in wanted if fields else ():
                        if not fields[at]:
                            return f"line {lines.line_num} has nothing in column '{column}'. Leave such rows out, or fill them"
                        if math.isnan(_number(fields[at])):
                            return f"column '{column}' must hold numbers, got '{fields[at]}' in line {lines.line_num}"
        except UnicodeDecodeError:
            return "it is not UTF-8 text"
        except (OSError, csv.Error):
            return None
        return None

    return look


def _number(text: str) -> float:
    """nan where it is none; a flag counts as one."""
    if text.lower() in ("true", "false", "nan", "inf", "-inf"):
        return 0.0
    try:
        return float(text)
    except ValueError:
        return math.nan
