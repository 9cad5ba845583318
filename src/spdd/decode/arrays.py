"""What callers hand in, checked once and brought to tensors: scores, exclusions, per-row numbers, seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..histories import pad_front
from .search import Sampling


def check_logits(given: Any, name: str = "`logits`") -> Tensor:
    """(R, M) float32 or float64, finite."""
    logits = _matrix(given, name)
    if logits.shape[1] == 0:
        raise ValueError(f"{name} must score at least one item, got shape {tuple(logits.shape)}.")
    if logits.dtype not in (torch.float32, torch.float64):
        logits = logits.to(torch.float64 if not logits.is_floating_point() else torch.float32)
    if not bool(all_finite(logits)):
        bad = ~torch.isfinite(logits)
        row, item = bad.nonzero()[0].tolist()
        raise ValueError(
            f"{name} must be finite, got {logits[row, item].item()} for row {row}, item {item} "
            f"({int(bad.sum())} such entries). Name items a row must not get in `exclude`."
        )
    return logits.detach()


def later_logits(given: Any, first: Tensor, name: str) -> Tensor:
    """Scores of a later step, of the first ones' shape, type and device. Nothing here waits for the device."""
    logits = _matrix(given, name)
    if logits.shape != first.shape:
        raise ValueError(
            f"{name} must keep its shape from slot to slot, {tuple(first.shape)} at first, then got "
            f"{tuple(logits.shape)}. Check the model's `advance`: it is told one item per row."
        )
    return logits.detach().to(first.device, first.dtype)


def all_finite(numbers: Tensor) -> Tensor:
    """() bool, on the device: whether every number is finite. One read, nothing written; nan passes through both ends."""
    if not numbers.numel():
        return torch.ones((), dtype=torch.bool, device=numbers.device)
    least, most = torch.aminmax(numbers)
    return torch.isfinite(least) & torch.isfinite(most)


def _matrix(given: Any, name: str) -> Tensor:
    try:
        matrix = given if isinstance(given, Tensor) else torch.as_tensor(np.require(given, requirements="W"))
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be numbers of shape (rows, items), got {type(given).__name__}.") from None
    if matrix.dim() != 2 or matrix.is_complex() or matrix.dtype == torch.bool:
        raise ValueError(
            f"{name} must be numbers of shape (rows, items), got shape {tuple(matrix.shape)} of {matrix.dtype}. "
            "One row alone is logits[None]."
        )
    return matrix


class SlateValue:
    """An objective's value function, watched.

    What it gives must be numbers, one per item, of every row or for all rows: that is seen at once. Whether they are
    finite and not negative only the device knows; it keeps the smallest and the largest until `complain` asks, once.

    slots: how many a slate has. The loop stops where rows run out of items; a function that does not say (`for_slots`) that
           it needs no more is shown every slot
    """

    def __init__(self, function: Any, name: str, items: int, slots: int):
        narrow = hasattr(function, "for_slots")
        self.function = function.for_slots(slots) if narrow else function
        self.name, self.items, self.shown = name, items, 0 if narrow else slots
        self.range: tuple[Tensor, Tensor] | None = None

    def __call__(self, chosen: Tensor) -> Tensor:
        more = max(0, self.shown - chosen.shape[1])
        value = self._numbers(self.function(torch.nn.functional.pad(chosen, (0, more), value=-1)), chosen)
        if value.numel():
            least, most = torch.aminmax(value)
            if self.range is not None:
                least, most = torch.minimum(self.range[0], least), torch.maximum(self.range[1], most)
            self.range = least, most
        return value.expand(len(chosen), -1)

    def complain(self) -> None:
        if self.range is None:
            return
        least, most = torch.stack(self.range).tolist()
        if not (least >= 0 and most < np.inf):
            raise ValueError(
                f"`value` of objective '{self.name}' must give numbers that are finite and not negative, it gave "
                f"{f'{least:g} to {most:g}' if least == least else 'nan'}. Check the function: it is shown the items "
                "placed so far, (rows, slots), -1 where a slot is empty."
            )

    def _numbers(self, given: Any, chosen: Tensor) -> Tensor:
        """(1 or R, M) float64 where `chosen` is."""
        rows, rule = len(chosen), f"`value` of objective '{self.name}' must give one number per item,"
        try:
            value = given if isinstance(given, Tensor) else torch.as_tensor(np.require(given, requirements="W"))
        except (TypeError, ValueError):
            raise TypeError(f"{rule} shape ({rows}, {self.items}), it gave {type(given).__name__}.") from None
        if value.shape not in ((self.items,), (1, self.items), (rows, self.items)) or value.is_complex():
            raise ValueError(
                f"{rule} shape ({rows}, {self.items}), it gave shape {tuple(value.shape)} of {value.dtype}."
            )
        return value.detach().to(chosen.device, torch.float64).reshape(-1, self.items)


def eligible_items(exclude: Any, histories: Any, logits: Tensor) -> Tensor | None:
    """(R, M) bool, False for excluded items; None where nothing is excluded."""
    given = excluded_items(exclude, histories, logits)
    if given is None:
        return None
    rows, count = logits.shape
    if given.dtype == torch.bool:
        return (~given).expand(rows, count)
    used = torch.zeros(rows, count + 1, dtype=torch.bool, device=logits.device)
    return ~used.scatter(1, given.remainder(count + 1), True)[:, :count]


def excluded_items(exclude: Any, histories: Any, logits: Tensor) -> Tensor | None:
    """What was said of items a row must not get: bool (M,) or (R, M), or item numbers (R, L) where -1 pads; None for nothing."""
    if exclude is None:
        return None
    rows, count = logits.shape
    if isinstance(exclude, str):
        if exclude != "seen":
            raise ValueError(f"`exclude` must be 'seen', a bool mask or lists of item numbers, got {exclude!r}.")
        if histories is None:
            raise ValueError(
                "`exclude='seen'` needs histories; `rerank` has none. Give a mask or lists of item numbers."
            )
        exclude = pad_front(histories)
    is_mask = getattr(exclude, "dtype", None) in (torch.bool, np.dtype(bool))
    if not is_mask and _begins_with_bool(exclude):
        is_mask, exclude = True, np.asarray(exclude)
    if is_mask:
        mask = torch.as_tensor(exclude, device=logits.device)
        if mask.shape not in ((count,), (rows, count)):
            raise ValueError(f"`exclude` must have shape ({count},) or ({rows}, {count}), got {tuple(mask.shape)}.")
        return mask
    items = _item_lists(exclude)
    if items is None:
        raise TypeError("`exclude` must be a bool mask, or one list of item numbers per row.")
    items = items.to(logits.device)
    if len(items) != rows:
        raise ValueError(f"`exclude` must hold one list of items per row: {rows} rows, got {len(items)} lists.")
    if items.numel() and (int(items.min()) < -1 or int(items.max()) >= count):
        raise ValueError(
            f"`exclude` must name items from 0 to {count - 1} (-1 pads short lists), got {int(items.min())} to {int(items.max())}."
        )
    return items


def _item_lists(given: Any) -> Tensor | None:
    """(R, L) item numbers, or None where these are no lists of whole numbers."""
    try:
        if not hasattr(given, "dtype") and any(np.asarray(row).dtype.kind not in "iu" for row in given if len(row)):
            return None
        items = torch.as_tensor(given) if hasattr(given, "dtype") else pad_front(given)
        return None if items.is_floating_point() or items.is_complex() else pad_front(items)
    except (TypeError, ValueError, RuntimeError):
        return None


def _begins_with_bool(given: Any) -> bool:
    """Whether lists (of lists) hold bools: True is a 1 too, and would name item 1."""
    while isinstance(given, (list, tuple)) and len(given):
        given = given[0]
    return isinstance(given, (bool, np.bool_))


def row_numbers(given: Any, rows: int, name: str) -> Tensor:
    """(R,) float64 from one number, or one number per row."""
    array = torch.as_tensor(np.asarray(given), dtype=torch.float64)
    if array.dim() and len(array) != rows:
        raise ValueError(f"{name} must be one number or one per row: {rows} rows, got {len(array)} numbers.")
    return array.expand(rows)


def sampling_of(temperature: Any, top_p: float, seed: Any, logits: Tensor) -> Sampling | None:
    """How to draw, or None to take the best."""
    if temperature is None:
        if top_p != 1.0 or seed is not None:
            raise ValueError("`top_p` and `seed` belong to sampling: give `temperature` too, e.g. temperature=1.0.")
        return None
    if isinstance(temperature, bool) or not (isinstance(temperature, (int, float)) and 0 < temperature < np.inf):
        raise ValueError(
            f"`temperature` must be a positive number, got {temperature!r}. Leave it out to take the best item."
        )
    if not (isinstance(top_p, (int, float)) and 0 < top_p <= 1):
        raise ValueError(f"`top_p` must lie in (0, 1], got {top_p!r}.")
    if seed is None:
        raise ValueError(
            "sampling needs a `seed`: one whole number, or one per row, so that slates can be drawn again."
        )
    given = np.asarray(seed.cpu() if isinstance(seed, Tensor) else seed)
    if given.dtype.kind not in "iu" or given.ndim > 1:  # a number of more than 64 bits is an object to numpy
        raise ValueError(f"`seed` must be one whole number or one per row, of at most 64 bits, got {seed!r}.")
    seeds = torch.as_tensor(given.astype(np.int64), device=logits.device)
    if seeds.dim() == 0:  # one number for the batch: rows differ by their place in it
        seeds = seeds.long() * 1_000_003 + torch.arange(len(logits), device=logits.device)
    if len(seeds) != len(logits):
        raise ValueError(f"`seed` must be one number or one per row: {len(logits)} rows, got {len(seeds)} seeds.")
    return Sampling(float(temperature), float(top_p), seeds.long())
