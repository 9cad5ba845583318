"""A split in one .npz file, for machines that have numpy and nothing else.

Nothing in it is pickled: reading a file cannot run code. Columns of text, lists and gaps are JSON inside.
Files are compressed and the same for the same split, byte by byte.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from ..files import atomic
from .interactions import Items, Sequences, Split

FORMAT = "spdd split 1"
PARTS = ("train", "validation", "test")
# What zipfile, zlib and numpy raise over bytes that are not theirs.
BROKEN = (ValueError, KeyError, EOFError, TypeError, AttributeError, RuntimeError, zipfile.BadZipFile, zlib.error)


def save(split: Split, path: str | Path, /, **about: Any) -> None:
    """Write a split in one step: a crash leaves the old file or the new one. about: what to remember of its making"""
    path = Path(path)
    columns = {"items.id": split.items.id, **_named("items.", split.items.attributes)}
    for part in PARTS:
        rows = getattr(split, part)
        columns |= {f"{part}.{n}": getattr(rows, n) for n in ("user", "start", "item", "time")}
        columns |= _named(f"{part}.", rows.extra)
    arrays = {"format": np.array(FORMAT), "fingerprint": np.array(split.items.fingerprint()), "about": _text(about)}
    for name, column in columns.items():
        column = np.asarray(column)
        as_text = column.dtype == object
        arrays[f"{name}.json" if as_text else name] = _text(column.tolist()) if as_text else column
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic(path) as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def load(path: str | Path) -> Split:
    """The split that `save` wrote. A file that is broken, or is something else, is refused."""
    if not Path(path).exists():
        raise FileNotFoundError(f"'{path}' is not there. Prepare it (spdd data prepare --help), or correct the path.")
    arrays = _arrays(path)
    try:
        items = Items(arrays["items.id"], _columns("items.@", arrays))
        split = Split(items, *(_sequences(part, arrays) for part in PARTS))
        fault = _fault(split, str(arrays["fingerprint"]))
    except KeyError as error:
        split, fault = None, f"{error} is missing"
    if split is None or fault:
        raise ValueError(f"'{path}' must hold a whole split, but {fault}. Prepare it again with `spdd data`.")
    return split


def about(path: str | Path) -> dict[str, Any]:
    """What `save` was told about the making of a split."""
    return _arrays(path, only=("about",))["about"]


def _arrays(path, only=None) -> dict[str, Any]:
    """Every array of the file by name, JSON read already."""
    try:
        with open(path, "rb") as raw:
            if raw.read(2) != b"PK":
                raise ValueError("it is another kind of file")
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile) or "format" not in file or str(file["format"]) != FORMAT:
                raise ValueError("it is another kind of file, or from another version")
            arrays = {}
            for name in file.files if only is None else only:
                is_text = name == "about" or name.endswith(".json")
                arrays[name.removesuffix(".json")] = json.loads(file[name].tobytes()) if is_text else file[name]
            return arrays
    except BROKEN as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise ValueError(
            f"'{path}' must be a split prepared by `spdd data`, and cannot be read as one: {reason}. Prepare it again."
        ) from error


def _named(prefix, columns):
    return {f"{prefix}@{name}": column for name, column in columns.items()}


def _text(value) -> np.ndarray:
    return np.frombuffer(json.dumps(value, default=_plain).encode(), np.uint8)


def _plain(value):
    """What JSON takes in place of a numpy value."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"columns of a split must hold text, numbers, lists of them, or None; got {type(value).__name__}.")


def _columns(prefix, arrays) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): _column(a) for name, a in arrays.items() if name.startswith(prefix)}


def _column(given) -> np.ndarray:
    if isinstance(given, np.ndarray):
        return given
    column = np.empty(len(given), object)  # numpy would make a table of lists that are equally long
    column[:] = given
    return column


def _sequences(part, arrays) -> Sequences:
    user, start, item, time = (arrays[f"{part}.{n}"] for n in ("user", "start", "item", "time"))
    return Sequences(user, start, item, time, _columns(f"{part}.@", arrays))


def _fault(split: Split, fingerprint: str) -> str | None:
    """What is wrong with a split, or None."""
    ids = split.items.id
    if ids.ndim != 1 or (ids[1:] <= ids[:-1]).any() or split.items.fingerprint() != fingerprint:
        return "its items are not those it was saved with"
    if any(len(a) != len(ids) for a in split.items.attributes.values()):
        return "an attribute has not one value per item"
    for part in PARTS:
        rows = getattr(split, part)
        events = len(rows.item)
        start = rows.start
        if len(start) != len(rows.user) + 1 or start[0] != 0 or start[-1] != events or (np.diff(start) < 0).any():
            return f"the rows of {part} do not fit its events"
        if any(len(c) != events for c in (rows.time, *rows.extra.values())):
            return f"a column of {part} has not one value per event"
        if events and (rows.item.min() < -1 or rows.item.max() >= len(ids)):
            return f"{part} names items that are not there"
    return None
