"""The guard: a row that can keep its targets never ends without keeping them.

It carries a *witness*, items that would complete the slate with every target kept. An item may be chosen
if swapping it for some item of the witness still keeps every target; an item of the witness always may.
So once a witness is found at the start, no choice the guard allows can lose the promise. For one floor
or one cap the swap test is exact (it allows everything that keeps the promise), and so it is for 0/1
values in disjoint groups; for other combinations it is safe, and may refuse more than it must.

Finding the witness: by sorting for one floor or cap, else by local search, and where that fails by the
exact solver. Targets no slate can keep are relaxed to what can be reached, so that an impossible row still
gets as close as it can.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..objective import TOLERANCE

# Local search looks at whole candidate lists up to this length; of longer ones at the extremes of every objective.
WIDE = 512

# Branches the exact solver may try for one row that local search could not settle: about a second. A sum of real values in
# a narrow window is a knapsack: most take milliseconds, some would take hours. Counted in branches, so that a row's status
# does not depend on the machine, or on who else is in its batch; seconds are there for what no count foresees.
NODES = 5000
PATIENCE = 60.0


class Guard(NamedTuple):
    """What the guard promises and the slate that proves it possible. W witness items, C' guarded objectives.

    columns:  which objectives are guarded: a slice, or a tensor of their numbers where they are not consecutive
    kind:     "floor" or "cap" where that is all there is, for which the swap test is one comparison; else "several"
    floor, cap: (R, C') targets it keeps, relaxed to what can be reached; -inf / inf where there is none
    low, high: (R, C') the same with room for rounding
    items:    (R, W) the witness, -1 where a row has fewer items than slots
    value:    (C', R, W) what each witness item gives
    """

    columns: slice | Tensor
    kind: str
    floor: Tensor
    cap: Tensor
    low: Tensor
    high: Tensor
    items: Tensor
    value: Tensor


class Reach(NamedTuple):
    """What the rows can reach at all.

    feasible: (R,) some slate keeps every guarded target; also where that could not be settled in time
    reachable: (R, C') see `Slate.reachable`
    """

    feasible: Tensor
    reachable: Tensor


def find_witness(
    value: Tensor, items: Tensor, eligible: Tensor, floor: Tensor, cap: Tensor, slots: int, columns
) -> tuple[Guard, Reach]:
    """A guard for every row, and what its row can reach.

    value: (C', R, N).  items: (R, N) item numbers.  eligible: (R, N).  floor, cap: (R, C'), -inf / inf for none
    """
    size = min(slots, value.shape[2])
    kind = _kind(floor, cap)
    if kind == "several":
        place, reachable, unsettled = _search(value, eligible, floor, cap, size)
        total = _collected(value, eligible, place)
    else:
        place = _extreme(value[0], eligible, size, 1.0 if kind == "floor" else -1.0)
        reachable = total = _collected(value, eligible, place)
        unsettled = torch.zeros_like(total[:, 0], dtype=torch.bool)
    feasible = ((total >= floor - slack_of(floor)) & (total <= cap + slack_of(cap))).all(1)
    filled = eligible.gather(1, place)
    floor, cap = torch.minimum(floor, total), torch.maximum(cap, total)
    guard = Guard(
        _run(columns, value.device),
        kind,
        floor,
        cap,
        floor - slack_of(floor),
        cap + slack_of(cap),
        items.gather(1, place).masked_fill(~filled, -1),
        _take(value, place) * filled,
    )
    return guard, Reach(feasible | unsettled, reachable)


def admissible(guard: Guard, alive: Tensor, gained: Tensor, value: Tensor) -> Tensor:
    """(R, N) whether taking each item keeps the promise.

    alive: (R, W) witness items not taken yet.  gained: (R, C') so far.  value: (C', 1 or R, N)
    """
    total = gained + (guard.value * alive).sum(2).T  # (R, C') if the witness were served
    low, high = guard.low, guard.high
    if guard.kind == "floor":  # swap for the witness item that gives least
        least = guard.value[0].masked_fill(~alive, torch.inf).amin(1, keepdim=True)
        return value[0] >= low - total + least
    if guard.kind == "cap":  # swap for the one that gives most
        most = guard.value[0].masked_fill(~alive, -torch.inf).amax(1, keepdim=True)
        return value[0] <= high - total + most
    allowed = torch.zeros(alive.shape[0], value.shape[2], dtype=torch.bool, device=value.device)
    for w in range(alive.shape[1]):
        fits = alive[:, w, None]
        for c in range(len(guard.value)):
            without = total[:, c] - guard.value[c, :, w]
            fits = fits & (value[c] >= (low[:, c] - without)[:, None]) & (value[c] <= (high[:, c] - without)[:, None])
        allowed |= fits
    return allowed


def advance(guard: Guard, alive: Tensor, gained: Tensor, items: Tensor, value: Tensor) -> Tensor:
    """(R, W) witness items left after `items` (R,) with `value` (R, C') were taken. gained: (R, C') before."""
    if guard.kind == "floor":
        keep = guard.value[0]  # the item that gives least makes room
    elif guard.kind == "cap":
        keep = -guard.value[0]
    else:  # the one whose leaving keeps furthest from every target
        total = gained + (guard.value * alive).sum(2).T + value
        left = total[:, :, None] - guard.value.transpose(0, 1)  # (R, C', W)
        floor, cap = guard.floor[:, :, None], guard.cap[:, :, None]
        size = 1 + torch.where(torch.isfinite(floor), floor, cap).abs()
        keep = -torch.minimum((left - floor) / size, (cap - left) / size).amin(1)
        # Rather one just like the item: what is left then gives the same, whichever of the two the witness named.
        keep = keep.masked_fill((guard.value == value.T[:, :, None]).all(0), -torch.inf)
    taken = guard.items == items[:, None]  # an item of the witness leaves itself
    place = keep.masked_fill(taken, -torch.inf).masked_fill(~alive, torch.inf).argmin(1, keepdim=True)
    return alive.scatter(1, place, alive.gather(1, place) & (items < 0)[:, None])


def slack_of(target: Tensor) -> Tensor:
    """How much a target may be missed by rounding, whatever the unit of its values; 0 for a target that is not there."""
    return TOLERANCE * target.abs().nan_to_num(posinf=0.0)


# ---- finding the witness --------------------------------------------------------------------------------


def _run(columns: list[int], device) -> slice | Tensor:
    """The columns as a slice where they are consecutive: taking them is then free. A list would be sent over in every slot."""
    first, last = columns[0], columns[-1] + 1
    return slice(first, last) if list(columns) == list(range(first, last)) else torch.tensor(columns, device=device)


def _kind(floor: Tensor, cap: Tensor) -> str:
    if floor.shape[1] > 1:
        return "several"
    if bool(torch.isinf(cap).all()):
        return "floor"
    return "cap" if bool(torch.isinf(floor).all()) else "several"


def _extreme(value: Tensor, eligible: Tensor, size: int, sign: float) -> Tensor:
    """(R, size) places of the items with the largest (sign 1) or smallest (sign -1) values."""
    return (sign * value).masked_fill(~eligible, -torch.inf).topk(size, 1).indices


def _take(value: Tensor, place: Tensor) -> Tensor:
    """value: (C, R, N) or (C, 1, N); place: (R, W) -> (C, R, W)"""
    return value.expand(-1, place.shape[0], -1).gather(2, place.expand(value.shape[0], -1, -1))


def _collected(value: Tensor, eligible: Tensor, place: Tensor) -> Tensor:
    """(R, C) value of the items at `place`."""
    return (_take(value, place) * eligible.gather(1, place)).sum(2).T


def _search(value, eligible, floor, cap, size):
    """Places of a witness for several targets at once, and what can be reached of each objective alone."""
    # In units of the largest values, so that no objective weighs more for the unit it is in; powers of two round nothing.
    unit = near_power(value.masked_fill(~eligible, 0).amax(2))  # (C, R)
    value, floor, cap = value / unit[:, :, None], floor / unit.T, cap / unit.T
    highs = [_collected(v[None], eligible, _extreme(v, eligible, size, 1.0))[:, 0] for v in value]
    lows = [_collected(v[None], eligible, _extreme(v, eligible, size, -1.0))[:, 0] for v in value]
    high, low = torch.stack(highs, 1), torch.stack(lows, 1)  # (R, C)
    # Targets beyond reach are relaxed first, so that the others are still kept where they can be.
    floor, cap = torch.minimum(floor, high), torch.maximum(cap, low)
    pool = _by_value(value, _pool(value, eligible, size))
    near, near_ok = _take(value, pool), eligible.gather(1, pool) & _first_of_each(pool)
    place = pool.gather(1, _local_search(near, near_ok, floor, cap, size))
    reachable = torch.where(torch.isinf(floor), low, high)
    window = torch.isfinite(floor) & torch.isfinite(cap)
    # The largest sum under a cap is a knapsack: known at once for 0/1 values, found for rows that turn out impossible.
    binary = ((value == 0) | (value == 1)).all(2).all(1)
    under_cap = torch.where(binary, (cap + slack_of(cap)).floor(), torch.nan)
    under_cap = torch.where(cap <= low, low, torch.where(cap >= high, high, under_cap))
    reachable = torch.where(window, under_cap, reachable)
    miss = _violation(_collected(value, eligible, place), floor, cap) > 0
    unsettled = torch.zeros_like(miss)
    solved = {}  # rows that share items and targets are one problem
    for row in miss.nonzero()[:, 0].tolist():  # the few rows local search could not settle
        problem = (value[:, row], eligible[row], floor[row], cap[row])
        key = b"".join(x.cpu().numpy().tobytes() for x in problem)
        if key not in solved:
            solved[key] = _exact(*problem, size)
        exact, reach, sure = solved[key]
        unsettled[row] = not sure
        if exact is not None:
            place[row] = exact
        if reach is not None:
            reachable[row] = torch.where(window[row], reach, reachable[row])
    return place, reachable * unit.T, unsettled


def near_power(largest: Tensor) -> Tensor:
    """The powers of two next above these numbers; 1 for 0."""
    return torch.where(largest > 0, largest, 1.0).log2().ceil().exp2()


def _pool(value, eligible, size):
    """(R, P) places worth looking at: all of a short list; of a long one the extremes and a spread of each objective."""
    rows, count = eligible.shape
    if count <= WIDE:
        return torch.arange(count, device=value.device).expand(rows, -1)
    keys = [*value, value.sum(0)]
    places = []
    for key in keys:
        order = key.expand(rows, -1).masked_fill(~eligible, torch.inf).argsort(dim=1, stable=True)
        live = eligible.sum(1, keepdim=True).clamp_min(1)
        spread = torch.linspace(0, 1, 4 * size, device=value.device) * (live - 1)
        ends = torch.arange(size, device=value.device)
        places += [order.gather(1, spread.long()), order[:, :size], order.gather(1, (live - 1 - ends).clamp_min(0))]
    return torch.cat(places, 1).sort(1).values


def _by_value(value, pool):
    """The places shuffled by their values, so that what the search finds depends on values, not on who has them.

    Shuffled, not sorted: the search takes the first of equally good items, and should not meet the smallest first.
    """
    near = _take(value, pool)
    weight = 12.9898 * torch.arange(1, len(near) + 1, dtype=near.dtype, device=near.device)  # any numbers that mix
    mixed = (near * weight[:, None, None]).sum(0).sin() * 43758.5453
    return pool.gather(1, mixed.frac().argsort(dim=1, stable=True))


def _first_of_each(pool):
    """False where a pool names a place again, which it then does next to it."""
    return torch.cat([torch.ones_like(pool[:, :1], dtype=torch.bool), pool[:, 1:] != pool[:, :-1]], 1)


def _violation(total, floor, cap):
    """(R,) by how much targets are missed, each measured in its own size. total: (..., C) -> (...)"""
    scale = 1 + torch.where(torch.isfinite(floor), floor, cap).abs()
    under = (floor - total - slack_of(floor)).clamp_min(0)
    over = (total - cap - slack_of(cap)).clamp_min(0)
    return ((under + over) / scale).sum(-1)


def _local_search(value, eligible, floor, cap, size):
    """(R, size) places of a slate that misses the targets little: greedy, then the best swap until none helps."""
    rows, count = eligible.shape
    flat = value.permute(1, 2, 0)  # (R, N, C)
    chosen = torch.zeros_like(eligible)
    total = torch.zeros(rows, len(value), dtype=value.dtype, device=value.device)
    place = torch.zeros(rows, size, dtype=torch.int64, device=value.device)
    for slot in range(size):
        # Floors are asked for in step with the slots filled; a cap counts whole from the start.
        due = torch.where(torch.isfinite(floor), floor, torch.zeros_like(floor)) * (slot + 1) / size
        due = torch.where(torch.isfinite(floor), due, floor)
        miss = _violation(total[:, None] + flat, due[:, None], cap[:, None])
        # An ineligible item is taken only where nothing else is left (it then counts as an empty slot).
        rank = miss + (~eligible).double() * 1e6 + chosen.double() * 1e9
        best = rank.argmin(1, keepdim=True)
        place[:, slot : slot + 1] = best
        chosen = chosen.scatter(1, best, True)
        total = total + _row(flat, best) * eligible.gather(1, best)
    open_ = torch.arange(rows, device=value.device)
    for _ in range(4 * size):
        open_ = open_[_violation(total[open_], floor[open_], cap[open_]) > 0]
        if not len(open_):
            break
        out = torch.gather(flat[open_], 1, place[open_][:, :, None].expand(-1, -1, flat.shape[2]))  # (r, size, C)
        swapped = total[open_][:, None, None] - out[:, :, None] + flat[open_][:, None]  # (r, size, N, C)
        miss = _violation(swapped, floor[open_][:, None, None], cap[open_][:, None, None])
        barred = (chosen | ~eligible)[open_][:, None] | ~eligible[open_].gather(1, place[open_])[:, :, None]
        best_miss, best = miss.masked_fill(barred, torch.inf).flatten(1).min(1)
        better = best_miss < _violation(total[open_], floor[open_], cap[open_]) - 1e-12
        open_, best = open_[better], best[better]
        if not len(open_):
            break
        slot, item = best // count, best % count
        old = place[open_, slot]
        chosen[open_, old], chosen[open_, item] = False, True
        total[open_] += flat[open_, item] - flat[open_, old]
        place[open_, slot] = item
    return place


def _row(flat, place):
    return flat.gather(1, place[:, :, None].expand(-1, -1, flat.shape[2]))[:, 0]


def _exact(value, eligible, floor, cap, size):
    """One row settled by the exact solver: places of a slate that keeps the targets, or else of one that comes as close
    as its caps allow, or None; what can be reached of each objective, where that was needed; whether it was settled."""
    from .oracle import reachable, static_optimum

    v, ok = value.T.cpu().numpy(), eligible.cpu().numpy()
    lo, hi = floor.cpu().numpy(), cap.cpu().numpy()
    nothing = v.sum(1) * 0
    reach, limits = None, {"nodes": NODES, "seconds": PATIENCE}
    try:
        found = static_optimum(nothing, v, slots=size, floor=lo, cap=hi, eligible=ok, **limits)
        if not found.feasible:  # a window no sum falls into, or targets that exclude each other
            reach = reachable(v, slots=size, floor=lo, cap=hi, eligible=ok, **limits).to(value.device)
            lo = torch.minimum(floor, reach).cpu().numpy()
            found = static_optimum(nothing, v, slots=size, floor=lo, cap=hi, eligible=ok, **limits)
    except TimeoutError:
        return None, reach, reach is not None
    if not found.feasible:
        return None, reach, True
    empty = (~eligible).nonzero()[:, 0]
    return torch.cat([torch.as_tensor(found.items, device=value.device), empty])[:size], reach, True
