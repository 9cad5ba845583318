"""Whole slates of static scores with few distinct values: of each value group only the best item left can win a slot.

The loop is `search.run` on one column per group. On the CPU the same walk is one numba call where it can be
(`kernels/cpu.py`), since a hundred tensor operations per slot would cost more than finding the best items did.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

from .primal_dual import HUGE, Problem, State, linear
from .search import Steps, View, run


def walk_groups(problem: Problem, state: State, worth: Tensor, items: Tensor, width: list[int], trace: bool):
    """The final state and the steps.

    worth, items: (R, N) each group's best items, best first, -1 where there is none.  width: columns of each group.
    problem.value: (C, 1, G)
    """
    if not trace and _simple(problem) and worth.device.type == "cpu" and importlib.util.find_spec("numba"):
        return _walk_fast(problem, state, worth, items, width)
    found, level = items >= 0, problem.value
    ends = torch.tensor(width, device=worth.device).cumsum(0)
    next_ = (ends - ends.new_tensor(width)).expand(len(worth), -1)  # (R, G) column of each group's best item left

    def look(state: State) -> View:
        column = next_.clamp_max(worth.shape[1] - 1)
        open_ = (next_ < ends) & found.gather(1, column)
        return View(worth.gather(1, column), level, open_, items.gather(1, column))

    def move(chosen: Tensor, place: Tensor) -> None:
        nonlocal next_
        next_ = next_.scatter_add(1, place, (chosen >= 0).long()[:, None])

    return run(problem, state, look, move, None, trace)


def _simple(problem: Problem) -> bool:
    guarded = problem.guard is None or problem.guard.kind != "several"
    return problem.combine is linear and problem.bonus is None and guarded


def _walk_fast(problem, state, worth, items, width):
    from ..kernels import cpu

    promises, guard = problem.promises, problem.guard
    witness = None
    if guard is not None:
        column = (
            range(len(problem.value))[guard.columns][0] if isinstance(guard.columns, slice) else int(guard.columns[0])
        )
        target = guard.low if guard.kind == "floor" else guard.high
        witness = cpu.Witness(column, 1 if guard.kind == "floor" else -1, target[:, 0], guard.value[0], guard.items)
    prices = cpu.Prices(
        promises.column, promises.sign, state.initial, promises.share, promises.rate, promises.ceiling.clamp_max(HUGE)
    )
    chosen, relevance, gained, excess = cpu.walk_groups(
        worth, items, problem.value[:, 0].T, width, problem.slots, prices, problem.pace == "remaining", witness
    )
    state = state._replace(chosen=chosen, count=(chosen >= 0).sum(1), gained=gained, excess=excess)
    return state, Steps(chosen, relevance, None)
