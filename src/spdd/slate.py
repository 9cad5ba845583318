"""What every decoder returns. A row that could not be served well is a status here, never an exception."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from enum import IntEnum
from typing import Any

from torch import Tensor


class Status(IntEnum):
    """How a row's slate stands to what was asked of it."""

    MET = 0  # every floor and cap is kept
    SHORT = 1  # some target was missed although no proof says it had to be
    IMPOSSIBLE = 2  # no slate from this row's items keeps the targets; `Slate.reachable` says how far it goes


MET, SHORT, IMPOSSIBLE = Status.MET, Status.SHORT, Status.IMPOSSIBLE


@dataclass(frozen=True, eq=False)
class Trace:
    """Why each slot holds what it holds. R rows, K slots, C objectives."""

    dual: Any  # (R, K, C) price of each objective when the slot was filled
    slack: Any  # (R, K, C) value still missing to the floor (or left under the cap) before the slot was filled
    plain: Any  # (R, K) the item that would have won at price 0
    cost: Any  # (R, K) relevance given up against that item


@dataclass(frozen=True, eq=False)
class Slate:
    """R slates of K slots. Arrays are of the kind (numpy or torch, and device) that came in.

    items      (R, K) chosen items in order; -1 where a row ran out of items
    relevance  (R, K) of the chosen items, on the decoder's scale; nan where there is no item
    gained     (R, C) value collected for each objective
    dual       (R, C) price after the last slot: of the floor, of the cap where there is only a cap
    status     (R,)   MET, SHORT or IMPOSSIBLE
    reachable  (R, C) the most a slate of this row can collect of each objective by itself (the least, for a
               cap without a floor; the most under the cap, for both). nan where that is not known: for
               slate-dependent values, and for a floor and a cap on values other than 0/1 in rows that can keep them
    trace      per slot, when asked for
    arm        (R,) the arm a bandit drew
    """

    items: Any
    relevance: Any
    gained: Any
    dual: Any
    status: Any
    reachable: Any
    trace: Trace | None = None
    arm: Any = None

    def __len__(self) -> int:
        return len(self.items)

    def numpy(self) -> Slate:
        """The same slates as numpy arrays."""
        return _numpy(self)


def _numpy(record):
    def convert(x):
        if isinstance(x, Tensor):
            return x.detach().cpu().numpy()
        return _numpy(x) if is_dataclass(x) else x

    return replace(record, **{f.name: convert(getattr(record, f.name)) for f in fields(record)})
