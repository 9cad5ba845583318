"""Two models without learning, to be beaten: what is popular, and what was seen together with the history.

Both have the seam of every other model, so they decode and are ranked in the same way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data.interactions import Sequences
from .histories import aligned


class Popularity(NamedTuple):
    """Scores every item by how often it was used. count: (M,)"""

    count: Tensor

    def start(self, histories: Any) -> Tensor:
        return self.count.float().expand(len(histories), -1)

    def logits(self, state: Tensor) -> Tensor:
        return state

    def advance(self, state: Tensor, items: Tensor) -> Tensor:
        return state


class ItemKNN(NamedTuple):
    """Scores an item by its likeness to the items of the history, summed.

    near, likeness: (M, N) the most alike items of each, and how alike they are; 0 where there are fewer
    base:           (M,) score of an item like none: its popularity, too small to change an order otherwise
    """

    near: Tensor
    likeness: Tensor
    base: Tensor

    def start(self, histories: Any) -> Tensor:
        items = aligned(histories, items=len(self.base), device=self.base.device)
        state = self.base.repeat(len(items), 1)
        for column in items.unbind(1):
            state = self._add(state, column)
        return state

    def logits(self, state: Tensor) -> Tensor:
        return state

    def advance(self, state: Tensor, items: Tensor) -> Tensor:
        return self._add(state.clone(), items)

    def _add(self, state: Tensor, items: Tensor) -> Tensor:
        there = (items >= 0)[:, None]
        known = items.clamp_min(0)
        return state.scatter_add_(1, self.near[known], self.likeness[known] * there)

    def to(self, device) -> ItemKNN:
        return ItemKNN(*(x.to(device) for x in self))


def item_knn(train: Sequences, items: int, *, neighbours: int = 100, window: int = 100, shrink: float = 1.0) -> ItemKNN:
    """The `neighbours` most alike items of every item: together_ij / (sqrt(count_i count_j) + shrink).

    Two items are together once for each row in which they stand at most `window` events apart.
    """
    item, row = train.item, train.rows()
    first, second, where = [], [], []
    longest = int(np.diff(train.start).max(initial=0))
    for apart in range(1, min(window, longest - 1) + 1):
        same = row[apart:] == row[:-apart]
        a, b = item[:-apart][same], item[apart:][same]
        differ = a != b
        first.append(np.minimum(a, b)[differ])
        second.append(np.maximum(a, b)[differ])
        where.append(row[apart:][same][differ])
    a, b, r = (np.concatenate([*x, np.zeros(0, np.int64)]) for x in (first, second, where))
    pair = np.unique((r * items + a) * items + b) % (items * items)  # once a row
    pair, together = np.unique(pair, return_counts=True)
    count = np.bincount(item, minlength=items)
    a, b = pair // items, pair % items
    alike = together / (np.sqrt(count[a] * count[b]) + shrink)
    a, b, alike = np.concatenate([a, b]), np.concatenate([b, a]), np.concatenate([alike, alike])
    order = np.lexsort((b, -alike, a))
    a, b, alike = a[order], b[order], alike[order]
    place = np.arange(len(a)) - np.searchsorted(a, a)  # how many of the same item come before
    keep = place < neighbours
    near = np.zeros((items, neighbours), np.int64)
    likeness = np.zeros((items, neighbours), np.float32)
    near[a[keep], place[keep]] = b[keep]
    likeness[a[keep], place[keep]] = alike[keep]
    base = torch.from_numpy(count / max(count.max(initial=1), 1) * 1e-6).float()
    return ItemKNN(torch.from_numpy(near), torch.from_numpy(likeness), base)
