"""What a ranker of shelves reads: past actions, the context of a request, the items' traits; as tensors of item numbers.

An action is an item, what was done with it (a small number, 0 where there is nothing), when, and on which surface.
`Actions` holds whole logs to learn from, `Requests` the present moment of R people to decode for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

MOST = 128  # past actions a model looks back on
NOTHING = 0  # the action of a padded place
HOUR = 3_600_000  # times are milliseconds


class Requests(NamedTuple):
    """R people who ask for a slate now. Histories end at the right; a place with action 0 holds nothing.

    items:    (R, L) int64 item numbers, -1 where unknown.  actions: (R, L) what was done, numbered as in training
    times:    (R, L) int64 milliseconds.  surfaces: (R, L) where
    now:      (R,) int64 milliseconds.  surface: (R,) where the slate will stand
    pool:     (R, P) int64 the candidates, -1 where there are fewer; None: every item
    """

    items: Tensor
    actions: Tensor
    times: Tensor
    surfaces: Tensor
    now: Tensor
    surface: Tensor
    pool: Tensor | None = None

    def of(self, rows: slice) -> Requests:
        """The requests of these rows alone."""
        pool = None if self.pool is None else self.pool[rows]
        return Requests(*(column[rows] for column in self[:6]), pool=pool)

    def excluded(self, items: int) -> Tensor | None:
        """(R, M) bool, True for items outside the pool: what a decoder takes as `exclude`. None without a pool.

        >>> one = torch.zeros(1, 1, dtype=torch.long)
        >>> Requests(one, one, one, one, one[0], one[0], pool=torch.tensor([[2, 0, -1]])).excluded(4).tolist()
        [[False, True, False, True]]
        """
        if self.pool is None:
            return None
        outside = torch.ones(len(self.pool), items + 1, dtype=torch.bool, device=self.pool.device)
        return outside.scatter(1, self.pool.remainder(items + 1), False)[:, :items]

    def __array__(self, dtype=None, copy=None):
        """(R, L) the items acted on, so that a decoder's `exclude="seen"` knows what to leave out."""
        return np.array(self.items.cpu().numpy(), dtype=dtype)

    def to(self, device) -> Requests:
        """The same on another device."""
        past = (x.to(device, non_blocking=True) for x in self[:-1])
        return Requests(*past, pool=None if self.pool is None else self.pool.to(device, non_blocking=True))


class Actions(NamedTuple):
    """A log laid end to end, a row per person, ascending in time: what `Sequences` holds, with what a ranker learns.

    start:   (U + 1,) where rows begin
    item, action, time, surface: (E,) as in `Requests`
    label:   (E,) 1 or 0 where an item was shown and (not) taken, -1 where the event is history and nothing else
    stats:   (E, S) float32, what was known about the item when it was shown (its smoothed rate so far, say)
    """

    start: np.ndarray
    item: np.ndarray
    action: np.ndarray
    time: np.ndarray
    surface: np.ndarray
    label: np.ndarray
    stats: np.ndarray

    def rows(self) -> np.ndarray:
        """(E,) the row each event belongs to."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))

    def requests(self, events: np.ndarray, *, most: int = MOST, pool: Any = None) -> Requests:
        """The moments just before these events (R,): their people's last `most` actions, their time and surface.

        What happened in the same millisecond is not known yet and left out.
        """
        events = np.asarray(events, dtype=np.int64)
        first, end = self.start[self.rows()[events]], first_of_tie(self)[events]
        index = end[:, None] + np.arange(-most, 0)  # (R, L)
        there = torch.from_numpy(index >= first[:, None])
        index = torch.from_numpy(index.clip(0))

        def column(x, empty):
            return torch.from_numpy(x.astype(np.int64))[index].where(there, empty)

        now, surface = (torch.from_numpy(x[events].astype(np.int64)) for x in (self.time, self.surface))
        return Requests(
            items=column(self.item, -1),
            actions=column(self.action, NOTHING),
            times=column(self.time, 0),
            surfaces=column(self.surface, 0),
            now=now,
            surface=surface,
            pool=None if pool is None else torch.as_tensor(pool, dtype=torch.long),
        )


def first_of_tie(log: Actions) -> np.ndarray:
    """(E,) the first event of the same person at the same time."""
    row = log.rows()
    new = np.ones(len(row), dtype=bool)
    new[1:] = (row[1:] != row[:-1]) | (log.time[1:] != log.time[:-1])
    return np.maximum.accumulate(np.where(new, np.arange(len(row)), 0))


def first_of_person(log: Actions, events: np.ndarray) -> np.ndarray:
    """(N,) the first of these events, ascending, that the same person has."""
    row = log.rows()[events]
    return events[np.searchsorted(row, row)]


class Traits(NamedTuple):
    """What is known of each item beside its number, as small numbers; 0 means unknown, and is all that item -1 has.

    codes: (M, F) int64.  sizes: one past the largest code of each column.  names: of the columns
    """

    codes: np.ndarray
    sizes: tuple[int, ...]
    names: tuple[str, ...]


def traits(
    attributes: Mapping[str, np.ndarray], names: Sequence[str], *, items: int, least: int = 1, buckets: int = 16
) -> Traits:
    """Columns of item attributes as codes: text by value, numbers by quantile.

    items: M.  least: values that fewer items have become unknown.  buckets: into how many parts numbers are cut
    """
    columns, sizes = [np.zeros((items, 0), np.int64)], []
    for name in names:
        if name not in attributes:
            raise ValueError(f"`names` asks for trait '{name}', but items have: {', '.join(attributes) or 'none'}.")
        column = np.asarray(attributes[name])
        if column.dtype.kind in "fiu":
            known = np.isfinite(column.astype(float))
            edges = np.unique(np.quantile(column[known], np.linspace(0, 1, buckets + 1)[1:-1])) if known.any() else []
            codes = np.where(known, 1 + np.searchsorted(edges, column, side="right"), 0)
        else:
            text = np.array(["" if x is None else str(x) for x in column])
            values, codes, counts = np.unique(text, return_inverse=True, return_counts=True)
            kept = (counts >= least) & (values != "")
            codes = np.where(kept, np.cumsum(kept), 0)[codes]
        columns.append(codes.astype(np.int64)[:, None])
        sizes.append(int(codes.max(initial=0)) + 1)
    return Traits(np.concatenate(columns, 1), tuple(sizes), tuple(names))


class Rows(NamedTuple):
    """Some people's logs side by side, flush left. B people, L events, P of them shown to learn from or to score.

    event: (B, L) places in the log.  there: (B, L) bool
    shown: (B, P) places in the log.  asked: (B, P) bool
    """

    event: np.ndarray
    there: np.ndarray
    shown: np.ndarray
    asked: np.ndarray


def side_by_side(start: np.ndarray, wanted: np.ndarray, rows: np.ndarray) -> Rows:
    """These people's events up to the last wanted one, and which are wanted. wanted: ascending places in the log"""
    first, last = np.searchsorted(wanted, start[rows]), np.searchsorted(wanted, start[rows + 1])
    end = np.where(last > first, wanted[(last - 1).clip(0)] + 1, start[rows])
    event, there = _spread(start[rows], end)
    shown, asked = _spread(first, last)
    return Rows(event, there, np.where(asked, wanted[shown], 0), asked)


def _spread(first, end):
    place = first[:, None] + np.arange(int((end - first).max(initial=1)))
    there = place < end[:, None]
    return np.where(there, place, 0), there


def grouped(start: np.ndarray, wanted: np.ndarray, batch: int, order: np.ndarray) -> Iterator[np.ndarray]:
    """Rows in groups of about `batch` wanted events, people who have as many of them together: little is padded.

    order: a permutation of the rows. Those without a wanted event are left out.
    """
    counts = np.diff(np.searchsorted(wanted, start))
    order = order[counts[order] > 0]
    near = 16 * max(1, int(batch / counts[order].mean())) if len(order) else 1
    groups = []
    for begin in range(0, len(order), near):  # sorted by length inside a stretch only, so that batches stay mixed
        stretch = order[begin : begin + near]
        stretch = stretch[np.lexsort((np.diff(start)[stretch], counts[stretch]))]
        full = np.cumsum(counts[stretch]) // batch
        groups += np.split(stretch, np.flatnonzero(np.diff(full)) + 1)
    yield from groups
