"""A model that proposes its best items from an approximate index, so that no slot scores the whole catalogue.

Decoders ask such a model through the seam of `proposals.py`: which items are open, and what each is paid for. The payment
is turned back into prices by least squares over a sample of items, which gives them exactly where payments are sums of
price · value, and steers the search where they are not. What is found is
scored exactly. A row for which the index finds too few open items is searched in full, and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..kernels import Product
from ..kernels.index import Index
from ..kernels.reference import exact_logits
from ..objective import Objective

SAMPLE = 512  # items from which prices are read


class Retriever:
    """A `Proposer` over a model that has `hidden(state)` (R, D) and `table` (M, D), for instance SASRec.

    objectives: those the decoder has, each with one value per item.  width: items proposed a slot, at most
    The rest goes to `kernels.index.Index`. Scores are logits, not normalised: scales "logit" and "relative".

    searched, full: rows that were asked for so far, and how many of them the index could not serve
    """

    normalised = False

    def __init__(self, model: Any, objectives: Sequence[Objective], *, width: int = 32, seed: int = 0, **options: Any):
        for objective in objectives:
            if not isinstance(objective.value, Tensor) or objective.value.dim() != 1:
                raise ValueError(
                    f"`value` of objective '{objective.name}' must be one number per item: an index over all items knows "
                    "neither rows nor slates. Decode with the model itself."
                )
        self.model, self.width = model, width
        table = model.table.detach()
        self.items, self.device = len(table), torch.device("cpu")
        empty = torch.zeros(0, self.items, dtype=torch.float64)
        value = torch.stack([o.value.double() for o in objectives]) if objectives else empty  # pyrefly: ignore
        self.index = Index(table, value, seed=seed, **options)
        self.searched = self.full = 0
        # From each band alike, so that what few items have is not missed.
        g = torch.Generator().manual_seed(seed)
        mixed = torch.randperm(self.items, generator=g)
        turn = torch.zeros_like(mixed)
        for band in self.index.band.unique():
            mine = self.index.band[mixed] == band
            turn[mine] = torch.arange(int(mine.sum()))
        self.sample = mixed[turn.argsort(stable=True)[:SAMPLE]]
        share = torch.nn.functional.one_hot(self.index.band[self.sample]).double()
        self.share = share / share.sum(0).clamp_min(1)  # (S, bands)
        known = torch.cat([value.new_ones(1, len(self.sample)), value[:, self.sample]])  # (1 + C, S)
        self.solve = torch.linalg.pinv(known)  # (S, 1 + C)

    def start(self, histories: Any) -> Any:
        return self.model.start(histories)

    def advance(self, state: Any, items: Tensor) -> Any:
        return self.model.advance(state, items)

    @torch.no_grad()
    def propose(self, state: Any, open_: Tensor | None, bonus: Tensor | None) -> tuple[Tensor, Tensor]:
        """See `proposals.Proposer`; logits in place of log p."""
        hidden, table = self.model.hidden(state), self.index.table
        open_ = torch.ones(len(hidden), self.items, dtype=torch.bool) if open_ is None else open_
        paid = torch.zeros(len(hidden), len(self.sample), dtype=torch.float64)
        paid = paid if bonus is None else bonus[:, self.sample].double()
        # Bands that are mostly barred are put so far below that none of their items comes first: no logit is larger than
        # |hidden| · |row|. Single items that are barred tell nothing of their band.
        far = 2 * hidden.double().norm(dim=1, keepdim=True) * float(table.norm(dim=1).max())
        shut = (open_[:, self.sample].double() @ self.share) < 0.5  # (R, bands)
        paid = torch.where(shut[:, self.index.band[self.sample]], paid.amin(1, keepdim=True) - far, paid)
        price = (paid @ self.solve)[:, 1:]
        found = self.index.candidates(hidden, price, 2 * self.width)
        there = found >= 0
        there &= open_.gather(1, found.clamp_min(0))
        logits = (hidden[:, None].double() * table[found.clamp_min(0)].double()).sum(2)
        enough = there.sum(1) >= open_.sum(1).clamp_max(min(self.width, 4))
        items, logits = self._best(found, logits, there, bonus)
        self.searched, self.full = self.searched + len(hidden), self.full + int((~enough).sum())
        for row in (~enough).nonzero()[:, 0].split(16):
            every = torch.arange(self.items).expand(len(row), -1)
            scores = exact_logits(Product(hidden[row], table))
            items[row], logits[row] = self._best(every, scores, open_[row], None if bonus is None else bonus[row])
        return items, logits

    def _best(self, items: Tensor, logits: Tensor, there: Tensor, bonus: Tensor | None) -> tuple[Tensor, Tensor]:
        """The `width` best of these; -1 where there are fewer. All (R, N)"""
        total = logits if bonus is None else logits + bonus.gather(1, items.clamp_min(0))
        best = total.masked_fill(~there, -torch.inf).topk(min(self.width, items.shape[1]), 1)
        items = items.gather(1, best.indices).masked_fill(best.values == -torch.inf, -1)
        logits = logits.gather(1, best.indices)
        missing = min(self.width, self.items) - items.shape[1]
        pad = torch.nn.functional.pad
        return pad(items, (0, missing), value=-1), pad(logits, (0, missing))
