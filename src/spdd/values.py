"""Values that change as a slate fills: coverage, calibration, caps per group, spacing.

Each is a function of the items placed so far, `chosen` (R, K) with -1 for empty slots, that says what every
item would give now, (R, M). Hand it to an `Objective`. The values of a slate's items add up to a number for
the slate as a whole (how much it covers, how well it matches, how often it breaks a rule), so a floor or a
cap on that sum is one on the whole. Everything is batched over rows; nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from .objective import Objective

CURVES = {"sqrt": torch.sqrt, "log": torch.log1p}

# Gains are rounded to this many steps per unit, far above the noise of float64 and far below what a target may
# be missed by: items alike in what they bring give exactly the same, in whatever order a device adds them up.
STEPS = 2.0**40
MOST_HAS = 1 << 25  # numbers in `Members.has`: 256 MB


def coverage(table: Any, concave: Any = "sqrt") -> Coverage:
    """What each item adds to how well the slate covers T categories: less where others did so already.

    The slate's coverage is f(S) = sum_t g(sum_{j in S} table[j, t]); an item gives f(S + j) - f(S).

    table:   (M, T), or (R, M, T) for one table per row: how much of each category an item has, not negative
    concave: g. "sqrt"; "log", which is log(1 + x); a number c, which is min(x, c); or an elementwise function
             of a tensor that rises ever more slowly

    >>> both = Objective("genres covered", value=coverage([[1, 0], [1, 0], [0, 1]], concave=1), at_least=2)
    >>> both.value(torch.tensor([[0, -1]]))  # item 0 is on the slate: another of its genre adds nothing
    tensor([[0., 0., 1.]], dtype=torch.float64)
    """
    parts = members(table, "table")
    return Coverage(Placed(*parts), _curve(concave, parts.table))


def calibration(table: Any, wanted: Any) -> Calibration:
    """What each item adds to how well the slate's mix of T categories matches the mix that is wanted.

    The match is f(S) = sum_t min(share_t, wanted_t), 1 at best. share_t is the part of all slots, empty ones
    too, that category t has; an item of several categories is split among them in proportion to its line.

    table:  (M, T), or (R, M, T) for one table per row: how much of each category an item has, not negative
    wanted: (T,), or (R, T) for one taste per row: the mix, not negative; brought to a sum of 1

    >>> taste = Objective("taste", value=calibration([[1, 0], [1, 0], [0, 1]], wanted=[1, 3]), at_least=1)
    >>> taste.value(torch.tensor([[0, -1, -1, -1]]))
    tensor([[0.0000, 0.0000, 0.2500]], dtype=torch.float64)
    """
    parts = members(table, "table", split=True)
    return Calibration(Placed(*parts, mix(wanted, parts.table)))


def at_most_per_group(name: str, groups: Any, most: int) -> Objective:
    """An objective that keeps every slate to at most `most` items of a group: an artist, a brand, a seller.

    Its value counts the items beyond `most` and its cap is 0, so a decoder with a guard places none of them
    while the row has anything else.

    groups: (M,), or (R, M) for one line per row: the group of each item, any whole numbers; -1 is no group

    >>> artists = at_most_per_group("one per artist", [7, 7, 8, -1], most=1)
    >>> artists.value(torch.tensor([[0, 3, -1]]))
    tensor([[1., 1., 0., 0.]], dtype=torch.float64)
    """
    most = _whole(most, "most", 1, "To keep items out altogether, name them in `exclude`.")
    labels, known = number_groups(groups)
    return Objective(name, GroupLimit(Placed(labels), len(known), most), at_most=0)


def spacing(name: str, groups: Any, distance: int) -> Objective:
    """An objective that keeps items of a group apart: no `distance` slots in a row hold one group twice.

    Its value is 1 for items of a group placed in the last `distance` - 1 slots, and its cap is 0. It looks
    ahead: while other items are left, the value is 1 too for one after which the open slots could not all be
    filled in keeping. So, alone, it is kept wherever it can be, by a decoder with a guard. The look ahead is
    exact for rows that may have every item, and for `Spacing.within`; it does not know of other objectives.

    groups: (M,), or (R, M) for one line per row: the group of each item, any whole numbers; -1 is no group

    >>> apart = spacing("artists apart", [7, 7, 7, 8, 9], distance=2)
    >>> apart.value(torch.tensor([[-1, -1, -1, -1, -1]]))  # five slots: 7 must come first, or two would meet
    tensor([[0., 0., 0., 1., 1.]], dtype=torch.float64)
    """
    distance = _whole(distance, "distance", 2, "At 1 items of a group may be neighbours, which asks for nothing.")
    labels, known = number_groups(groups)
    stock = _tally(labels, torch.ones_like(labels), len(known))
    return Objective(name, Spacing(Placed(labels, stock), len(known), distance), at_most=0)


# ---- the functions an objective holds ---------------------------------------------------------------------


class Placed:
    """Tensors, copied once to each device they are asked for on. The first one's shape begins with (M,) or (R, M)."""

    def __init__(self, *tensors: Tensor):
        self.first = tensors
        self._on = {tensors[0].device: tensors}

    def on(self, chosen: Tensor) -> tuple[Tensor, ...]:
        """The tensors where `chosen` (R, K) is."""
        device = chosen.device
        if device not in self._on:
            self._on[device] = tuple(t.to(device) for t in self.first)
        return self._on[device]


@dataclass(frozen=True, eq=False)
class _Value:
    """What all have: tensors on every device, and the shape of what they give."""

    placed: Placed = field(repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """(M,), or (R, M) where rows have numbers of their own."""
        return tuple(self.placed.first[0].shape)

    def for_slots(self, slots: int) -> Self:
        """The same for slates of so many slots, however many of them `chosen` has: the last may be left out while empty."""
        return self

    def _tensors(self, chosen: Tensor) -> tuple[Tensor, ...]:
        if len(self.shape) == 2 and self.shape[0] != len(chosen):
            raise ValueError(
                f"{type(self).__name__} has numbers for {self.shape[0]} rows, one line each, but {len(chosen)} slates are "
                "being built. Give as many lines as rows, or numbers that all rows share."
            )
        return self.placed.on(chosen)


@dataclass(frozen=True, eq=False)
class Coverage(_Value):
    """See `coverage`. curve: g"""

    curve: Callable[[Tensor], Tensor]

    @property
    def shape(self):
        return super().shape[:-1]

    def __call__(self, chosen: Tensor) -> Tensor:
        parts = Members(*self._tensors(chosen))
        return marginal(parts, held(parts, chosen), lambda x, look: self.curve(x))


@dataclass(frozen=True, eq=False)
class Calibration(_Value):
    """See `calibration`. slots: of a slate, where `chosen` does not have them all"""

    slots: int | None = None

    def for_slots(self, slots: int) -> Calibration:
        return replace(self, slots=slots)

    @property
    def shape(self):
        *rows, items = super().shape[:-1]
        tastes = len(self.placed.first[-1])
        return (*(rows or [tastes] * (tastes > 1)), items)

    def __call__(self, chosen: Tensor) -> Tensor:
        *parts, wanted = self._tensors(chosen)
        parts, slots = Members(*parts), self.slots or chosen.shape[1]
        return marginal(parts, held(parts, chosen), lambda x, look: torch.minimum(x / slots, look(wanted)))


@dataclass(frozen=True, eq=False)
class GroupLimit(_Value):
    """See `at_most_per_group`. groups: how many there are; the label above the last one's is for items of none"""

    groups: int
    most: int

    def __call__(self, chosen: Tensor) -> Tensor:
        (labels,) = self._tensors(chosen)
        count = _tally(_of(labels, chosen, self.groups), chosen >= 0, self.groups)
        count[:, self.groups] = 0
        return _at(count >= self.most, labels).double()


@dataclass(frozen=True, eq=False)
class Spacing(_Value):
    """See `spacing`. groups: how many there are; the label above the last one's is for items of none"""

    groups: int
    distance: int

    def within(self, eligible: Tensor) -> Spacing:
        """The same for rows that may have only their `eligible` items (R, M): it looks ahead with those."""
        labels = self._tensors(eligible)[0]
        stock = _tally(labels.expand(eligible.shape), eligible, self.groups)
        return replace(self, placed=Placed(labels, stock))

    def __call__(self, chosen: Tensor) -> Tensor:
        labels, stock = self._tensors(chosen)
        group = _of(labels, chosen, self.groups)  # (R, K)
        filled = (chosen >= 0).sum(1, keepdim=True)
        slot = torch.arange(chosen.shape[1], device=chosen.device)
        # (R, G + 1) slots each group still has to wait before it may be placed again, and its items not yet placed
        wait = (self.distance - filled + slot).masked_fill(chosen < 0, 0).clamp_min(0)
        wait = wait.new_zeros(len(chosen), self.groups + 1).scatter_reduce(1, group, wait, "amax")
        wait[:, self.groups] = 0
        left = stock - _tally(group, chosen >= 0, self.groups)
        barred = wait > 0
        after = torch.minimum(chosen.shape[1] - filled, left.sum(1, keepdim=True)) - 1
        lost = self._lost(wait, left, after.clamp_min(0)) & (left > 0)
        safe = (left > 0) & ~barred & ~lost
        return _at(barred | (lost & safe.any(1, keepdim=True)), labels).double()

    def _lost(self, wait: Tensor, left: Tensor, after: Tensor) -> Tensor:
        """(R, G + 1) whether, once an item of a group takes this slot, the `after` (R, 1) slots cannot all be filled.

        Cut what is left into blocks of `distance` slots: a group fits once into each, and into the rest of r
        slots once more if its wait is over by then, which r groups can do. That this is also enough holds
        because groups that wait have waits of 1, 2, 3, ...: each keeps its own place in every block.
        """
        blocks, rest = after // self.distance, after % self.distance
        whole = torch.minimum(left, blocks)
        last = ((left > blocks) & (wait - 1 < rest)).long()
        alone = left[:, self.groups :]  # items of no group: each is a group of its own
        whole[:, self.groups :] = alone * (blocks > 0)
        last[:, self.groups :] = alone * (blocks == 0)
        one_less = torch.minimum(left - 1, blocks)
        one_less[:, self.groups :] = whole[:, self.groups :] - (blocks > 0).long()
        last_less = last.clone()
        last_less[:, self.groups :] = (blocks == 0).long()
        most = whole.sum(1, keepdim=True) - whole + one_less
        return most + torch.minimum(last.sum(1, keepdim=True) - last_less, rest) < after


# ---- sums over categories, which calibrated re-ranking uses too ---------------------------------------------


class Members(NamedTuple):
    """Items' parts in T categories, and the same with the zeros left out: L is the most categories an item has.

    table: (M, T) or (R, M, T).  category, weight: (L, M) or (L, R, M)
    pair:  (2, P) category and weight of every kind of part there is, where items share few (tables of 0 and 1 do)
    has:   (P, M) 1 where an item has such a part
    """

    table: Tensor
    category: Tensor
    weight: Tensor
    pair: Tensor
    has: Tensor


def members(table: Any, name: str, split: bool = False) -> Members:
    """A checked table. split: bring each item's line to a sum of 1 (0 stays 0)."""
    given = _numbers(table, name, (2, 3), "(items, categories) or (rows, items, categories)")
    if split:
        given = given / given.sum(-1, keepdim=True).clamp_min(torch.finfo(given.dtype).tiny)
    depth = max(1, int((given > 0).sum(-1).max()))
    category = (given == 0).byte().argsort(dim=-1, stable=True)[..., :depth]
    weight = given.gather(-1, category)
    pair, has = _pairs(given)
    return Members(given, category.movedim(-1, 0).contiguous(), weight.movedim(-1, 0).contiguous(), pair, has)


def _pairs(table: Tensor) -> tuple[Tensor, Tensor]:
    """`Members.pair` and `Members.has`, both empty where there are too many to gain from."""
    none = table.new_zeros(2, 0), table.new_zeros(0, table.shape[-2])
    if table.dim() == 3:
        return none
    item, category = table.nonzero().unbind(1)
    pair, kind = torch.stack([category.double(), table[item, category]]).unique(dim=1, return_inverse=True)
    if pair.shape[1] * len(table) > MOST_HAS:
        return none
    has = table.new_zeros(pair.shape[1], len(table))
    has[kind, item] = 1
    return pair, has


def mix(wanted: Any, table: Tensor) -> Tensor:
    """(1 or R, T) a checked distribution over the categories of `table`, with a sum of 1."""
    given = _numbers(wanted, "wanted", (1, 2), "(categories,) or (rows, categories)")
    if given.shape[-1] != table.shape[-1]:
        raise ValueError(
            f"`wanted` must have one number per category of `table`, which has {table.shape[-1]}; got {given.shape[-1]}."
        )
    given = given.reshape(-1, given.shape[-1]).to(table.device)
    if table.dim() == 3 and len(given) not in (1, len(table)):
        raise ValueError(
            f"`wanted` must have one line, or one per row of `table`: {len(table)} rows, got {len(given)} lines."
        )
    total = given.sum(1, keepdim=True)
    if bool((total == 0).any()):
        row = int((total == 0).nonzero()[0, 0])
        raise ValueError(
            f"`wanted` must have a sum above 0, got only zeros in line {row}. "
            "Give a user without a taste the average of all, or equal parts."
        )
    return given / total


def held(parts: Members, chosen: Tensor) -> Tensor:
    """(R, T) how much of each category is on the slate."""
    place = chosen.clamp_min(0)
    if parts.table.dim() == 2:
        brought = parts.table[place]
    else:
        brought = parts.table.gather(1, place[:, :, None].expand(-1, -1, parts.table.shape[2]))
    return (brought * (chosen >= 0)[:, :, None]).sum(1)


def marginal(parts: Members, have: Tensor, curve: Callable[[Tensor, Callable], Tensor]) -> Tensor:
    """(R, M) f(S + j) - f(S) of every item j, where f(S) = sum_t curve_t(have_t).

    curve: (x, look) -> curve of x, elementwise; look(p) lines up p (1 or R, T) with x
    """
    now = curve(have, lambda p: p)
    if parts.pair.shape[1]:
        look = partial(_line_up, parts.pair[0].long(), len(have))
        gain = (curve(look(have) + parts.pair[1], look) - look(now)) @ parts.has
    else:
        gain = torch.zeros((), dtype=have.dtype, device=have.device)
        for category, weight in zip(parts.category, parts.weight, strict=True):
            look = partial(_line_up, category, len(have))
            gain = gain + (curve(look(have) + weight, look) - look(now))
    return gain.mul_(STEPS).round_().div_(STEPS)


def _line_up(category: Tensor, rows: int, per_category: Tensor) -> Tensor:
    """per_category: (1 or R, T) -> (1 or R, M) by `category` (M,), or (R, M) by `category` (R, M)"""
    if category.dim() == 1:
        return per_category[:, category]
    return per_category.expand(rows, -1).gather(1, category)


# ---- groups ---------------------------------------------------------------------------------------------------


def _of(labels: Tensor, chosen: Tensor, none: int) -> Tensor:
    """(R, K) the group of each chosen item, `none` where a slot is empty."""
    place = chosen.clamp_min(0)
    group = labels[place] if labels.dim() == 1 else labels.gather(1, place)
    return group.masked_fill(chosen < 0, none)


def _tally(labels: Tensor, counted: Tensor, groups: int) -> Tensor:
    """(..., G + 1) how many of the counted `labels` (..., N) each group has."""
    return labels.new_zeros(*labels.shape[:-1], groups + 1).scatter_add(-1, labels, counted.long())


def _at(by_group: Tensor, labels: Tensor) -> Tensor:
    """by_group: (R, G + 1) -> (R, M)"""
    return by_group[:, labels] if labels.dim() == 1 else by_group.gather(1, labels)


# ---- checks ---------------------------------------------------------------------------------------------------


def _numbers(given: Any, name: str, dims: tuple[int, ...], shape: str) -> Tensor:
    """float64, finite, not negative."""
    try:
        numbers = given if isinstance(given, Tensor) else torch.as_tensor(np.asarray(given))
        numbers = numbers.detach().to(torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"`{name}` must be numbers of shape {shape}, got {type(given).__name__} ({error}).") from None
    if numbers.dim() not in dims or 0 in numbers.shape:
        raise ValueError(f"`{name}` must have shape {shape}, got {tuple(numbers.shape)}.")
    bad = ~torch.isfinite(numbers) | (numbers < 0)
    if bool(bad.any()):
        place = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"`{name}` must be finite and not negative, got {numbers[place].item()} at {place}. "
            "Say 0 where an item has nothing of a category."
        )
    return numbers


def number_groups(groups: Any, name: str = "groups") -> tuple[Tensor, Tensor]:
    """Numbers 0, 1, 2, ... in place of the given ones, with the number after the last for -1; and the given ones, sorted."""
    try:
        given = groups.detach() if isinstance(groups, Tensor) else torch.as_tensor(np.asarray(groups))
    except (TypeError, ValueError):
        given = None
    if given is None or given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
        raise TypeError(
            f"`{name}` must be whole numbers, one per item (-1 for none), "
            f"got {type(groups).__name__}{'' if given is None else f' of {given.dtype}'}. "
            "numpy.unique(names, return_inverse=True)[1] turns names into numbers."
        )
    if given.dim() not in (1, 2) or 0 in given.shape:
        raise ValueError(f"`{name}` must have shape (items,) or (rows, items), got {tuple(given.shape)}.")
    given = given.long()
    known = given[given != -1].unique()
    return torch.searchsorted(known, given).masked_fill(given == -1, len(known)), known


def _whole(given: Any, name: str, least: int, otherwise: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int | np.integer) or given < least:
        raise ValueError(f"`{name}` must be a whole number of at least {least}, got {given!r}. {otherwise}")
    return int(given)


def _curve(concave: Any, table: Tensor) -> Callable[[Tensor], Tensor]:
    if isinstance(concave, str):
        if concave not in CURVES:
            raise ValueError(
                f"`concave` must be one of {', '.join(map(repr, CURVES))}, a number (the cap of every category), "
                f"or a function of a tensor; got {concave!r}."
            )
        return CURVES[concave]
    if not callable(concave):
        if isinstance(concave, bool) or not isinstance(concave, int | float | np.number) or not 0 < concave < np.inf:
            raise ValueError(
                f"`concave` as a number caps every category: it must be finite and above 0, got {concave!r}."
            )
        return partial(torch.clamp, max=float(concave))
    x = torch.linspace(0, 4 * max(1.0, table.max().item()), 65, dtype=torch.float64)
    y = concave(x)
    elementwise = isinstance(y, Tensor) and y.shape == x.shape and bool(torch.isfinite(y).all())
    if not elementwise or not torch.allclose(concave(x[1:]), y[1:]):
        raise ValueError(
            "`concave` must be elementwise and finite: a tensor of numbers from 0 up in, as many numbers out."
        )
    steps, slack = y.diff(), 1e-9 * (1 + y.abs().max())
    if bool((steps < -slack).any()) or bool((steps.diff() > slack).any()):
        raise ValueError(
            "`concave` must rise ever more slowly, or the guard would count on gains that never come; the function given "
            f"{'falls' if bool((steps < -slack).any()) else 'rises faster'} somewhere between 0 and {x[-1]:g}. "
            "Use 'sqrt', 'log' or a cap."
        )
    return concave
