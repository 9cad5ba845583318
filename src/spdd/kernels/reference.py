"""Best items of every value group, in plain torch.

Among items of equal value the more relevant one always comes first, whatever the prices, so a slate of K
needs only the K best of each group: one pass over the scores instead of one per slot. The pass takes block
maxima first (memory speed) and looks only into the K best blocks of a group (exact, see `_best`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 64
CHUNK = 1 << 21  # scores permuted at a time on the CPU: 8 MB of float32 stay in cache between the two passes


class Groups(NamedTuple):
    """Items ordered by value group, each group padded to whole blocks.

    level:   (G, C) the value every item of the group has
    member:  (M,) group of each item
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
        count = torch.tensor([value.shape[1]])
    else:
        level, member, count = value.T.contiguous().unique(dim=0, return_inverse=True, return_counts=True)
    if len(level) > most:
        return None
    items = member.argsort(stable=True)
    order, padding, blocks, place = [], [], [0], 0
    for part in items.split(count.tolist()):
        pad = -len(part) % BLOCK
        order += [part, part.new_zeros(pad)]
        padding.append(torch.arange(place + len(part), place + len(part) + pad, device=value.device))
        place += len(part) + pad
        blocks.append(place // BLOCK)
    return Groups(level, member, tuple(count.tolist()), torch.cat(order), torch.cat(padding), tuple(blocks))


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
    widths = torch.tensor([min(k, BLOCK * (end - start)) for start, end in _spans(groups)], device=logits.device)
    group = torch.arange(len(widths), device=logits.device).repeat_interleave(widths)
    return best, items.masked_fill(best == -torch.inf, -1), group.expand_as(items)


def _grouped_topk(logits, groups, k, eligible):
    if eligible is not None:
        logits = logits.masked_fill(~eligible, -torch.inf)
    ordered = logits.index_select(1, groups.order)
    ordered[:, groups.padding] = -torch.inf
    ordered = ordered.unflatten(1, (-1, BLOCK))  # (R, blocks, BLOCK)
    peaks = ordered.amax(2)
    best, items = [], []
    for start, end in _spans(groups):
        block = _best(peaks[:, start:end], k) + start  # (R, k')
        # Blocks in ascending order keep "lower item first" true inside the gathered candidates.
        block = block.sort(1).values
        inside = ordered.gather(1, block[:, :, None].expand(-1, -1, BLOCK)).flatten(1)
        place = _best(inside, k)
        best.append(inside.gather(1, place))
        column = block.gather(1, place // BLOCK) * BLOCK + place % BLOCK
        items.append(groups.order[column])
    return torch.cat(best, 1), torch.cat(items, 1)


def _spans(groups: Groups):
    return list(zip(groups.blocks, groups.blocks[1:], strict=False))


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
