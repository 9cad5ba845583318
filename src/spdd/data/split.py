"""Cutting interactions into what is learnt from and what is held out, by time, so that nothing leaks.

Everything that a model may know comes from the train events alone: which items and users there are, how they are
numbered, which attributes are kept, how popular things are. Held-out events are numbered by that vocabulary; an item
it does not know is -1 there. So train arrays are a pure function of train events.

A filter is a leak too: `k_core` over all events lets held-out ones decide who stays. Published results are made that
way, and `core=` here is the clean one: it looks at train events alone, after the cut.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import polars as pl

from .interactions import Interactions, Items, Sequences, Split
from .rows import descriptions

Core = int | tuple[int, int]


def leave_last(data: Interactions, n: int = 1, *, core: Core = 0) -> Split:
    """The last `n` events of each user for the test, the `n` before for validation, the rest to learn from.

    A user with fewer than 2 n + 1 events is learnt from only. Among equal times the order of the file counts.

    core: see `k_core`; of train events alone
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(
            f"`n` must be a whole number of at least 1, got {n!r}. It is how many events a user is tested on."
        )
    from_end = pl.len().over("user") - pl.int_range(pl.len()).over("user")  # 1 for a user's last
    held = (pl.len().over("user") > 2 * n).cast(pl.Int8)
    part = held * ((from_end <= n).cast(pl.Int8) + (from_end <= 2 * n).cast(pl.Int8))  # 0 train, 1 validation, 2 test
    return _cut(data, data.events.with_columns(part.alias("?part")), core, f"n={n}")


def at_time(
    data: Interactions, *, at: int | None = None, validation_at: int | None = None, share: float = 0.1, core: Core = 0
) -> Split:
    """Everything from a moment on for the test, a stretch before it for validation, the rest to learn from.

    at:            milliseconds since 1970: the first moment of the test; left out, the last `share` of events is the test
    validation_at: the first moment of validation; left out, it is the last `share` of events before the test
    core:          see `k_core`; of train events alone
    """
    if not data.absolute:
        raise ValueError(
            f"a cut at one moment needs times that can be compared between users, and those of '{data.name}' cannot: "
            "they count from each user's own start. Use `leave_last` (--split last)."
        )
    if not (isinstance(share, int | float) and 0 < share < 0.5):
        raise ValueError(f"`share` must be above 0 and below 0.5, got {share!r}. It is the part of events held out.")
    time = np.sort(data.events["time"].to_numpy())
    test = _moment(time, share) if at is None else _whole("at", at)
    before = time[time < test]
    validation = _moment(before, share) if validation_at is None else _whole("validation_at", validation_at)
    if validation > test:
        raise ValueError(
            f"validation must begin before the test, got {validation} after {test}. Lower `validation_at`, or raise `at`."
        )
    part = (pl.col("time") >= validation).cast(pl.Int8) + (pl.col("time") >= test).cast(pl.Int8)
    where = (
        f"the cuts {validation} and {test}, where times run from {time[0]} to {time[-1]}" if len(time) else "no events"
    )
    return _cut(data, data.events.with_columns(part.alias("?part")), core, where)


def k_core(data: Interactions, users: int = 5, items: int = 5) -> Interactions:
    """Only users with at least `users` events on items with at least `items` events, both counted in what is left.

    Filtering one thins out the other, so it goes on until nothing falls out any more. It looks at all events, held-out
    ones too if the split comes after: see this file's first lines.
    """
    events = _core(data.events, (users, items))
    return dataclasses.replace(
        data, events=events, items=data.items.join(events, on="item", how="semi", maintain_order="left")
    )


def unknown(part: Sequences) -> int:
    """How many held-out events are of items that the vocabulary does not know."""
    return int((part.item < 0).sum())


# ---- cutting --------------------------------------------------------------------------------------------------------


def _cut(data: Interactions, events: pl.DataFrame, core: Core, how: str) -> Split:
    """events: with a column ?part, 0 train, 1 validation, 2 test"""
    train = _core(events.filter(pl.col("?part") == 0), core)
    if not len(train):
        raise ValueError(
            f"a split of '{data.name}' must leave events to learn from, and leaves none of {len(events):,} with {how} "
            f"and core={core}. Hold out less, or ask for a smaller core."
        )
    vocabulary = train.select("item").unique().sort("item").with_row_index("?number")
    held = events
    if core:
        # Who was filtered out is not tested on; a user who is new at a global cut never was in train, and stays.
        gone = events.filter(pl.col("?part") == 0).join(train, on="user", how="anti").select("user").unique()
        held = events.join(gone, on="user", how="anti", maintain_order="left")
    parts = [train, *(held.filter(pl.col("?part") == p) for p in (1, 2))]
    return Split(
        _items(vocabulary, data, train), *(_sequences(part.drop(data.described), vocabulary) for part in parts)
    )


def _items(vocabulary: pl.DataFrame, data: Interactions, train: pl.DataFrame) -> Items:
    known = vocabulary.join(data.items.drop(data.described), on="item", how="left", maintain_order="left")
    if data.described:
        told = descriptions(train.sort("time", maintain_order=True), data.described)
        known = known.join(told, on="item", how="left", maintain_order="left")
    return Items(_text(vocabulary["item"]), {n: _array(known[n]) for n in data.items.columns if n != "item"})


def _sequences(events: pl.DataFrame, vocabulary: pl.DataFrame) -> Sequences:
    users = events.group_by("user", maintain_order=True).len()
    number = events.join(vocabulary, on="item", how="left", maintain_order="left")["?number"]
    extra = [n for n in events.columns if n not in ("user", "item", "time", "?part")]
    return Sequences(
        _text(users["user"]),
        np.concatenate([[0], users["len"].cast(pl.Int64).cum_sum().to_numpy()]).astype(np.int64),
        number.cast(pl.Int64).fill_null(-1).to_numpy(writable=True),
        events["time"].to_numpy(writable=True),
        {n: _array(events[n]) for n in extra},
    )


def _text(column: pl.Series) -> np.ndarray:
    return np.array(column.to_list(), dtype=np.str_)


def _array(column: pl.Series) -> np.ndarray:
    """Numbers as numpy has them, whole ones with gaps as floats; all else as objects."""
    if column.dtype.is_numeric() or column.dtype == pl.Boolean:
        return column.to_numpy(writable=True)
    made = np.empty(len(column), object)
    made[:] = column.to_list()
    return made


def _core(events: pl.DataFrame, core: Core) -> pl.DataFrame:
    """The events that stay; their order is kept. core: events per user and per item, or one number for both."""
    users, items = (core, core) if isinstance(core, int) else core
    for name, least in (("users", users), ("items", items)):
        if isinstance(least, bool) or not isinstance(least, int) or least < 0:
            raise ValueError(f"the core of {name} must be a whole number of events, got {least!r}. 0 keeps all.")
    while True:
        enough = (pl.len().over("user") >= users) & (pl.len().over("item") >= items)
        left = events.filter(enough)
        if len(left) == len(events):
            return left
        events = left


def _moment(time: np.ndarray, share: float) -> int:
    """The time from which on the last `share` of events lie. time: ascending"""
    return int(time[min(math.floor(len(time) * (1 - share)), len(time) - 1)]) if len(time) else 0


def _whole(name: str, at: Any) -> int:
    if isinstance(at, bool) or not isinstance(at, int | np.integer):
        raise ValueError(f"`{name}` must be whole milliseconds since 1970, got {at!r}.")
    return int(at)
