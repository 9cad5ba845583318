"""From a split to what a ranker of shelves learns from: one log of all parts, and what was known of items at each moment.

The split's events need the columns `action` (small numbers, see `data.shown`), `surface`, and one or more labels,
1 or 0 where an item was shown and (not) taken and -1 where an event is history and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..data.interactions import Split
from .actions import HOUR, Actions

NEEDED = ("action", "surface")


class ShelfLog(NamedTuple):
    """One row per person with all they did.

    log:    its label is the first of `labels`; nothing is known of items yet, see `with_rates`
    people: (U,) their names
    part:   (E,) 0, 1 or 2: train, validation or test
    labels: one (E,) each
    """

    log: Actions
    people: np.ndarray
    part: np.ndarray
    labels: list[np.ndarray]


def shelf_log(split: Split, labels: Sequence[str], people: np.ndarray | None = None) -> ShelfLog:
    """All parts of the split as one log. people: only these, ascending"""
    parts = [split.train, split.validation, split.test]
    missing = [name for name in (*NEEDED, *labels) if any(name not in p.extra for p in parts)]
    if missing:
        there = ", ".join(split.train.extra) or "none"
        raise ValueError(
            f"a ranker of shelves needs events with the column{'s' * (len(missing) > 1)} {', '.join(missing)}; these have "
            f"{there}. For KuaiRand: spdd data prepare kuairand FOLDER --set actions=true --split time."
        )
    if people is None:
        people = np.unique(np.concatenate([p.user for p in parts]))
    row = np.concatenate([_place(people, p.user)[p.rows()] for p in parts])
    part = np.repeat([0, 1, 2], [len(p.item) for p in parts])
    order = np.argsort(row, kind="stable")
    order = order[row[order] >= 0]

    def column(name):
        return np.concatenate([p.extra[name] for p in parts])[order]

    item, time = (np.concatenate([getattr(p, n) for p in parts])[order] for n in ("item", "time"))
    start = np.searchsorted(row[order], np.arange(len(people) + 1))
    found = [column(name) for name in labels]
    log = Actions(start, item, column("action"), time, column("surface"), found[0], np.zeros((len(item), 0)))
    return ShelfLog(log, people, part[order], found)


def with_rates(log: Actions, labels: Sequence[np.ndarray], learn: np.ndarray, offset: float) -> Actions:
    """The log with what is known of each event's item: log-odds of each label, smoothed, and log of how often it was shown.

    Counted over the impressions to learn from; those of the event's own day are left out if it is one of them, also of the
    average, so that no label takes part in its own prediction, and numbers in training are like those of later days.

    learn:  (N,) places of impressions in the log
    offset: hours to add to times, so that days are those of the people
    """
    if not len(learn):
        raise ValueError(
            "a ranker of shelves learns from impressions, and the train part has none. Split the data later."
        )
    day = ((log.time + offset * HOUR) // (24 * HOUR)).astype(np.int64)
    day, days = day - day[learn].min(), int(np.ptp(day[learn])) + 1
    own = np.full(len(day), -1)
    own[learn] = day[learn]
    items = log.item.max() + 2
    cell = (log.item[learn] + 1) * days + own[learn]

    def counted(weights):
        """Two (E,): the sum over the item's impressions of other days, and over all items' of those days."""
        count = np.bincount(cell, weights, minlength=items * days).reshape(items, days)
        daily = count.sum(0)
        count[0] = 0  # nothing is known of the unknown item
        own_day = np.where(own >= 0, count[log.item + 1, own], 0)
        return count.sum(1)[log.item + 1] - own_day, daily.sum() - np.where(own >= 0, daily[own], 0)

    shown, every = counted(np.ones(len(cell)))
    taken = [counted((label[learn] > 0).astype(float)) for label in labels]
    return log._replace(stats=_stats(shown, [(count, _share(whole, every)) for count, whole in taken]))


def rates(log: Actions, labels: Sequence[np.ndarray], learn: np.ndarray, items: int) -> np.ndarray:
    """(M, S) the same of every item today, counted over all impressions to learn from."""
    known = learn[log.item[learn] >= 0]
    shown = np.bincount(log.item[known], minlength=items)
    taken = [
        (np.bincount(log.item[known], label[known] > 0, minlength=items), _share((label[learn] > 0).sum(), len(learn)))
        for label in labels
    ]
    return _stats(shown, taken)


def _share(taken, shown):
    """Of what was shown; never 0 or 1, whose log-odds have no end, also where nothing or everything was taken."""
    return (taken + 0.5) / (shown + 1)


def _stats(shown, taken) -> np.ndarray:
    """(N, S) float32: log-odds beside the average's, with ten average impressions added, and how often shown.

    taken: for each label, how often (N,), and the share taken of all items
    """
    columns = []
    for count, mean in taken:
        rate = (count + 10 * mean) / (shown + 10)
        columns.append(np.log(rate / (1 - rate)) - np.log(mean / (1 - mean)))
    return np.stack([*columns, np.log1p(shown) / 3], 1).astype(np.float32)


def _place(among: np.ndarray, names: np.ndarray) -> np.ndarray:
    """Where each name stands in `among`, which ascends; -1 where it does not."""
    at = np.searchsorted(among, names).clip(max=len(among) - 1)
    return np.where(among[at] == names, at, -1)
