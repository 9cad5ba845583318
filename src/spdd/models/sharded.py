"""A model whose item table lies on several devices: each process keeps its own rows, and all serve the same batch together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..kernels.sharded import Rows, all_columns, own_rows


class Sharded:
    """The model with the rows of its table that belong to this process, to be decoded like any other.

    model: has `hidden`, `table`, `items` and an `embedding` of items, whose rows from `items` on (a start token, say) the
           last process keeps; it is changed: what others hold is let go
    group: the processes that share the table; all of them must be told the same batches

    Every process gets the slates one process with all the table would get.
    """

    def __init__(self, model: Any, group: Any = None):
        self.model = model
        self.shard, mine = own_rows(model.items, group)
        last = mine.stop == model.items and mine.stop > mine.start
        whole = model.embedding.weight.detach()
        self.table: Tensor = model.table.detach()[mine].clone()
        held = whole[mine.start : len(whole) if last else mine.stop]
        model.embedding = Rows(held.clone(), mine.start, group)
        if torch.equal(held[: len(self.table)], self.table):  # one copy serves both
            self.table = model.embedding.weight[: len(self.table)]

    def __getattr__(self, name: str) -> Any:
        if name == "model" or name.startswith("__"):  # not there yet in a copy that is being made
            raise AttributeError(name)
        return getattr(self.model, name)

    def logits(self, state: Any) -> Tensor:
        """(R, M), for decoders that need all scores."""
        return all_columns(self.model.hidden(state) @ self.table.T, self.shard)
