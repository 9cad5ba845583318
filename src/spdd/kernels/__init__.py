"""Tensors in, tensors out: the few operations whose speed decides whether decoding is free."""

from __future__ import annotations

import importlib.util

from torch import Tensor

from . import reference
from .priced import Best, Values, group_best, logits_at, longest, prepare, priced_argmax, priced_topk
from .reference import Barred, Choice, Groups, Product, group_items

__all__ = [
    "Barred", "Best", "Choice", "Groups", "Product", "Values",
    "group_best", "group_items", "grouped_topk", "logits_at", "longest", "prepare", "priced_argmax", "priced_topk",
]  # fmt: skip


def grouped_topk(
    logits: Tensor, groups: Groups, k: int, eligible: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The k best items of each value group; see `reference.grouped_topk`. numba on the CPU where it is installed."""
    if logits.device.type == "cpu" and importlib.util.find_spec("numba"):
        from . import cpu

        return cpu.grouped_topk(logits, groups, k, eligible)
    return reference.grouped_topk(logits, groups, k, eligible)
