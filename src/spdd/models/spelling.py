"""The best items of a catalog under a model that spells them token by token: beams over the tree of ids.

Only what an item can follow is ever looked at: the log-probability of a token is taken over the children its prefix
has in the catalog, so those of all items sum to 1, and a prefix with no open item below it is no candidate at all.
Inside an item the price stands still: a prefix is paid the mean of what the open items below it are paid, and so,
token by token, the increments add up to the item's own at the leaf. Nothing loops over rows, beams or children.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..catalog import Catalog


def best_items(
    catalog: Catalog,
    logits: Tensor,
    extend: Callable[[Tensor, Tensor], Tensor],
    width: int,
    open_: Tensor | None = None,
    bonus: Tensor | None = None,
    mean_of_open: bool = True,
    shared: int = 1,
) -> tuple[Tensor, Tensor]:
    """(R, width) the best open items found by log p + bonus, best first, -1 where there are fewer, and their log p.

    logits: (R, V) of the first token; V counts the tokens of all places, one place after the other
    extend: (which beam each comes from (R, B), the place and token it went on with (R, B) in 0..V) -> (R, B, V)
    width:  B, how many prefixes are followed; 1 is greedy
    open_:  (R, M), all if not given.  bonus: (R, M), in nats
    mean_of_open: a prefix is paid the mean over the open items below it; False: over all items, as the paper has it
    shared: the most items that share an id
    """
    rows, device = len(logits), logits.device
    open_ = torch.ones(rows, len(catalog), dtype=torch.bool, device=device) if open_ is None else open_
    alive = [count > 0 for count in catalog.count(open_)]
    paid = None if bonus is None else catalog.mean(bonus, open_ if mean_of_open else None)
    nodes = torch.zeros(rows, 1, dtype=torch.int64, device=device)
    total = torch.zeros(rows, 1, dtype=torch.float64, device=device)
    logits, offset = logits[:, None], 0
    for level, size in enumerate(catalog.sizes):
        child, token = catalog.branches(level, nodes)  # (R, B, W)
        step = logits[..., offset : offset + size].double().gather(2, token.clamp_min(0))
        step = step.masked_fill(child < 0, -torch.inf).log_softmax(2)  # nan for a beam that is none, barred below
        grown = (total[:, :, None] + step).flatten(1)
        child, token = child.flatten(1), token.flatten(1)
        score = grown if paid is None else grown + _at(paid[level + 1], child)
        score = score.masked_fill(~(_at(alive[level + 1], child) & (child >= 0)), -torch.inf)
        best = score.topk(min(width, score.shape[1]), 1)
        found = best.values > -torch.inf
        nodes = child.gather(1, best.indices).masked_fill(~found, -1)
        total = grown.gather(1, best.indices).masked_fill(~found, 0)
        if level + 1 < catalog.depth:
            parent = best.indices // (score.shape[1] // logits.shape[1])
            logits = extend(parent, offset + token.gather(1, best.indices).clamp_min(0))
        offset += size
    return _items(catalog, nodes, total, open_, bonus, width, shared)


def _items(catalog, nodes, total, open_, bonus, width, shared) -> tuple[Tensor, Tensor]:
    """The best open items behind these leaves; those that share an id share its probability evenly."""
    first = catalog.levels[-1].first
    held = (first[nodes.clamp_min(0) + 1] - first[nodes.clamp_min(0)]).double()
    items = catalog.below(catalog.depth, nodes, n=shared)  # (R, B, n)
    logits = (total - held.log())[:, :, None].expand(items.shape).flatten(1)
    items = items.flatten(1)
    can = (items >= 0) & open_.gather(1, items.clamp_min(0))
    score = logits if bonus is None else logits + bonus.gather(1, items.clamp_min(0))
    # Sorted, not `topk`: among items that share an id the first of the catalog comes first, on every device.
    score, place = score.masked_fill(~can, -torch.inf).sort(dim=1, descending=True, stable=True)
    score, place = score[:, :width], place[:, :width]
    return items.gather(1, place).masked_fill(score == -torch.inf, -1), logits.gather(1, place)


def _at(table: Tensor, nodes: Tensor) -> Tensor:
    """(R, N) the entries of each row's table, (1 or R, nodes of a level)."""
    return table.expand(len(nodes), -1).gather(1, nodes.clamp_min(0))
