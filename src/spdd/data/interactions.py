"""What loaders give, and what models learn from.

A loader gives `Interactions`: two tables by the publisher's own ids, and a report of what it skipped. A split turns
them into a `Split`: numpy arrays by item number, ready to train on. This file needs numpy alone, so that a machine
without polars can train on what another has prepared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import polars as pl


class Items(NamedTuple):
    """The vocabulary: the items a model knows. An item's number is its place here.

    id:         (M,) str, ascending
    attributes: by column name, (M,) each: numbers, or objects where they are text, lists or missing
    """

    id: np.ndarray
    attributes: dict[str, np.ndarray]

    def fingerprint(self) -> str:
        """16 hex digits that name this vocabulary: the sha256 over its ids.

        >>> Items(np.array(["a", "b"]), {}).fingerprint() == Items(np.array(["ab"]), {}).fingerprint()
        False
        """
        return hashlib.sha256("\0".join(self.id.tolist()).encode()).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class Sequences:
    """What users did: one row per user, the rows laid end to end.

    user:  (U,) str
    start: (U + 1,) int64; row u is events start[u] to start[u + 1]
    item:  (E,) int64 item numbers; -1 for an item that the vocabulary does not know
    time:  (E,) int64 milliseconds, ascending inside a row
    extra: further columns of events by name, (E,) each

    >>> s = Sequences(np.array(["ann", "ben"]), np.array([0, 2, 3]), np.array([4, 1, 4]), np.array([10, 20, 5]), {})
    >>> len(s), s.of(1), [row.tolist() for row in s.lists()]
    (2, slice(2, 3, None), [[4, 1], [4]])
    """

    user: np.ndarray
    start: np.ndarray
    item: np.ndarray
    time: np.ndarray
    extra: dict[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.user)

    def of(self, row: int) -> slice:
        """Where the events of one row lie."""
        return slice(int(self.start[row]), int(self.start[row + 1]))

    def lists(self) -> list[np.ndarray]:
        """Item numbers of each row, oldest first."""
        return np.split(self.item, self.start[1:-1]) if len(self) else []

    def rows(self) -> np.ndarray:
        """(E,) the row each event belongs to."""
        return np.repeat(np.arange(len(self)), np.diff(self.start))


class Split(NamedTuple):
    """What may be learnt from, and what is held out. The vocabulary is that of `train`, and so is every number in it.

    validation, test: the held-out events only; users who have none there have no row there.
    """

    items: Items
    train: Sequences
    validation: Sequences
    test: Sequences

    def history(self, part: str) -> Sequences:
        """What was before the held-out events of `part`: its users, row by row, each with all they did before.

        Before validation that is train, before the test it is train and validation. Events of unknown items are left
        out, since no model can read them; a user who is new has an empty row.

        part: "validation" or "test"
        """
        if part not in ("validation", "test"):
            raise ValueError(f"`part` must be 'validation' or 'test', got {part!r}.")
        held, before = (self.validation, [self.train]) if part == "validation" else (self.test, [*self[1:3]])
        row = np.concatenate([_place(held.user, s.user)[s.rows()] for s in before])  # (E,) -1 for who is not held out
        item = np.concatenate([s.item for s in before])
        order = np.argsort(row, kind="stable")  # train stays before validation
        order = order[(row[order] >= 0) & (item[order] >= 0)]
        names = [n for n in before[0].extra if all(n in s.extra for s in before)]
        return Sequences(
            held.user,
            np.searchsorted(row[order], np.arange(len(held) + 1)),
            item[order],
            np.concatenate([s.time for s in before])[order],
            {n: np.concatenate([s.extra[n] for s in before])[order] for n in names},
        )

    def popularity(self) -> np.ndarray:
        """(M,) how many train events each item has."""
        return np.bincount(self.train.item, minlength=len(self.items.id))


def _place(among: np.ndarray, names: np.ndarray) -> np.ndarray:
    """Where each name stands in `among`, which ascends; -1 where it does not."""
    if not len(among):
        return np.full(len(names), -1)
    place = np.searchsorted(among, names).clip(max=len(among) - 1)
    return np.where(among[place] == names, place, -1)


class Report(NamedTuple):
    """What was read, and what became of it: read == kept + duplicates + all that was skipped.

    skipped: malformed rows by reason. duplicates: a second event with the same user, item and time.
    items_*: the same of the files that describe items; there a duplicate is an id that was described before.
    """

    read: int = 0
    kept: int = 0
    skipped: Mapping[str, int] = {}
    duplicates: int = 0
    items_read: int = 0
    items_kept: int = 0
    items_skipped: Mapping[str, int] = {}
    items_duplicates: int = 0


@dataclass(frozen=True)
class Interactions:
    """Who did what when, by the publisher's own ids.

    events:   a row per event: user, item (str), time (int64 milliseconds), then more columns; users ascend, inside a
              user time does, and equal times stand as they stood in the file
    items:    a row per item in `events`: item, then attributes; null where nothing is known
    report:   what was read and skipped
    absolute: whether times of different users can be compared; in playlists, for one, time is a position
    described: columns of `events` that tell of the item, not of the event. `items` has the first value of each; a split
              takes it from train events alone
    """

    name: str
    events: pl.DataFrame
    items: pl.DataFrame
    report: Report = field(default_factory=Report)
    absolute: bool = True
    described: tuple[str, ...] = ()

    @property
    def users(self) -> int:
        return self.events["user"].n_unique()

    def __repr__(self) -> str:
        return (
            f"Interactions({self.name!r}, {self.users:,} users, {len(self.items):,} items, {len(self.events):,} events)"
        )
