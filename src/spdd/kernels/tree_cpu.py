"""Where rows of the tree stand, in numba: `settle` and `advance` of `tree.py`, which says what they mean, in place and row by row.

Numpy arrays in and out. `tree_scores_cpu.py` has the other half, what rows may write.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from .tree import CAP, FLOOR, FREE, FULL, HUGE, LOST, RUNNING, SEVERAL, Stand, Terms, Tree

# Tuples are unpacked once a call: handing on 46 arrays costs more than using them.


@numba.njit(cache=True, nogil=True)
def settle(tree: Tree, terms: Terms, stand: Stand):
    """`tree.settle` of all rows, in place."""
    exact, low, high, held, klass = tree.exact, tree.low, tree.high, tree.held[:, 0].copy(), tree.klass
    initial, rate, ceiling, excess, net = terms.initial, terms.rate, terms.ceiling, stand.excess, stand.net
    kind, slots, least, most = terms.kind, terms.slots, terms.least, terms.most
    gives, witness = terms.gives, terms.witness
    allowed, worth, gained, alive, shut = stand.allowed, stand.worth, stand.gained, stand.alive, stand.closed
    over, count = stand.over, stand.count
    room = np.empty(net.shape[1])
    for row in range(len(over)):
        _price(row, initial, rate, ceiling, excess, exact, low, net, worth)
        _admit(row, kind, low, high, gained, gives, least, most, alive, allowed, room)
        left = _let_go(row, held, klass, allowed, shut, witness, alive)
        if over[row] == RUNNING and (not left or count[row] >= slots[row]):
            over[row] = FULL


@numba.njit(cache=True, nogil=True)
def advance(tree: Tree, terms: Terms, stand: Stand, tokens):
    """`tree.advance` over tokens (R, T), one after the other, in place."""
    child, codes, code_of, between, depth = tree.child, tree.code, tree.code_of, tree.between, tree.depth
    first, stop, klass, value, held = tree.first, tree.stop, tree.klass, tree.value, tree.held[:, 0].copy()
    exact, low_, high_ = tree.exact, tree.low, tree.high
    initial, rate, ceiling, share, remaining = terms.initial, terms.rate, terms.ceiling, terms.share, terms.remaining
    kind, slots, least, most = terms.kind, terms.slots, terms.least, terms.most
    gives, witness = terms.gives, terms.witness
    floor, cap, column = terms.floor, terms.cap, terms.column
    nodes, places, overs, counts, chosen = stand.node, stand.place, stand.over, stand.count, stand.chosen
    allowed, worth, gained, alive, shut = stand.allowed, stand.worth, stand.gained, stand.alive, stand.closed
    excess, net = stand.excess, stand.net
    room = np.empty(net.shape[1])
    for row in range(tokens.shape[0]):
        for t in range(tokens.shape[1]):
            token, place = tokens[row, t], places[row]
            if token < 0 or overs[row] != RUNNING:
                continue
            if place >= depth:  # between two items
                if token != between[place - depth]:
                    overs[row] = LOST
                elif place + 1 == depth + len(between):
                    places[row], nodes[row] = 0, 0
                else:
                    places[row] = place + 1
                continue
            code = code_of[place, token] if token < code_of.shape[1] else -1
            begin, end = child[nodes[row]], child[nodes[row] + 1]
            # Codes ascend: one stands at most as far from the first child as it differs from its code.
            low, high = begin, min(end, begin + max(code - codes[begin], 0) + 1)
            while high - low > 1:
                middle = (low + high) // 2
                if codes[middle] <= code:
                    low = middle
                else:
                    high = middle
            if code < 0 or codes[low] != code:
                overs[row] = LOST
                continue
            nodes[row], places[row] = low, place + 1
            if place + 1 < depth:
                continue
            # An id is whole: the row takes the item it stands for.
            item = _item(row, first[low], stop[low], shut, klass, value, exact, net, worth, allowed, witness, alive)
            if item < 0:
                overs[row] = LOST
                continue
            left = slots[row] - counts[row]
            _leave(row, item, value, gained, kind, column, floor, cap, gives, witness, alive, room)
            _gain(row, item, value, share, remaining, slots, left, gained, excess)
            _insert(row, shut, item)
            chosen[row, counts[row]] = item
            counts[row] += 1
            _price(row, initial, rate, ceiling, excess, exact, low_, net, worth)
            _admit(row, kind, low_, high_, gained, gives, least, most, alive, allowed, room)
            if not _let_go(row, held, klass, allowed, shut, witness, alive) or left <= 1:
                overs[row] = FULL
            if overs[row] == FULL or len(between) == 0:
                places[row], nodes[row] = 0, 0


# ---- where an id is whole ---------------------------------------------------------------------------------------


@numba.njit(cache=True, nogil=True)
def _item(row, first, stop, shut, klass, value, exact, net, worth, allowed, witness, alive):
    """The best paid open item of an id, those the guard admits first; -1 where none is open."""
    best, best_paid, best_kept = -1, 0.0, False
    near = behind(shut, row, first)
    for item in range(first, stop):
        if near < shut.shape[1] and shut[row, near] == item:
            near += 1
            continue
        kept = allowed[row, klass[item]]
        for w in range(witness.shape[1]):
            kept = kept or (alive[row, w] and witness[row, w] == item)
        paid = 0.0
        if exact:
            paid = worth[row, klass[item]]
        else:
            for c in range(net.shape[1]):
                paid += value[item, c] * net[row, c]
        if best < 0 or (kept and not best_kept) or (kept == best_kept and paid > best_paid):
            best, best_paid, best_kept = item, paid, kept
    return best


@numba.njit(cache=True, nogil=True)
def _leave(row, item, value, gained, kind, column, floor, cap, gives, witness, alive, total):
    """The witness item that makes room leaves; see `decode.guard.advance`."""
    if kind[row] == FREE:
        return
    if kind[row] == SEVERAL:
        _sum(row, gained, gives, alive, total)
    out, least = -1, 0.0
    for w in range(alive.shape[1]):
        if not alive[row, w]:
            continue
        if witness[row, w] == item:
            out = w
            break
        if kind[row] == FLOOR:
            keep = gives[row, w, column[row]]
        elif kind[row] == CAP:
            keep = -gives[row, w, column[row]]
        else:
            same, room = True, np.inf
            for c in range(value.shape[1]):
                least_, most = floor[row, c], cap[row, c]
                if math.isinf(least_) and math.isinf(most):
                    continue
                same = same and gives[row, w, c] == value[item, c]
                size = 1 + abs(most if math.isinf(least_) else least_)
                left = total[c] + value[item, c] - gives[row, w, c]
                room = min(room, (left - least_) / size, (most - left) / size)
            keep = -np.inf if same else -room
        if out < 0 or keep < least:
            out, least = w, keep
    if out >= 0:
        alive[row, out] = False


@numba.njit(cache=True, nogil=True)
def _gain(row, item, value, share, remaining, slots, left, gained, excess):
    columns = value.shape[1]
    for p in range(2 * columns):
        due = share[row, p]
        if remaining[row]:
            due = (due * slots[row] - gained[row, p % columns]) / max(left, 1)
        excess[row, p] += value[item, p % columns] - due
    for c in range(columns):
        gained[row, c] += value[item, c]


@numba.njit(cache=True, nogil=True)
def _insert(row, shut, item):
    near = behind(shut, row, item)
    for e in range(shut.shape[1] - 1, near, -1):
        shut[row, e] = shut[row, e - 1]
    shut[row, near] = item


@numba.njit(cache=True, nogil=True)
def behind(shut, row, place):
    """Where the first closed item at or behind `place` stands."""
    low, high = 0, shut.shape[1]
    while low < high:
        middle = (low + high) // 2
        if shut[row, middle] < place:
            low = middle + 1
        else:
            high = middle
    return low


@numba.njit(cache=True, nogil=True)
def _price(row, initial, rate, ceiling, excess, exact, low, net, worth):
    """Today's price of each column, and of each class."""
    columns = net.shape[1]
    for c in range(columns):
        net[row, c] = 0.0
        for side in range(2):
            p = c + side * columns
            sign = 1.0 - 2.0 * side
            if initial[row, p] != 0.0:
                dual = initial[row, p] * math.exp(-rate[row, p] * excess[row, p] * sign)
                net[row, c] += min(dual, ceiling[row, p], HUGE) * sign
    for g in range(worth.shape[1] if exact else 0):
        paid = 0.0
        for c in range(columns):
            paid += low[g, c] * net[row, c]
        worth[row, g] = paid


@numba.njit(cache=True, nogil=True)
def _admit(row, kind, low, high, gained, gives, least, most, alive, allowed, total):
    """Classes of which any item may be swapped for one of the witness."""
    for g in range(allowed.shape[1]):
        allowed[row, g] = kind[row] == FREE
    if kind[row] == FREE:
        return
    _sum(row, gained, gives, alive, total)
    columns = gained.shape[1]
    for w in range(alive.shape[1]):
        if not alive[row, w] or (w > 0 and alive[row, w - 1] and _same(gives, row, w, w - 1)):
            continue  # witness items that give the same admit the same
        for g in range(allowed.shape[1]):
            fits = not allowed[row, g]
            for c in range(columns):
                without = total[c] - gives[row, w, c]
                fits = fits and low[g, c] >= least[row, c] - without and high[g, c] <= most[row, c] - without
            allowed[row, g] = allowed[row, g] or fits


@numba.njit(cache=True, nogil=True)
def _same(gives, row, w, v):
    same = True
    for c in range(gives.shape[2]):
        same = same and gives[row, w, c] == gives[row, v, c]
    return same


@numba.njit(cache=True, nogil=True)
def _sum(row, gained, gives, alive, total):
    """What the row has and its witness would give, together."""
    for c in range(gained.shape[1]):
        total[c] = 0.0
        for w in range(alive.shape[1]):
            if alive[row, w]:
                total[c] += gives[row, w, c]
        total[c] += gained[row, c]


@numba.njit(cache=True, nogil=True)
def _let_go(row, held, klass, allowed, shut, witness, alive):
    """Whether the row may have any item at all, with its promises, or without them: they are let go before the slate is."""
    if _any_left(row, held, klass, allowed, shut, witness, alive):
        return True
    for g in range(allowed.shape[1]):
        allowed[row, g] = True
    return _any_left(row, held, klass, allowed, shut, witness, alive)


@numba.njit(cache=True, nogil=True)
def _any_left(row, held, klass, allowed, shut, witness, alive):
    count = 0
    for g in range(allowed.shape[1]):
        if allowed[row, g]:
            count += held[g]
    if count > shut.shape[1]:
        return True
    for e in range(shut.shape[1]):
        item = shut[row, e]
        if item < len(klass) and allowed[row, klass[item]]:
            count -= 1
    for w in range(witness.shape[1]):
        if alive[row, w] and not allowed[row, klass[witness[row, w]]]:
            count += 1
    return count > 0
