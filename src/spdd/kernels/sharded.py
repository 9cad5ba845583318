"""One catalogue over several devices: each process passes over its own rows of the table, and all learn what each found.

A process sends, for every row and value group, its few best items with their float64 logits, and what its items add to the
norm: some hundred numbers a row, in one message. All processes then hold the same candidates and go on alike, with the very
choices one process with the whole table would make.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from . import priced
from .reference import Barred, Groups, Product, columns, laid_out


class Shard(NamedTuple):
    """This process holds the items from `first` on, of `items` in all. group: the processes that share them; None for all"""

    first: int
    items: int
    group: Any = None


class Part(NamedTuple):
    """The items of a shard by value group, all of which are known by the same number everywhere. here: of this process"""

    shard: Shard
    size: tuple[int, ...]
    here: Groups


def own_rows(items: int, group: Any = None) -> tuple[Shard, slice]:
    """What this process holds of so many items: its turn of equal runs, the last of which may be shorter."""
    world = dist.get_world_size(group)
    each = -(-items // world)
    if each * (world - 1) >= items:
        raise ValueError(
            f"{items} items in equal runs leave one of {world} processes without any. Use fewer processes."
        )
    first = each * dist.get_rank(group)
    return Shard(first, items, group), slice(first, min(items, first + each))


def part_of(groups: Groups, shard: Shard, count: int) -> Part:
    """groups: of all items.  count: how many this process holds"""
    mine = groups.member[shard.first : shard.first + count]
    return Part(shard, groups.size, laid_out(groups.level, mine))


def group_best(
    scores: Product, part: Part, k: int, *, scale: str, barred: Barred, settle: bool = True, exact: bool = False
) -> priced.Best:
    """As `priced.group_best` over all items. scores, of this process's rows.  barred: said of all items"""
    first, count = part.shard.first, len(scores.table)

    def near(items: Tensor | None) -> Tensor | None:
        return None if items is None else (items - first).where((items >= first) & (items < first + count), -1)

    eligible = None if barred.eligible is None else barred.eligible[first : first + count]
    lists = Barred(near(barred.seen), near(barred.used), eligible)
    own = priced.group_best(scores, part.here, k, scale=scale, barred=lists, settle=settle, exact=exact)
    wide = len(part.size) * k
    items = torch.where(own.items < 0, -1, own.items + first).double()  # exact up to 2 ** 53
    depth = [min(k, size) for size in part.here.size]
    sent = [_regular(own.logit, depth, k, -torch.inf), _regular(items, depth, k, -1.0), own.sure[:, None].double()]
    if own.norm is not None:
        sent.append(own.norm)
    came = _from_all(torch.cat(sent, 1), part.shard.group)  # (W, R, ...)
    logit, items = (x.unflatten(2, (-1, k)).movedim(0, 2).flatten(2) for x in came[:, :, : 2 * wide].split(wide, 2))
    # Parts come in order of item numbers, and of equal ones the first stays first.
    order = logit.sort(dim=2, descending=True, stable=True).indices
    logit, items = (
        torch.cat([x[:, g, : min(k, size)] for g, size in enumerate(part.size)], 1)
        for x in (logit.gather(2, order), items.gather(2, order).long())
    )
    norm = None
    if own.norm is not None:
        norms = came[:, :, 2 * wide + 1]
        norm = (norms.amax(0) if scale == "relative" else norms.logsumexp(0))[:, None]
    group = columns([min(k, size) for size in part.size], items.device)
    return priced.Best(logit, items, group, norm, came[:, :, 2 * wide].amin(0) > 0)


class Rows(torch.nn.Module):
    """An embedding of which this process holds some rows. Adding nothing changes no number, so what comes out is the row.

    weight: (n, D) the rows from `first` on.  group: the processes that hold the others
    """

    def __init__(self, weight: Tensor, first: int, group: Any = None):
        super().__init__()
        self.weight, self.first, self.group = torch.nn.Parameter(weight, requires_grad=False), first, group

    def forward(self, items: Tensor) -> Tensor:
        place = items - self.first
        there = (place >= 0) & (place < len(self.weight))
        found = torch.nn.functional.embedding(place.where(there, 0), self.weight).masked_fill(~there[..., None], 0)
        dist.all_reduce(found, group=self.group)
        return found


def all_columns(mine: Tensor, shard: Shard) -> Tensor:
    """(R, M) from each process's columns (R, n)."""
    each = -(-shard.items // dist.get_world_size(shard.group))
    padded = torch.nn.functional.pad(mine, (0, each - mine.shape[1]))
    return _from_all(padded, shard.group).movedim(0, 1).flatten(1)[:, : shard.items]


def largest(mine: Tensor, group: Any = None) -> Tensor:
    """The largest of what all processes have, number by number; nan must not be among them."""
    came = mine.clone()
    dist.all_reduce(came, dist.ReduceOp.MAX, group=group)
    return came


def _regular(x: Tensor, depth: list[int], k: int, filler: float) -> Tensor:
    """(R, G · k) of columns of which a small group has fewer."""
    parts = [torch.nn.functional.pad(part, (0, k - part.shape[1]), value=filler) for part in x.split(depth, 1)]
    return torch.cat(parts, 1)


def _from_all(mine: Tensor, group: Any) -> Tensor:
    """(W, ...) the tensors of all processes, in their order."""
    came = mine.new_empty(dist.get_world_size(group), *mine.shape)
    dist.all_gather(list(came.unbind(0)), mine.contiguous(), group=group)
    return came
