"""The order of a finished slate: the same items, those of the objectives some places up or down.

Which items a slate holds is decided slot by slot, and what is early is context for the rest. Where they stand can be decided
afterwards: sorted by what the model said of them before the first slot, with so much added for each unit of value. Counts,
floors and caps stay as they are, so this is a slider of its own (docs/attainment.md has what it brings).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..kernels import Product, logits_at
from ..objective import Objective
from ..slate import Slate


def check_lift(lift: Any, objectives: Sequence[Objective]) -> float | None:
    """`lift` as a number, or a message that says why there can be none."""
    if lift is None:
        return None
    if (
        isinstance(lift, (bool, str))
        or not isinstance(lift, int | float | np.number)
        or not abs(lift) <= sys.float_info.max
    ):
        raise ValueError(
            f"`lift` must be None or a finite number, in units of the model's scores per unit of value, got {lift!r}."
        )
    _check_fixed(objectives)
    return float(lift)


def _check_fixed(objectives: Sequence[Objective]) -> None:
    for o in objectives:
        if o.depends_on_slate:
            raise ValueError(
                f"`lift` puts a finished slate in another order, and the value of objective '{o.name}' depends on the slate: what "
                "was counted may no longer hold. Leave one of them out."
            )


def lifted(slate: Slate, first: Tensor | Product, objectives: Sequence[Objective], lift: float) -> Slate:
    """The slate sorted by score + lift · value, best first; equal ones stay as they were, empty slots last.

    first: what the model said before the first slot, (R, M) or a product.  value: of objectives with a floor; where there is
    only a cap, it counts downwards. Relevance and trace move with their items.
    """
    _check_fixed(objectives)  # values may have been bound since the decoder was made
    there, items = slate.items >= 0, slate.items.clamp_min(0)
    score = logits_at(first, items)
    for o in objectives:
        side = 1.0 if o.at_least is not None else -1.0 if o.at_most is not None else 0.0
        value = o.value.to(score.device, torch.float64)
        score = score + side * lift * (value[items] if value.dim() == 1 else value.gather(1, items))
    place = score.masked_fill(~there, -torch.inf).argsort(dim=1, descending=True, stable=True)

    def moved(x: Tensor) -> Tensor:
        return x.gather(1, place if x.dim() == 2 else place[:, :, None].expand_as(x))

    trace = slate.trace and replace(
        slate.trace, **{f.name: moved(getattr(slate.trace, f.name)) for f in fields(slate.trace)}
    )
    return replace(slate, items=moved(slate.items), relevance=moved(slate.relevance), trace=trace)
