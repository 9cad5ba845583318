"""Where the next item lands when a model ranks all items: full ranking, seen items masked, one held-out item a row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..data.interactions import Sequences
from .histories import aligned


@torch.no_grad()
def ranks(model: Any, histories: Any, target: Any, *, batch: int = 1024) -> Tensor:
    """(R,) how many unseen items stand before the target; 0 is the best.

    Equal scores stand in order of their item numbers. A target the model does not know (-1), or one that the row has
    seen and that is masked with the rest, stands behind all items; so does one whose score is no number, or no finite
    one: a model that has gone astray must not look good.

    histories: lists, or (R, L) padded with -1.  target: (R,) item numbers
    """
    target = torch.as_tensor(target)
    parts = []
    for at in range(0, len(target), batch):
        rows = histories[at : at + batch]
        scores = model.logits(model.start(rows)).float()  # (B, M)
        M = scores.shape[1]
        seen = aligned(rows, device=scores.device)
        seen = torch.zeros(len(scores), M + 1, dtype=torch.bool, device=scores.device).scatter_(1, seen % (M + 1), True)
        # Not `scores >= inf`, which NaN answers with no, as it does every comparison.
        scores = scores.masked_fill(seen[:, :M] | ~(scores < torch.inf), -torch.inf)
        wanted = target[at : at + batch].to(scores.device)[:, None]
        own = scores.gather(1, wanted.clamp_min(0))
        before = torch.arange(M, device=scores.device) < wanted
        rank = ((scores > own) | ((scores == own) & before)).sum(1)
        parts.append(rank.masked_fill((wanted < 0)[:, 0] | (own == -torch.inf)[:, 0], M))
    return torch.cat(parts).cpu() if parts else torch.zeros(0, dtype=torch.int64)


def recall(rank: Tensor, cut: int = 10) -> Tensor:
    """(R,) 1 where the target is among the first `cut`."""
    return (rank < cut).double()


def ndcg(rank: Tensor, cut: int = 10) -> Tensor:
    """(R,) 1 / log2(2 + rank) where the target is among the first `cut`, else 0."""
    return torch.where(rank < cut, 1 / (rank + 2).double().log2(), 0.0)


def first_held_out(held: Sequences) -> Tensor:
    """(U,) the next item of each row: the first of its held-out events. Every row has one."""
    return torch.from_numpy(held.item[held.start[:-1]])
