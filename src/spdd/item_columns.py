"""Values and labels of a catalogue's items, by the names a policy uses: an attribute, one of its labels, or a table's column.

new                    a column of numbers: of the items' attributes, or of a table beside them
categories=Cycling     1 for items that have this label in a column of labels or lists
categories=Cycling|Camping & Hiking    either of these
popularity             how many events of train each item has
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .data.interactions import Split
from .policy_file import label_text

POPULARITY = "popularity"


def item_columns(split: Split, names: Sequence[str], table: Path | None = None) -> dict[str, np.ndarray]:
    """(M,) numbers or labels for each name. table: a file with a column `item` and others, for items the split knows"""
    known = {POPULARITY: split.popularity(), **split.items.attributes}
    if table is not None:
        known |= _read(table, split.items.id)
    return {name: _column(name, known) for name in names}


def _column(name: str, known: dict[str, np.ndarray]) -> np.ndarray:
    if name in known:
        return _plain(name, known[name])
    attribute, sign, labels = name.partition("=")
    if sign and attribute in known:
        wanted = set(labels.split("|"))
        has = [_labels(x) for x in known[attribute].tolist()]
        every = set().union(*has)
        missing = wanted - every
        if missing:
            close = difflib.get_close_matches(min(missing), sorted(every), n=3)
            hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
            raise ValueError(f"no item has the label '{min(missing)}' in '{attribute}'.{hint}")
        return np.array([bool(wanted & labels) for labels in has], dtype=np.float64)
    close = difflib.get_close_matches(attribute, known, n=3)
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else f" There is: {', '.join(known)}."
    raise ValueError(
        f"items have no column '{attribute}'.{hint} A label is said like 'categories=Cycling'; a table of your own columns "
        "comes by --items."
    )


def _plain(name: str, column: np.ndarray) -> np.ndarray:
    """Numbers as float64, labels as text; what is no number is no value, and lists must be asked for one label."""
    if column.dtype.kind in "fiub":
        return column.astype(np.float64)
    if any(isinstance(x, (list, tuple, np.ndarray)) for x in column.tolist()):
        raise ValueError(f"column '{name}' holds lists of labels. Ask for one of them: '{name}=LABEL'.")
    return np.array([label_text(x) for x in column.tolist()])


def _labels(entry) -> set[str]:
    if entry is None:
        return set()
    return {str(x) for x in entry} if isinstance(entry, (list, tuple, np.ndarray)) else {str(entry)}


def _read(path: Path, ids: np.ndarray) -> dict[str, np.ndarray]:
    """The table's columns, in the order of the items; every item of the split must be in it, once."""
    import polars as pl

    from .table.formats import format_of

    read = {"csv": pl.read_csv, "parquet": pl.read_parquet, "arrow": pl.read_ipc}[format_of(str(path), None, "--items")]
    try:
        table = read(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ValueError(f"--items '{path}' cannot be read: {str(error).splitlines()[0]}.") from None
    if "item" not in table.columns:
        raise ValueError(f"--items '{path}' must have a column 'item', and has {', '.join(table.columns) or 'none'}.")
    table = table.with_columns(pl.col("item").cast(pl.String))
    if table["item"].n_unique() < len(table):
        raise ValueError(
            f"--items '{path}' names item '{table['item'].filter(table['item'].is_duplicated())[0]}' twice."
        )
    found = pl.DataFrame({"item": ids}).join(table, on="item", how="left", maintain_order="left")
    columns = {}
    for name in found.columns[1:]:
        column = found[name]
        if column.dtype.is_numeric() or column.dtype == pl.Boolean:
            missing = column.is_null()
            if missing.any():
                raise ValueError(
                    f"--items '{path}' has no number in '{name}' for {missing.sum():,} of {len(ids):,} items, "
                    f"'{ids[missing.to_numpy()][0]}' for one. Give every item one."
                )
            columns[name] = column.cast(pl.Float64).to_numpy()
        else:
            columns[name] = np.array(column.to_list(), dtype=object) if column.dtype != pl.List else _objects(column)
    return columns


def _objects(column) -> np.ndarray:
    found = np.empty(len(column), dtype=object)
    found[:] = column.to_list()
    return found
