"""The algorithm: stochastic primal-dual decoding as five pure functions over a NamedTuple of tensors.

    start    the prices before the first slot
    price    logits in, priced scores out; -inf marks what may not be chosen
    advance  after the choice, whoever made it
    take     re-order rows (beams)
    replay   rebuild the state from the items chosen so far, for hosts that re-order silently

A *promise* is one floor or one cap of one objective; each has its own price. With the paper's settings
(one floor, scale "probability", start 1, rate 1, no guard) this is its Algorithm 1 to the bit. Everything
is batched over rows; nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..relevance import normaliser, relevance
from . import guard as guards
from .guard import Guard

# What a price may count in a score: times a value it must stay finite, or the worthless items' scores would be nan.
HUGE = 1e150
# Prices themselves end here, and so do their exponents: 0 * exp(710) would be nan.
LARGEST, STEEPEST = 1e307, 709.0


class Promises(NamedTuple):
    """P floors and caps. column: the objective of each. sign: +1 floor, -1 cap. share: (R, P) target / slots."""

    column: tuple[int, ...]
    sign: Tensor  # (P,)
    onto: Tensor  # (P, C) 1 where promise p is about objective c
    share: Tensor  # (R, P)
    rate: Tensor  # (R, P)
    ceiling: Tensor  # (R, P) a price never exceeds this


class Problem(NamedTuple):
    """Everything about R rows that does not change while their slates are built.

    value:    (C, 1 or R, M) float64; the columns of `moving` hold zeros
    moving:   (column, function) of objectives whose value depends on the slate: function(chosen (R, K)) -> (R, M),
              with -1 in `chosen` for slots still empty
    eligible: (R, M) bool, or None where every item may be chosen
    floor, cap: (R, C) value units per slate; -inf / inf where there is none
    guarded:  whether targets are promised; `guard` holds the witness for objectives with fixed values
    combine:  (relevance (R, N), value (C, 1 or R, N), price (R, C)) -> scores (R, N)
    pace:     "even" compares each choice with target / slots, "remaining" with what is missing / slots left
    room:     (R,) slots each row has items for; a slate with fewer is not whole, whatever it gained
    width:    slots any row can have items for; those beyond are not looked at
    bonus:    (chosen (R, K), filled) -> (R, M) added to the scores of all items: what a rival likes about a slate; or
              None. filled: slots filled in every row that had an item, where the caller fills them one by one, else None
    """

    slots: int
    scale: str
    value: Tensor
    moving: tuple[tuple[int, Callable[[Tensor], Tensor]], ...]
    eligible: Tensor | None
    floor: Tensor
    cap: Tensor
    promises: Promises
    guarded: bool
    guard: Guard | None
    combine: Callable[[Tensor, Tensor, Tensor], Tensor]
    room: Tensor
    width: int
    pace: str = "even"
    bonus: Callable[[Tensor, int | None], Tensor] | None = None


class State(NamedTuple):
    """Where every row stands.

    chosen: (R, width) items so far, -1 where none yet.  count: (R,) slots filled.  gained: (R, C)
    initial: (R, P) the prices at the start.  excess: (R, P) sum over slots of (value - due)
    alive:  (R, W) items of the guard's witness not taken yet
    """

    chosen: Tensor
    count: Tensor
    gained: Tensor
    initial: Tensor
    excess: Tensor
    alive: Tensor


def start(problem: Problem, initial: Tensor) -> State:
    """The state before the first slot. initial: (R, P) prices."""
    rows, objectives = problem.floor.shape
    device = initial.device
    return State(
        torch.full((rows, problem.width), -1, device=device),
        torch.zeros(rows, dtype=torch.int64, device=device),
        torch.zeros(rows, objectives, dtype=torch.float64, device=device),
        initial.double(),
        torch.zeros_like(initial, dtype=torch.float64),
        problem.guard.items >= 0 if problem.guard else torch.zeros(rows, 0, dtype=torch.bool, device=device),
    )


def price(problem: Problem, state: State, logits: Tensor) -> Tensor:
    """(R, M) priced scores of every item, -inf where an item may not be chosen. logits: (R, M)"""
    norm = normaliser(problem.scale, logits, problem.eligible)
    value = value_now(problem, state)
    scores = score(problem, state, relevance(problem.scale, logits, norm), value, net_price(problem, state))
    return bar(problem, state, value, open_items(problem, state), scores)


def advance(problem: Problem, state: State, items: Tensor, value: Tensor | None = None) -> State:
    """The state after each row took its item: λ ← λ·exp(-η(b - R/K)) for floors, the reverse for caps.

    items: (R,); -1 leaves a row as it was.  value: (R, C) what the items give, where the caller knows it
    """
    took = (items >= 0)[:, None]
    if value is None:
        place = items.clamp_min(0)[None, :, None].expand(problem.value.shape[0], -1, 1)
        now = value_now(problem, state)
        value = now.expand(-1, len(items), -1).gather(2, place)[:, :, 0].T  # (R, C)
    value = value * took
    promises = problem.promises
    due = promises.share
    per_promise = value @ promises.onto.T
    if problem.pace == "remaining":
        missing = due * problem.slots - state.gained @ promises.onto.T
        due = missing / (problem.slots - state.count).clamp_min(1)[:, None]
    alive = state.alive
    if problem.guard:
        guarded = problem.guard.columns
        alive = guards.advance(problem.guard, alive, state.gained[:, guarded], items, value[:, guarded])
    slot = state.count.clamp_max(problem.width - 1)[:, None]
    return State(
        state.chosen.scatter(1, slot, torch.where(took, items[:, None], state.chosen.gather(1, slot))),
        state.count + took[:, 0],
        state.gained + value,
        state.initial,
        state.excess + (per_promise - due) * took,
        alive,
    )


def take(state: State, rows: Tensor) -> State:
    """The state with its rows re-ordered or repeated. The problem's rows must belong to the same requests."""
    return State(*(x[rows] for x in state))


def replay(problem: Problem, state: State, items: Tensor) -> State:
    """The state after `items` (R, k) were taken one by one from `state`; -1 entries are skipped."""
    for column in items.unbind(1):
        state = advance(problem, state, column)
    return state


def dual(problem: Problem, state: State) -> Tensor:
    """(R, P) today's prices: initial * exp(-sign * rate * excess). `excess` is the shortfall with its sign turned."""
    promises = problem.promises
    moved = state.initial * _exp((-promises.rate * state.excess * promises.sign).clamp_max(STEEPEST))
    return torch.minimum(moved, promises.ceiling).clamp_max(LARGEST)


def net_price(problem: Problem, state: State) -> Tensor:
    """(R, C) what one unit of each objective adds to a score: the floor's price less the cap's."""
    return (dual(problem, state).clamp_max(HUGE) * problem.promises.sign) @ problem.promises.onto


# ---- parts of `price` that search uses on a few columns ---------------------------------------------------


def score(
    problem: Problem, state: State, relevance: Tensor, value: Tensor, price: Tensor, filled: int | None = None
) -> Tensor:
    """(R, N) priced scores, before anything is barred. A bonus needs the columns to be all items, see `Problem.bonus`."""
    scores = problem.combine(relevance, value, price)
    return scores if problem.bonus is None else scores + problem.bonus(state.chosen, filled)


def value_now(problem: Problem, state: State) -> Tensor:
    """(C, 1 or R, M) what each item gives now."""
    if not problem.moving:
        return problem.value
    value = problem.value.expand(-1, len(state.chosen), -1).clone()
    for column, function in problem.moving:
        value[column] = function(state.chosen)
    return value


def open_items(problem: Problem, state: State) -> Tensor:
    """(R, M) bool: eligible and not on the slate yet."""
    rows, items = len(state.chosen), problem.value.shape[2]
    # One column more than there are items, for the -1 of slots still empty.
    used = torch.zeros(rows, items + 1, dtype=torch.bool, device=state.chosen.device)
    used = used.scatter(1, state.chosen.remainder(items + 1), True)[:, :items]
    return ~used if problem.eligible is None else ~used & problem.eligible


def bar(problem: Problem, state: State, value: Tensor, open_: Tensor, scores: Tensor) -> Tensor:
    """The scores with -inf where an item is not open or would break what the guard promises."""
    if problem.guarded:
        open_ = _allowed(problem, state, value, open_)
    return scores.masked_fill(~open_, -torch.inf)


def _allowed(problem, state, value, open_):
    """(R, N) the items every promise allows; where there are none, promises are let go, the least proven first."""
    allowed = open_
    if problem.guard:
        guarded = problem.guard.columns
        kept = guards.admissible(problem.guard, state.alive, state.gained[:, guarded], value[guarded])
        allowed = _prefer(allowed & kept, allowed)
    for column, _ in problem.moving:
        room = problem.cap[:, column] - state.gained[:, column]
        kept = value[column] <= (room + guards.slack_of(problem.cap[:, column]))[:, None]
        allowed = _prefer(allowed & kept, allowed)
    for column, _ in problem.moving:
        allowed = _prefer(allowed & _hopeful(problem, state, value[column], column, open_), allowed)
    return allowed


def _hopeful(problem, state, value, column, open_):
    """(R, N) items after which the floor of a slate-dependent objective is not out of reach yet.

    Judged by today's values of the best items left. Values of sets only shrink as a slate fills, so this
    lets through some items that lose the floor: a filter, not a promise.
    """
    best = value.masked_fill(~open_, 0).topk(min(problem.slots, value.shape[1]), 1).values.cumsum(1)
    best = torch.cat([torch.zeros_like(best[:, :1]), best], 1)  # (R, n) most that n items give
    left = (problem.slots - state.count - 1).clamp(0, best.shape[1] - 1)
    floor = problem.floor[:, column]
    missing = floor - guards.slack_of(floor) - state.gained[:, column] - best.gather(1, left[:, None])[:, 0]
    return value >= missing[:, None]


def _prefer(narrow: Tensor, wide: Tensor) -> Tensor:
    """`narrow`, but `wide` in rows where nothing is left: a slate is filled before a target is kept."""
    return torch.where(narrow.any(1, keepdim=True), narrow, wide)


def linear(relevance: Tensor, value: Tensor, price: Tensor) -> Tensor:
    """relevance + price · value, the paper's score."""
    for c, worth in enumerate(value):
        relevance = relevance + price[:, c : c + 1] * worth
    return relevance


def _exp(x: Tensor) -> Tensor:
    """exp that equals C's, and so Python's, to the last bit on the CPU; the vectorised one is off by one now and then."""
    if x.device.type != "cpu":
        return x.exp()
    return torch.complex(x, torch.zeros_like(x)).exp().real
