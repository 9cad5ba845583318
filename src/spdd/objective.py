"""What a person wants from every slate, checked once and put into numbers.

An `Objective` is a name, a value per item and a floor, a cap or both. It knows nothing of scores,
prices or search: `targets` turns its words ("30%", 3, one number per row) into value units per slate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

Value = Any  # (M,) or (R, M) array or tensor, a column's name, or a function of what the slate holds
Target = Any  # a number of value units per slate, "30%" of the slots, or one number per row

PER = ("slate", "traffic", "both")

# A floor counts as met when it is missed by less than this part of it: values are often float32, and three times
# float32(0.7) falls 1e-7 short of 2.1. A part, so that it does not matter in which unit values are; a cap of 0 is kept
# to the letter. It is also the feasibility tolerance of the exact solver.
TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class Objective:
    """One thing a slate should have enough of, or not too much of.

    name:      what people call it; shown in messages, tables and plots
    value:     how much each item gives: (M,) shared by all rows, (R, M) one line per row, or a function
               `value(chosen) -> (R, M)` of the items placed so far, `chosen` (R, K) with -1 for empty slots
    at_least:  the floor per slate: value units, "30%" of the slots, or one number per row
    at_most:   the cap per slate, said the same way
    per:       "slate" binds every slate; "traffic" binds the average over all slates served; "both"
    rate:      how fast this objective's price moves, where it differs from the decoder's; one per row is fine

    >>> Objective("new", value=[0, 1, 1, 0], at_least="50%").targets(slots=4)[0]
    2.0
    """

    name: str
    value: Value
    at_least: Target = None
    at_most: Target = None
    per: Any = "slate"
    rate: Any = None

    def __post_init__(self):
        if not isinstance(self.name, str) or not self.name.strip():
            raise ValueError(
                f"`name` of an objective must be a non-empty string, got {self.name!r}. Name it, e.g. 'new'."
            )
        object.__setattr__(self, "per", _per(self.per, self.name))
        object.__setattr__(self, "value", _value(self.value, self.name))
        floor, cap = self.targets(slots=1)
        percent = [_is_percent(t) for t in (self.at_least, self.at_most) if t is not None]
        if (
            floor is not None
            and cap is not None
            and len(set(percent)) == 1
            and np.any(np.asarray(floor) > np.asarray(cap))
        ):
            raise ValueError(
                f"`at_least` of objective '{self.name}' must not exceed its `at_most`, got at_least={self.at_least!r} "
                f"and at_most={self.at_most!r}. Lower the floor or raise the cap."
            )
        if self.rate is not None:
            _numbers(self.rate, "rate", self.name)
        if self.per != "slate" and np.ndim(floor if floor is not None else 0) + np.ndim(cap if cap is not None else 0):
            raise ValueError(
                f"`at_least`/`at_most` of objective '{self.name}' must be one number when per={self.per!r}, got one per row: "
                "an average over traffic has one target. Use per='slate' for personal targets."
            )

    def __repr__(self):
        value = self.value
        if isinstance(value, Tensor):
            value = f"<{' x '.join(map(str, value.shape))} {str(value.dtype).removeprefix('torch.')}>"
        elif not isinstance(value, str):
            value = f"<{getattr(value, '__name__', type(value).__name__)}>"
        stated = {word: getattr(self, word) for word in ("at_least", "at_most", "rate")}
        more = [f"{word}={_short(given)}" for word, given in stated.items() if given is not None]
        more += [f"per={self.per!r}"] * (self.per != "slate")
        return f"Objective({', '.join([repr(self.name), f'value={value}', *more])})"

    @property
    def depends_on_slate(self) -> bool:
        return callable(self.value)

    @property
    def in_slate(self) -> bool:
        """Whether every slate has to keep the target."""
        return self.per in ("slate", "both")

    @property
    def in_traffic(self) -> bool:
        """Whether the average over traffic has to keep the target."""
        return self.per in ("traffic", "both")

    def targets(self, slots: int) -> tuple[Any, Any]:
        """Floor and cap in value units per slate; None where there is none, an array where each row has its own."""
        return (
            _target(self.at_least, slots, "at_least", self.name),
            _target(self.at_most, slots, "at_most", self.name),
        )


def check_objectives(objectives: Sequence[Objective], slots: int) -> tuple[Objective, ...]:
    """The objectives as a tuple, or a message that says what is wrong with them."""
    if isinstance(objectives, Objective):
        objectives = (objectives,)
    objectives = tuple(objectives)
    for objective in objectives:
        if not isinstance(objective, Objective):
            raise TypeError(
                f"`objectives` must hold spdd.Objective, got {type(objective).__name__}. "
                'Write spdd.Objective("new", value=is_new, at_least=3).'
            )
        floor, cap = objective.targets(slots)
        if floor is not None and cap is not None and np.any(np.asarray(floor) > np.asarray(cap)):
            raise ValueError(
                f"floor of objective '{objective.name}' must not exceed its cap, got at_least={objective.at_least!r} and "
                f"at_most={objective.at_most!r} with {slots} slots. Lower the floor or raise the cap."
            )
    names = [o.name for o in objectives]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"objective names must differ, got '{name}' {names.count(name)} times. Rename one, or give one both a floor and a cap."
            )
    return objectives


def _per(per, name: str) -> str:
    if isinstance(per, (tuple, list, set, frozenset)) and set(per) == {"slate", "traffic"}:
        return "both"
    if per in PER:
        return per
    raise ValueError(f"`per` of objective '{name}' must be 'slate', 'traffic' or 'both', got {per!r}.")


def _value(value: Value, name: str) -> Tensor | str | Callable:
    if isinstance(value, str) or (callable(value) and not isinstance(value, (Tensor, np.ndarray))):
        return value
    try:
        # A copy: what the caller does with the array afterwards is no wish any more.
        given = (
            value.detach() if isinstance(value, Tensor) else torch.as_tensor(np.require(value, requirements="W"))
        ).clone()
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"`value` of objective '{name}' must be numbers, one per item, got {type(value).__name__} ({error}). "
            "Give an array of shape (items,) or (rows, items)."
        ) from None
    if given.is_complex() or given.dim() not in (1, 2) or 0 in given.shape:
        raise ValueError(
            f"`value` of objective '{name}' must have shape (items,) or (rows, items) and real numbers, "
            f"got shape {tuple(given.shape)} of {given.dtype}."
        )
    if given.is_floating_point() or given.dtype in (torch.int8, torch.int16, torch.int32, torch.int64):
        bad = ~torch.isfinite(given) | (given < 0)
        if bool(bad.any()):
            worst = given[bad][0].item()
            raise ValueError(
                f"`value` of objective '{name}' must be finite and not negative, got {worst}. "
                "Shift values to start at 0, and state a wish for less as `at_most`."
            )
    return given


def _target(target: Target, slots: int, word: str, name: str):
    if target is None:
        return None
    if _is_percent(target) and not isinstance(target, str):  # one per row
        return np.array([_target(one, slots, word, name) for one in np.asarray(target, dtype=object)], dtype=np.float64)
    if isinstance(target, str):
        text = target.strip()
        try:
            percent = float(text.removesuffix("%"))
        except ValueError:
            percent = math.nan
        if not text.endswith("%") or not 0 <= percent <= 100:
            raise ValueError(
                f"`{word}` of objective '{name}' must be a number or a percentage of the slots between '0%' and '100%', "
                f"got {target!r}."
            )
        return percent / 100 * slots
    return _numbers(target, word, name)


def _is_percent(target: Target) -> bool:
    """Whether a target is a percentage, or one per row."""
    if isinstance(target, str):
        return True
    if isinstance(target, Tensor) or not np.iterable(target):
        return False
    entries = np.asarray(target, dtype=object)
    return entries.ndim == 1 and any(isinstance(one, str) for one in entries.tolist())


def _short(given: Any) -> str:
    """A target or rate, of many rows only how many."""
    return repr(given) if np.ndim(given) == 0 or len(given) <= 3 else f"<one for each of {len(given)} rows>"


def _numbers(given, word: str, name: str):
    """A finite, non-negative float, or a float64 array of them, one per row."""
    try:
        array = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
        array = array.astype(np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"`{word}` of objective '{name}' must be a number, got {given!r}.") from None
    if array.ndim > 1 or not np.all(np.isfinite(array)) or np.any(array < 0):
        raise ValueError(
            f"`{word}` of objective '{name}' must be finite, not negative, and one number or one per row, got {given!r}."
        )
    return float(array) if array.ndim == 0 else array
