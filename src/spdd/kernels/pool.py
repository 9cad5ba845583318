"""Work on parts of the catalogue, one plain thread each, as many as torch was told to use.

Not torch's own threads: they meet after every small operation, and where other programs want the cores each meeting
waits for the slowest. Not numba's: they spin between calls. Inside a part, torch runs on the thread it is in.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

WORTH = 1 << 18  # scores for which it pays to start a thread


def in_parts(work: Callable[[int, int], Any], rows: int, count: int, multiple: int, device: torch.device) -> list[Any]:
    """What `work(first, end)` gives on parts of `count` items, in order. multiple: parts start at multiples of this"""
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    threads = max(1, min(threads, rows * count // WORTH))
    size = -(-count // (threads * multiple)) * multiple
    parts = [(first, min(first + size, count)) for first in range(0, count, size)]
    if len(parts) == 1:
        return [work(*parts[0])]

    def quietly(part):
        with torch.no_grad():  # which is said per thread
            return work(*part)

    return list(pool(threads).map(quietly, parts))


@functools.cache
def pool(threads: int) -> ThreadPoolExecutor:
    """Threads in which torch uses one. What torch is told in one of them it also tells threads to come: told back here."""
    workers = ThreadPoolExecutor(threads, "spdd", initializer=torch.set_num_threads, initargs=(1,))
    mine = torch.get_num_threads()
    list(workers.map(_meet(threads), range(threads)))
    torch.set_num_threads(mine)
    return workers


def _meet(threads: int) -> Callable[[int], None]:
    """Returns once as many workers as this have begun, so that all of them have."""
    from threading import Barrier

    barrier = Barrier(threads)

    def met(worker: int) -> None:
        barrier.wait()

    return met
