"""One slate per row, slot by slot: score, choose, move the prices, ask the model again.

`Model` is the seam to whatever gives scores. Choosing is greedy, or sampled with noise that depends only
on the row's seed, the slot and the item, so a row draws the same slate in any batch, order or padding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ..histories import pad_front
from ..relevance import log_weight
from . import primal_dual
from .primal_dual import Problem, State


class Model(Protocol):
    """What a model has to offer to be decoded: three functions. R rows, M items."""

    def start(self, histories: Any) -> Any: ...  # the state before the first slot
    def logits(self, state: Any) -> Tensor: ...  # (R, M), finite
    def advance(self, state: Any, items: Tensor) -> Any: ...  # the state after items (R,) were appended


class FromCallable(NamedTuple):
    """A model from one function: item sequences (R, L), padded with -1 at the front, in; logits (R, M) out."""

    function: Callable[[Tensor], Tensor]

    def start(self, histories):
        return pad_front(histories)

    def logits(self, state):
        scores = self.function(state)  # what is no array at all is refused by the decoder, by name
        return (
            torch.as_tensor(np.require(scores, requirements="W")) if isinstance(scores, np.ndarray | list) else scores
        )

    def advance(self, state, items):
        return torch.cat([state, items.to(state.device)[:, None]], 1)


class View(NamedTuple):
    """The columns a slot is chosen from.

    items:  (R, N) their item numbers, or None where column = item
    static: whether the scores stay as they are while the slate fills
    allowed: (R, N) what may be chosen, where that is known already: what is open and keeps the promises
    """

    relevance: Tensor
    value: Tensor
    open: Tensor
    items: Tensor | None
    static: bool = False
    allowed: Tensor | None = None


class Sampling(NamedTuple):
    """How to draw instead of taking the best. seed: (R,) int64"""

    temperature: float
    top_p: float
    seed: Tensor


class Story(NamedTuple):
    """Why each slot holds what it holds: price, value gained before it (R, K, C); plain winner, its lead (R, K)."""

    price: Tensor
    gained: Tensor
    plain: Tensor
    cost: Tensor


class Steps(NamedTuple):
    """What happened in each slot. items, relevance: (R, K)"""

    items: Tensor
    relevance: Tensor
    story: Story | None


def run(
    problem: Problem,
    state: State,
    look: Callable[[State], View],
    move: Callable[[Tensor, Tensor], None],
    sampling=None,
    trace=False,
    only=None,
):
    """The final state and the steps that led to it. look: what a slot sees. move: tells the model what was chosen.

    only: (R, N) bool, columns that may be chosen at all; others count as open still in the story of the slots
    """
    steps = []
    for slot in range(problem.width):
        view = look(state)
        price = primal_dual.net_price(problem, state)
        scores = primal_dual.score(problem, state, view.relevance, view.value, price, slot)
        if view.allowed is None:
            scores = primal_dual.bar(problem, state, view.value, view.open, scores)
        else:
            scores = scores.masked_fill(~view.allowed, -torch.inf)
        if only is not None:
            scores = scores.masked_fill(~only, -torch.inf)
        drawn = scores if sampling is None else _perturb(problem, scores, view, slot, sampling)
        place = _lowest_of_best(drawn, view.items)
        taken = scores.gather(1, place) > -torch.inf
        items = (place if view.items is None else view.items.gather(1, place)).where(taken, -1)[:, 0]
        relevance = view.relevance.gather(1, place).where(taken, torch.nan)
        value = view.value.expand(-1, len(items), -1).gather(2, place.expand(len(view.value), -1, -1))[:, :, 0].T
        step = [items[:, None], relevance]
        if trace:
            at_zero = view.relevance.masked_fill(~view.open, -torch.inf)
            best = _lowest_of_best(at_zero, view.items)
            plain = (best if view.items is None else view.items.gather(1, best)).where(taken, -1)
            step += [price[:, None], state.gained[:, None], plain, at_zero.gather(1, best) - relevance]
        steps.append(step)
        state = primal_dual.advance(problem, state, items, value)
        if slot + 1 < problem.width:
            move(items, place)
    columns = [torch.cat(x, 1) for x in zip(*steps, strict=True)]
    return state, Steps(columns[0], columns[1], Story(*columns[2:]) if trace else None)


def _lowest_of_best(scores: Tensor, items: Tensor | None) -> Tensor:
    """(R, 1) column of the best score; of equal ones, that of the lowest item number."""
    if items is None:
        return scores.argmax(1, keepdim=True)  # the first, which is the lowest
    tied = scores == scores.amax(1, keepdim=True)
    return items.masked_fill(~tied, torch.iinfo(torch.int64).max).argmin(1, keepdim=True)


# ---- drawing ----------------------------------------------------------------------------------------------


def _perturb(problem, scores, view, slot, sampling):
    """Scores whose argmax is a draw: log weights over temperature, outside top-p removed, Gumbel noise added."""
    weight = log_weight(problem.scale, scores) / sampling.temperature
    # Items the guard allows but whose weight is 0 stay behind everything else instead of disappearing.
    weight = weight.clamp_min(-1e30).masked_fill(scores == -torch.inf, -torch.inf)
    if sampling.top_p < 1:
        order = weight.sort(dim=1, descending=True, stable=True)
        share = order.values.softmax(1)
        outside = share.cumsum(1) - share >= sampling.top_p
        outside[:, 0] = False
        weight = weight.masked_fill(torch.zeros_like(outside).scatter(1, order.indices, outside), -torch.inf)
    items = torch.arange(scores.shape[1], device=scores.device)[None] if view.items is None else view.items
    return weight + gumbel(sampling.seed, slot, items)


def gumbel(seed: Tensor, slot: int, items: Tensor) -> Tensor:
    """(R, N) Gumbel noise, a pure function of each row's seed, the slot and the item number."""
    key = _mix(_mix(_mix(seed)[:, None] + slot) + items)
    uniform = ((key >> 12) & ((1 << 52) - 1)).double().add(0.5) / (1 << 52)
    return -(-uniform.log()).log()


def _mix(x: Tensor) -> Tensor:
    """splitmix64 on int64 tensors: multiplication wraps, and right shifts are masked to be logical."""
    x = x + -0x61C8864680B583EB
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * -0x40A7B892E31B1A47
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * -0x6B2FB644ECCEEE15
    return x ^ ((x >> 31) & ((1 << 33) - 1))
