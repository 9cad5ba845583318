"""The CPU's kernels (numba): best items of every value group in one read of the scores, and whole slates from them.

`reference.py` and `decode/search.py` say what right means.
"""

from __future__ import annotations

import functools
import math
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor

from .cpu_stream import keep_best
from .reference import Groups

STEEPEST = 709.0  # as in `decode.primal_dual`: beyond it exp is infinite, and 0 times that is nan


def grouped_topk(
    logits: Tensor, groups: Groups, k: int, eligible: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """As in `reference.py`; logits on the CPU, float32 or float64."""
    rows = len(logits)
    depth = np.minimum(k, groups.size)
    ends = np.concatenate([[0], depth.cumsum()])
    best = np.full((rows, ends[-1]), -np.inf, dtype=logits.numpy().dtype)
    items = np.full((rows, ends[-1]), -1, dtype=np.int64)
    masked = eligible is not None
    allowed = np.zeros((1, 1), dtype=np.bool_) if eligible is None else eligible.numpy()
    scores, member = logits.numpy(), groups.member.numpy()

    def scan(part: slice) -> None:
        keep_best(scores[part], member, ends, allowed[part] if masked else allowed, masked, best[part], items[part])

    # Plain threads and not numba's own: those spin between calls and take the cores from torch's.
    threads = min(torch.get_num_threads(), max(1, logits.numel() // 500_000))
    if threads == 1:
        scan(slice(None))
    else:
        size = -(-rows // threads)
        list(_pool(threads).map(scan, [slice(i, i + size) for i in range(0, rows, size)]))
    group = torch.from_numpy(np.repeat(np.arange(len(depth)), depth))
    return torch.from_numpy(best), torch.from_numpy(items), group.expand(rows, -1)


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="spdd")


class Prices(NamedTuple):
    """P prices per row. column: the value each belongs to.  sign: (P,).  The rest (R, P); see `decode.primal_dual`."""

    column: tuple[int, ...]
    sign: Tensor
    initial: Tensor
    share: Tensor
    rate: Tensor
    ceiling: Tensor


class Witness(NamedTuple):
    """A guard of one floor (side 1) or cap (side -1) on `column`; see `decode.guard`. target: (R,). value, items: (R, W)"""

    column: int
    side: int
    target: Tensor
    value: Tensor
    items: Tensor


def walk_groups(
    worth: Tensor,
    items: Tensor,
    level: Tensor,
    width: list[int],
    slots: int,
    prices: Prices,
    remaining: bool,
    witness: Witness | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Slates slot by slot: items (R, K), relevance (R, K), gained (R, C), excess (R, P).

    Equal to `decode.search.run` over one column per group, to the bit.
    worth, items: (R, N) each group's best, best first; -1 for items that are not there.  level: (G, C).
    width: columns of each group.  remaining: due is what is missing per slot left
    """
    rows, objectives = len(worth), level.shape[1]
    names, relevance = np.full((rows, slots), -1, dtype=np.int64), np.full((rows, slots), np.nan)
    gained, excess = np.zeros((rows, objectives)), np.zeros((rows, len(prices.column)))
    if witness is None:
        empty = torch.zeros(rows, 0, dtype=torch.float64)
        witness = Witness(0, 0, empty.sum(1), empty, empty.long())
    read = (worth, items, level, *prices[1:], witness.target, witness.value, witness.items)
    arguments = [x.contiguous().numpy() for x in read]
    arguments += [
        np.array(prices.column, dtype=np.int64),
        np.concatenate([[0], np.cumsum(width)]),
        remaining,
        witness.side,
        witness.column,
        names,
        relevance,
        gained,
        excess,
    ]
    _walk(*arguments)
    names, relevance, gained, excess = (torch.from_numpy(x) for x in (names, relevance, gained, excess))
    return names, relevance, gained, excess


@numba.njit(cache=True, nogil=True)
def _walk(
    worth, items, level, sign, initial, share, rate, ceiling, target, witness_value, witness_items,
    column, ends, remaining, side, guarded, names, relevance, gained, excess,
):  # fmt: skip
    groups, objectives = level.shape
    slots = names.shape[1]
    for row in range(names.shape[0]):
        next_ = ends[:-1].copy()
        alive = witness_items[row] >= 0
        count = 0
        for slot in range(slots):
            net = np.zeros(objectives)
            for p in range(len(column)):
                price = initial[row, p] * math.exp(min(-rate[row, p] * excess[row, p] * sign[p], STEEPEST))
                net[column[p]] += min(price, ceiling[row, p]) * sign[p]
            # The witness item that makes room: the one that gives least under a floor, most under a cap.
            swap, total = -1, 0.0
            for w in range(len(alive)):
                if alive[w]:
                    total += witness_value[row, w]
                    if swap < 0 or side * witness_value[row, w] < side * witness_value[row, swap]:
                        swap = w
            best, best_score, best_kept = -1, 0.0, False
            for g in range(groups):
                place = next_[g]
                if place >= ends[g + 1] or items[row, place] < 0:
                    continue
                score = worth[row, place]
                for c in range(objectives):
                    score = score + net[c] * level[g, c]
                kept = True
                if side != 0:
                    bar = np.inf * side
                    if swap >= 0:
                        bar = target[row] - (gained[row, guarded] + total) + witness_value[row, swap]
                    kept = side * level[g, guarded] >= side * bar
                better = score > best_score or (score == best_score and items[row, place] < items[row, next_[best]])
                if best < 0 or (kept and not best_kept) or (kept == best_kept and better):
                    best, best_score, best_kept = g, score, kept
            if best < 0:
                continue
            place = next_[best]
            next_[best] += 1
            names[row, slot], relevance[row, slot] = items[row, place], worth[row, place]
            for p in range(len(column)):
                due = share[row, p]
                if remaining:
                    due = (due * slots - gained[row, column[p]]) / max(slots - count, 1)
                excess[row, p] += level[best, column[p]] - due
            for c in range(objectives):
                gained[row, c] += level[best, c]
            count += 1
            for w in range(len(alive)):
                if alive[w] and witness_items[row, w] == items[row, place]:
                    swap = w
            if swap >= 0:
                alive[swap] = False
