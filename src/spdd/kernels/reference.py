"""What right means, in plain torch: items under a price, in float64, and the best items of every value group.

`priced_topk` is the definition: every score is written down. The rest is why nobody has to. Among items of equal value the more relevant one always comes first, whatever the prices, so a slate of K
needs only the K best of each group: one pass over the scores instead of one per slot. The pass takes block
maxima first (memory speed) and looks only into the K best blocks of a group (exact, see `_best`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 64
ITEMS_AT_ONCE = 1 << 16  # of a table, in float64
CHUNK = 1 << 21  # scores permuted at a time on the CPU: 8 MB of float32 stay in cache between the two passes


SCALES = ("probability", "relative", "log_probability", "logit")


class Product(NamedTuple):
    """Scores that are not written down: (hidden @ table.T) · row_scale.

    hidden: (R, D).  table: (M, D) of any float type, or int8.  row_scale: (M,) or None, what a row of an int8 table is worth
    longest: () the largest norm of a row of the table; found when it is not given, at the cost of one more read
    """

    hidden: Tensor
    table: Tensor
    row_scale: Tensor | None = None
    longest: Tensor | float | None = None


class Barred(NamedTuple):
    """What may not be chosen. Item lists are short and padded with -1; no mask of R x M is ever needed.

    seen:     (R, L) items that count as not there: they are in no probability either
    used:     (R, K) items already on the slate: not chosen again, but still part of the distribution
    eligible: (M,) bool, False for items that no row may have, and that are in no probability
    """

    seen: Tensor | None = None
    used: Tensor | None = None
    eligible: Tensor | None = None


class Choice(NamedTuple):
    """The best items of each row, best first; -1, -inf and -inf where there are no more. All (R, k), float64.

    norm: (R, 1) what the scale takes off the logits; None for the logit scale
    """

    items: Tensor
    score: Tensor
    logit: Tensor
    norm: Tensor | None


def priced_topk(
    scores: Tensor | Product, value: Tensor, price: Tensor, k: int, scale: str = "logit", barred: Barred | None = None
) -> Choice:
    """The k best items of each row by relevance + price · value, all of it in float64. Ties: the lower item number.

    scores: (R, M) logits, or a `Product`.  value: (C, M).  price: (R, C), negative where less is wanted
    """
    logits = exact_logits(scores)
    inside, open_ = allowed(barred or Barred(), len(logits), logits.shape[1], logits.device)
    norm = exact_norm(scale, logits, inside)
    total = relevance(scale, logits, norm)
    for c, worth in enumerate(value):
        total = total + price[:, c : c + 1].double() * worth.double()
    best = total.masked_fill(~open_, -torch.inf).sort(dim=1, descending=True, stable=True).indices[:, :k]
    there = open_.gather(1, best)
    score, logit = (x.gather(1, best).masked_fill(~there, -torch.inf) for x in (total, logits))
    found = Choice(best.masked_fill(~there, -1), score, logit, norm)
    missing = k - best.shape[1]
    if missing <= 0:
        return found
    pad = torch.nn.functional.pad
    return Choice(
        pad(found.items, (0, missing), value=-1),
        pad(found.score, (0, missing), value=-torch.inf),
        pad(found.logit, (0, missing), value=-torch.inf),
        norm,
    )


def exact_logits(scores: Tensor | Product) -> Tensor:
    """(R, M) float64."""
    if isinstance(scores, Tensor):
        return scores.double()
    hidden, table = scores.hidden.double(), scores.table
    logits = hidden.new_empty(len(hidden), len(table))
    for first in range(0, len(table), ITEMS_AT_ONCE):  # a whole table in float64 may not fit
        torch.mm(hidden, table[first : first + ITEMS_AT_ONCE].double().T, out=logits[:, first : first + ITEMS_AT_ONCE])
    return logits if scores.row_scale is None else logits * scores.row_scale.double()


def allowed(barred: Barred, rows: int, count: int, device) -> tuple[Tensor, Tensor]:
    """(R, M) bool twice: items that are there at all, and those of them that may be chosen."""
    inside = torch.ones(rows, count, dtype=torch.bool, device=device)
    if barred.eligible is not None:
        inside &= barred.eligible
    if barred.seen is not None:
        inside &= ~listed(barred.seen, count)
    return inside, inside if barred.used is None else inside & ~listed(barred.used, count)


def listed(items: Tensor, count: int) -> Tensor:
    """(R, M) bool, True for the items in each row's list. items: (R, L), -1 is padding"""
    mask = torch.zeros(len(items), count + 1, dtype=torch.bool, device=items.device)
    return mask.scatter(1, items.long().remainder(count + 1), True)[:, :count]


def exact_norm(scale: str, logits: Tensor, inside: Tensor) -> Tensor | None:
    """(R, 1) what the scale takes off the logits: their log-sum-exp, their largest, or nothing. All in float64."""
    if scale == "logit":
        return None
    logits = logits.masked_fill(~inside, -torch.inf)
    top = logits.amax(1, keepdim=True).clamp_min(torch.finfo(torch.float64).min)
    return top if scale == "relative" else top + (logits - top).exp().sum(1, keepdim=True).log()


def relevance(scale: str, logits: Tensor, norm: Tensor | None) -> Tensor:
    """Relevance of float64 logits on the scale."""
    if norm is not None:
        logits = logits - norm
    return logits.exp() if scale in ("probability", "relative") else logits


class Groups(NamedTuple):
    """Items ordered by value group, each group padded to whole blocks.

    level:   (G, C) the value every item of the group has
    member:  (M,) group of each item, uint8 where there are no more than 255
    size:    how many items each group has
    order:   (P,) items by group, ascending inside a group; padding repeats item 0
    padding: (D,) the places in `order` that are padding
    blocks:  G + 1 block numbers where groups start
    """

    level: Tensor
    member: Tensor
    size: tuple[int, ...]
    order: Tensor
    padding: Tensor
    blocks: tuple[int, ...]


def group_items(value: Tensor, most: int) -> Groups | None:
    """Groups of items with equal values, or None where there are more than `most`. value: (C, M)

    >>> group_items(torch.tensor([[0.0, 1.0, 0.0]]), most=2).level
    tensor([[0.],
            [1.]])
    """
    if not len(value):  # nothing tells items apart: one group
        level, member = value.new_zeros(1, 0), torch.zeros(value.shape[1], dtype=torch.int64, device=value.device)
    else:
        level, member = value.T.contiguous().unique(dim=0, return_inverse=True)
    return laid_out(level, member) if len(level) <= most else None


def laid_out(level: Tensor, member: Tensor) -> Groups:
    """The groups of items (M,) that are known to be members of these groups, some of which may have none. level: (G, C)"""
    member = member.long()
    count = member.bincount(minlength=len(level))
    items = member.argsort(stable=True)
    order, padding, blocks, place = [], [], [0], 0
    for part in items.split(count.tolist()):
        pad = -len(part) % BLOCK
        order += [part, part.new_zeros(pad)]
        padding.append(torch.arange(place + len(part), place + len(part) + pad, device=member.device))
        place += len(part) + pad
        blocks.append(place // BLOCK)
    if len(level) <= 255:  # a kernel reads this beside every score
        member = member.to(torch.uint8)
    whole = torch.cat(order)
    whole = whole.int() if place < 1 << 31 else whole  # kept as long as the values are, and as long as the catalogue
    return Groups(level, member, tuple(count.tolist()), whole, torch.cat(padding), tuple(blocks))


def grouped_topk(
    logits: Tensor, groups: Groups, k: int, eligible: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The k best items of each group: their logits, item numbers and groups; each (R, N), N <= G * k.

    Equal logits go to the lower item number. Where a group has fewer than k eligible items, -inf and -1.
    logits: (R, M).  eligible: (R, M) bool.
    """
    rows = max(1, CHUNK // len(groups.order)) if logits.device.type == "cpu" else len(logits)
    parts = [
        _grouped_topk(part, groups, k, None if eligible is None else eligible[i * rows : (i + 1) * rows])
        for i, part in enumerate(logits.split(rows))
    ]
    best, items = (torch.cat(x) for x in zip(*parts, strict=True))
    group = columns([min(k, size) for size in groups.size], logits.device)
    return best, items.masked_fill(best == -torch.inf, -1), group.expand_as(items)


def columns(depth, device) -> Tensor:
    """(N,) the group of each column, where group g has `depth[g]` of them. Filled there: a list sent over would stall a
    GPU, and `repeat_interleave` wakes torch's threads on a CPU.

    >>> columns([2, 1], "cpu")
    tensor([0, 0, 1])
    """
    return torch.cat([torch.full((width,), g, device=device) for g, width in enumerate(depth)])


def _grouped_topk(logits, groups, k, eligible):
    if eligible is not None:
        logits = logits.masked_fill(~eligible, -torch.inf)
    ordered = logits.index_select(1, groups.order)
    ordered[:, groups.padding] = -torch.inf
    ordered = ordered.unflatten(1, (-1, BLOCK))  # (R, blocks, BLOCK)
    peaks = ordered.amax(2)
    best, items = [], []
    for size, start, end in zip(groups.size, groups.blocks, groups.blocks[1:], strict=False):
        block = _best(peaks[:, start:end], k) + start  # (R, k')
        # Blocks in ascending order keep "lower item first" true inside the gathered candidates.
        block = block.sort(1).values
        inside = ordered.gather(1, block[:, :, None].expand(-1, -1, BLOCK)).flatten(1)
        place = _best(inside, min(k, size))
        best.append(inside.gather(1, place))
        column = block.gather(1, place // BLOCK) * BLOCK + place % BLOCK
        items.append(groups.order[column].long())
    return torch.cat(best, 1), torch.cat(items, 1)


def _best(scores: Tensor, k: int) -> Tensor:
    """(R, min(k, N)) columns of the k largest scores, largest first; equal scores go to the lower column.

    Taken over block maxima, the k blocks found hold the k best items: a block left out has k blocks before
    it, each with an item that is larger, or equal and earlier.
    """
    k = min(k, scores.shape[1])
    if k == 1:
        return scores.argmax(1, keepdim=True)
    if scores.dtype == torch.float64:
        return scores.sort(dim=1, descending=True, stable=True).indices[:, :k]
    # topk promises nothing about ties: order-preserving integers with the column below decide them.
    bits = (scores.float() + 0.0).view(torch.int32).long()  # + 0.0 makes -0.0 and 0.0 one number
    rank = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    column = torch.arange(scores.shape[1] - 1, -1, -1, device=scores.device)
    return (rank * (1 << 32) + column).topk(k, 1).indices
