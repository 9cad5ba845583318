"""The one objective that sweeps and searches are about: one floor on values of items, from the words of a command or a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .data.interactions import Split
from .item_columns import item_columns
from .policy_file import ByValue, Policy, amended, parse_objectives


class Wish(NamedTuple):
    """name, column: as policies call it.  value: (M,)  floor: value units per slate.  per: "slate" or "traffic" """

    name: str
    column: str
    value: np.ndarray
    floor: float
    per: str
    slots: int

    def __str__(self) -> str:
        return f"{self.name} (at least {self.floor:g} of {self.slots})"


def wish_of(split: Split, objectives: Sequence[str], *, slots: int = 10, items: Path | None = None) -> Wish:
    """What texts like 'new>=3' or 'new>=30% per traffic' ask of the split's items. items: a table of more columns"""
    stated = amended(Policy(), slots=slots, objectives=parse_objectives(objectives))
    if len(stated.objectives) != 1:
        raise ValueError(
            f"decoders are compared on one objective, got {len(stated.objectives)}. Give --objective once; items that any "
            "of several labels has are 'categories=Cycling|Camping & Hiking>=3'."
        )
    one = stated.objectives[0]
    objective = one.objective()
    floor, cap = objective.targets(slots)
    if not isinstance(one, ByValue) or floor is None or cap is not None:
        raise ValueError(f"objective '{one.name}' must be a floor, like '{one.name}>=3', and have no cap.")
    if one.per == "both":
        raise ValueError(f"objective '{one.name}' must be per slate or per traffic, got 'both': compare one at a time.")
    value = np.asarray(one.value(item_columns(split, stated.columns, items)))
    if value.dtype.kind not in "fiub":
        raise ValueError(f"column '{one.columns[0]}' holds labels. Ask for one of them: '{one.columns[0]}=LABEL>=3'.")
    if not floor:
        raise ValueError(f"the floor of objective '{one.name}' must be above 0: with 0 all decoders do the same.")
    return Wish(one.name, one.columns[0], value.astype(np.float64), float(floor), one.per, slots)
