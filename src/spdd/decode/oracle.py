"""The truth for small problems, to test decoders and bounds against.

For scores that do not move: the exact best slate by integer programming. For tiny autoregressive models: every
ordered slate there is. Nothing here is fast or meant for serving; scipy is imported only where it is used.
"""

from typing import NamedTuple

import numpy as np
import torch

from ..objective import TOLERANCE


class Optimum(NamedTuple):
    """The best slate of one row. Where no slate meets every floor and cap: no items, relevance -inf, not feasible."""

    items: torch.Tensor  # (K,) int64; static: most relevant first, autoregressive: in slot order
    relevance: float
    gained: torch.Tensor  # (C,) float64, value collected per objective
    feasible: bool


class Enumeration(NamedTuple):
    """Every ordered slate of one row."""

    items: torch.Tensor  # (S, K) int64
    relevance: torch.Tensor  # (S, K), of the chosen item at its slot, after `relevance=` was applied


def static_optimum(
    relevance, value, *, slots, floor=None, cap=None, eligible=None, nodes=None, seconds=None
) -> Optimum:
    """The most relevant set of `slots` distinct items that keeps every floor and cap, for scores that do not move.

        max sum_j p_j a_j    s.t.  sum_j a_j = K,   floor <= sum_j b_j a_j <= cap,   a in {0, 1}

    Solved exactly (HiGHS, no gap); totals are added up again in float64 from the items.

    relevance: (M,).  value: (M,) or (M, C).  floor, cap: number or (C,), -inf / +inf / None where there is none.
    eligible: (M,) bool.  With fewer eligible items than slots the slate holds all of them.
    nodes, seconds: stop after so many (of the search tree), with the best slate found so far, or a TimeoutError
        where there is none; what a number of nodes finds does not depend on the machine or what else it does

    >>> best = static_optimum([0.9, 0.8, 0.3, 0.1], [0, 0, 1, 1], slots=2, floor=1)
    >>> best.items.tolist(), round(best.relevance, 6), best.gained.tolist()
    ([0, 2], 1.2, [1.0])
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    value, eligible = _arrays(value, eligible)
    relevance = np.asarray(relevance, dtype=np.float64)
    floor, cap = _targets(floor, -np.inf, value.shape[1]), _targets(cap, np.inf, value.shape[1])
    count = min(slots, int(eligible.sum()))
    # HiGHS stops within 1e-6 of the optimum whatever the relative gap: relevance is stretched so that this is nothing.
    stretch = 1e4 / max(np.abs(relevance[eligible]).max(initial=0.0), 1e-300)
    rows, low, high, allowed = _constraints(value, floor, cap, eligible)
    limits = {"node_limit": nodes, "time_limit": seconds}
    answer = milp(
        -np.where(eligible, relevance, 0.0) * stretch,
        integrality=np.ones(len(relevance)),
        bounds=Bounds(0, allowed.astype(float)),
        constraints=LinearConstraint(
            np.vstack([np.ones(len(relevance)), *rows]), np.append(count, low), np.append(count, high)
        ),
        options={"mip_rel_gap": 0.0} | {name: limit for name, limit in limits.items() if limit is not None},
    )
    if answer.status == 2:
        return _nothing(value.shape[1])
    # scipy has no status of its own for the end of the nodes, only HiGHS's words.
    if answer.x is None and (answer.status == 1 or "limit reached" in answer.message):
        raise TimeoutError(f"the integer program was not settled within {limits}")
    if answer.x is None:
        raise RuntimeError(f"the integer program was not solved: {answer.message}")
    items = np.flatnonzero(answer.x > 0.5)
    items = items[np.argsort(-relevance[items], kind="stable")]
    return _optimum(items, relevance[items], value)


def reachable(value, *, slots, floor=None, cap=None, eligible=None, nodes=None, seconds=None) -> torch.Tensor:
    """What each objective could get from a full slate if it were alone: (C,). Exact.

    A floor (or nothing) asked: the most a slate can collect. A cap only: the least. Both: the largest sum that
    keeps the cap, or the least there is if none does. A floor above it, or a cap below it, is impossible.

    value: (M,) or (M, C).  floor, cap: number or (C,).  eligible: (M,) bool.
    nodes, seconds: as for `static_optimum`; then a sum under a cap is the largest found

    >>> reachable([[1, 1], [1, 1], [0, 3]], slots=2, floor=[1, -torch.inf], cap=[torch.inf, 3]).tolist()
    [2.0, 2.0]
    """
    value, eligible = _arrays(value, eligible)
    floor, cap = _targets(floor, -np.inf, value.shape[1]), _targets(cap, np.inf, value.shape[1])
    ordered = np.sort(value[eligible], axis=0)
    count = min(slots, len(ordered))
    least, most = ordered[:count].sum(0), ordered[len(ordered) - count :].sum(0)
    answer = np.where(np.isneginf(floor) & np.isfinite(cap), least, most)
    for c in np.flatnonzero(np.isfinite(floor) & (most > cap)):
        one = value[:, c]
        below = static_optimum(one, one, slots=slots, cap=cap[c], eligible=eligible, nodes=nodes, seconds=seconds)
        answer[c] = below.relevance if below.feasible else least[c]
    return torch.from_numpy(answer)


def enumerate_slates(model, history, *, slots, exclude=(), relevance=None) -> Enumeration:
    """Every ordered slate of distinct items, with the relevance each item had at its slot.

    Walks the tree of prefixes level by level, one model call per level: 12 items and 4 slots are 11,880 slates.

    model: `start(histories) -> state`, `logits(state) -> (R, M)`, `advance(state, items) -> state`.
    history: what `start` takes, with one row in it.  exclude: items never shown.
    relevance: logits (R, M) -> relevance (R, M), how a step's logits count; as they are if left out.

    >>> class Still:  # scores that never move
    ...     def start(self, histories): return torch.zeros(len(histories), 1)
    ...     def logits(self, state): return torch.tensor([0.3, 0.2, 0.1]).expand(len(state), 3)
    ...     def advance(self, state, items): return state
    >>> enumerate_slates(Still(), torch.zeros(1), slots=2).items.tolist()
    [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]]
    """
    state = model.start(history)
    logits = model.logits(state)
    if len(logits) != 1:
        raise ValueError(f"`history` holds {len(logits)} rows, slates are enumerated for one: pass one row.")
    free = torch.ones_like(logits, dtype=torch.bool)  # (S, M), items this prefix may still take
    free[:, list(exclude)] = False
    if not 1 <= slots <= int(free.sum()):
        raise ValueError(f"`slots` is {slots} but {int(free.sum())} items can be shown: ask for 1 to that many.")
    items = torch.empty(1, 0, dtype=torch.long, device=logits.device)  # (S, k)
    chosen = logits.new_empty(1, 0)  # (S, k)
    for slot in range(slots):
        scores = logits if relevance is None else relevance(logits)
        rows, item = free.nonzero(as_tuple=True)
        items = torch.cat([items[rows], item[:, None]], 1)
        chosen = torch.cat([chosen[rows], scores[rows, item, None]], 1)
        if slot + 1 < slots:
            free = free[rows].scatter(1, item[:, None], False)
            state = model.advance(take_rows(state, rows), item)
            logits = model.logits(state)
    return Enumeration(items, chosen)


def autoregressive_optimum(enumeration: Enumeration, value, floor=None, cap=None) -> Optimum:
    """The most relevant ordered slate that keeps every floor and cap.

    value: (M,) or (M, C).  floor, cap: number or (C,).  Sums may miss a target by 1e-9 of it: they are rounded numbers.
    """
    value, _ = _arrays(value, None)
    gained = torch.from_numpy(value)[enumeration.items.cpu()].sum(1)  # (S, C)
    floor, cap = (torch.from_numpy(_targets(t, none, value.shape[1])) for t, none in ((floor, -np.inf), (cap, np.inf)))
    total = enumeration.relevance.double().cpu().sum(1)
    low, high = (t - 1e-9 * t.abs().nan_to_num(posinf=0.0) * side for t, side in ((floor, 1), (cap, -1)))
    total[((gained < low) | (gained > high)).any(1)] = -torch.inf
    best = int(total.argmax())
    if total[best] == -torch.inf:
        return _nothing(value.shape[1])
    return Optimum(enumeration.items[best].cpu(), float(total[best]), gained[best], True)


def take_rows(state, rows):
    """The same state with its rows picked: every tensor in it is indexed on its first axis.

    state: a tensor, or tuples and NamedTuples of them, nested as deep as you like; anything else is kept as it is.

    >>> take_rows((torch.arange(3), (torch.tensor([[1], [2], [3]]), "as is")), torch.tensor([2, 0]))
    (tensor([2, 0]), (tensor([[3],
            [1]]), 'as is'))
    """
    if isinstance(state, torch.Tensor):
        return state[rows] if state.ndim else state
    if isinstance(state, tuple):
        parts = [take_rows(part, rows) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    return state


def _constraints(value, floor, cap, eligible):
    """A row for each floor and cap, in units of its own target: the solver lets every row be missed by 1e-6.

    An item worth more than the whole floor counts as the floor, and one worth more than the cap may not be chosen:
    neither changes what is feasible, and no number is far above 1.
    """
    rows, low, high, allowed = [], [], [], eligible
    for worth, least, most in zip(value.T, floor, cap, strict=True):
        if most < np.inf:
            allowed = allowed & (worth <= most * (1 + TOLERANCE))
            if most > 0:
                rows.append(np.where(allowed, worth, 0.0) / most)
                low.append(-np.inf)
                high.append(1.0)
        if least > 0:
            rows.append(np.minimum(worth, least) / least)
            low.append(1.0)
            high.append(np.inf)
    return rows, low, high, allowed


def _optimum(items, relevance, value) -> Optimum:
    return Optimum(torch.from_numpy(items), float(relevance.sum()), torch.from_numpy(value[items].sum(0)), True)


def _nothing(objectives) -> Optimum:
    return Optimum(torch.empty(0, dtype=torch.long), -float("inf"), torch.zeros(objectives, dtype=torch.float64), False)


def _arrays(value, eligible):
    """float64 value (M, C), bool eligible (M,)."""
    value = np.asarray(value, dtype=np.float64)
    value = value[:, None] if value.ndim == 1 else value
    eligible = np.ones(len(value), bool) if eligible is None else np.asarray(eligible, dtype=bool)
    return value, eligible


def _targets(target, absent, objectives):
    return np.broadcast_to(np.asarray(absent if target is None else target, dtype=np.float64), (objectives,)).copy()
