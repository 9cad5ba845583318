"""The last per cent: where scores stand still, exchange single items while that raises relevance and keeps every promise.

One price per objective picks the best slate for one 0/1 objective. With real values or several objectives it can
stop an item or two short of the best (the duality gap); most of that gap is one exchange wide.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .guard import Guard

POOL = 128  # columns tried for an exchange: the best at the first prices


def polish(relevance: Tensor, value: Tensor, open_: Tensor, priced: Tensor, guard: Guard, chosen: Tensor) -> Tensor:
    """(R, N) bool: the items of each row's slate after the exchanges.

    relevance, open_, priced: (R, N).  value: (C, 1 or R, N).  chosen: (R, K) columns, -1 for empty slots
    """
    rows, width = relevance.shape
    slate = torch.zeros(rows, width + 1, dtype=torch.bool, device=relevance.device)
    slate = slate.scatter(1, chosen.remainder(width + 1), True)[:, :width]
    # The slate's own columns are always in the pool, so that an item given up may come back.
    rank = priced.masked_fill(~open_, -torch.inf).masked_fill(slate, torch.inf)
    pool = _best(rank, min(width, POOL))
    worth, can = relevance.gather(1, pool), open_.gather(1, pool)
    inside = slate.gather(1, pool)
    values = [v.expand(rows, -1).gather(1, pool) for v in value[guard.columns]]
    for _ in range(2 * chosen.shape[1]):
        gain = worth[:, None] - worth[:, :, None]  # (R, out, in)
        fine = inside[:, :, None] & (can & ~inside)[:, None]
        for c, worth_c in enumerate(values):
            total = (worth_c * inside).sum(1)
            after = (total[:, None] - worth_c)[:, :, None] + worth_c[:, None]
            fine &= (after >= guard.low[:, c, None, None]) & (after <= guard.high[:, c, None, None])
        best, place = gain.masked_fill(~fine, -torch.inf).flatten(1).max(1)
        kept = best > 1e-12
        if not bool(kept.any()):
            break
        out, in_ = place // pool.shape[1], place % pool.shape[1]
        inside = inside.scatter(1, out[:, None], inside.gather(1, out[:, None]) & ~kept[:, None])
        inside = inside.scatter(1, in_[:, None], inside.gather(1, in_[:, None]) | kept[:, None])
    return torch.zeros_like(open_).scatter(1, pool, inside)


def _best(scores: Tensor, k: int) -> Tensor:
    """(R, k) columns of the k largest scores, ascending; of equal ones the lower columns (`topk` takes any)."""
    least = scores.topk(k, 1).values[:, -1:]
    above, level = scores > least, scores == least
    taken = above | (level & (level.cumsum(1) <= k - above.sum(1, keepdim=True)))
    return taken.nonzero()[:, 1].view(len(scores), k)
