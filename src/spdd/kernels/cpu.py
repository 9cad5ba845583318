"""Best items of every value group on the CPU, in one read of the scores (numba). `reference.py` says what right means."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import torch
from torch import Tensor

from .reference import Groups


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
        _scan(scores[part], member, ends, allowed[part] if masked else allowed, masked, best[part], items[part])

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


@numba.njit(cache=True, nogil=True)
def _scan(logits, member, ends, allowed, masked, best, items):
    """Keep each group's best in order, by insertion: after a short while hardly any score beats its group's last."""
    for row in range(logits.shape[0]):
        last = np.full(len(ends) - 1, -np.inf, dtype=logits.dtype)
        for j in range(logits.shape[1]):
            score = logits[row, j]
            g = member[j]
            if score > last[g] and not (masked and not allowed[row, j]):
                place = ends[g + 1] - 1
                while place > ends[g] and best[row, place - 1] < score:
                    best[row, place] = best[row, place - 1]
                    items[row, place] = items[row, place - 1]
                    place -= 1
                best[row, place] = score
                items[row, place] = j
                last[g] = best[row, ends[g + 1] - 1]
