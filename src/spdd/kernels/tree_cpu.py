"""The tree step in numba, row by row without temporaries; `tree.py` says what it means. Numpy arrays in and out."""

from __future__ import annotations

import math

import numba
import numpy as np

from .tree import CAP, FLOOR, FREE, FULL, HUGE, LOST, RUNNING, Stand, Terms, Tree

MOST = float(np.finfo(np.float64).max)


@numba.njit(cache=True, nogil=True)
def settle(tree: Tree, terms: Terms, stand: Stand):
    """`tree.settle` of all rows, in place."""
    for row in range(len(stand.node)):
        _settle(tree, terms, stand, row)


@numba.njit(cache=True, nogil=True)
def advance(tree: Tree, terms: Terms, stand: Stand, tokens):
    """`tree.advance` over tokens (R, T), one after the other, in place."""
    for row in range(tokens.shape[0]):
        for t in range(tokens.shape[1]):
            if tokens[row, t] >= 0 and stand.over[row] == RUNNING:
                _advance(tree, terms, stand, row, tokens[row, t])


@numba.njit(cache=True, nogil=True)
def branches(tree: Tree, terms: Terms, stand: Stand, logits, words, sures, pays):
    """`tree.branches`, written to words, sures and pays (R, W), which hold -1, -inf and 0."""
    _step(tree, terms, stand, logits, logits, False, words, sures, pays)


@numba.njit(cache=True, nogil=True)
def scores(tree: Tree, terms: Terms, stand: Stand, logits, out):
    """`tree.scores`, written to out (R, V), which may be the logits themselves."""
    words, sures, pays = np.empty((1, 0), np.int64), np.empty((1, tree.fan)), np.empty((1, tree.fan))
    _step(tree, terms, stand, logits, out, True, words, sures, pays)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _step(tree, terms, stand, logits, out, dense, words, sures, pays):
    """Both of the above. One function, with all arrays at hand: handing them on costs more than using them."""
    tree_child, tree_first, tree_stop, tree_word = tree.child, tree.first, tree.stop, tree.word
    klass, value, big, held, mass, total_of = tree.klass, tree.value, tree.big, tree.held, tree.mass, tree.total
    exact, between, end_word, depth = tree.exact, tree.between, tree.end, tree.depth
    nodes, places, overs, shut, net = stand.node, stand.place, stand.over, stand.closed, stand.net
    allowed, worth, alive, witness = stand.allowed, stand.worth, stand.alive, terms.witness
    columns, classes = value.shape[1], allowed.shape[1]
    for row in range(logits.shape[0]):
        if overs[row] != RUNNING or places[row] >= depth:
            if dense:
                only = end_word if overs[row] != RUNNING else between[places[row] - depth]
                if only >= 0:
                    out[row, :] = -np.inf
                    out[row, only] = 0
                else:
                    out[row, :] = logits[row, :]
            continue
        line = 0 if dense else row
        node = nodes[row]
        begin = tree_child[node]
        n = tree_child[node + 1] - begin
        whole = True
        for g in range(classes):
            whole = whole and allowed[row, g]
        c, last = 0, shut.shape[1]  # the first closed item at or behind the node's first
        while c < last:
            middle = (c + last) // 2
            if shut[row, middle] < tree_first[node]:
                c = middle + 1
            else:
                last = middle
        last = shut.shape[1]
        all_count, all_total = 0, 0.0
        top, top_legal = -np.inf, -np.inf
        for k in range(n):
            first, stop, at = tree_first[begin + k], tree_stop[begin + k], big[begin + k]
            count, total = 0, 0.0
            if at >= 0:
                if whole:
                    count = stop - first
                    for v in range(columns):
                        total += mass[at, v] * net[row, v]
                else:
                    for g in range(classes):
                        if allowed[row, g]:
                            count += held[at, g]
                            if exact:
                                total += held[at, g] * worth[row, g]
                            else:
                                for v in range(columns):
                                    total += total_of[at, g, v] * net[row, v]
            else:
                for item in range(first, stop):
                    g = klass[item]
                    if allowed[row, g]:
                        count += 1
                        if exact:
                            total += worth[row, g]
                        else:
                            for v in range(columns):
                                total += value[item, v] * net[row, v]
            while c < last and shut[row, c] < stop:
                item = shut[row, c]
                g = klass[item]
                if allowed[row, g]:
                    count -= 1
                    if exact:
                        total -= worth[row, g]
                    else:
                        for v in range(columns):
                            total -= value[item, v] * net[row, v]
                c += 1
            if not whole:
                for w in range(witness.shape[1]):
                    item = witness[row, w]
                    if first <= item < stop and alive[row, w] and not allowed[row, klass[item]]:
                        count += 1
                        for v in range(columns):
                            total += value[item, v] * net[row, v]
            score = np.float64(logits[row, tree_word[begin + k]])
            if math.isnan(score):
                score = -np.inf
            elif score == np.inf:
                score = MOST
            sures[line, k] = score
            top = max(top, score)
            if count > 0:
                pays[line, k] = total / count
                all_count += count
                all_total += total
                top_legal = max(top_legal, score)
            else:
                pays[line, k] = -np.inf
        if dense:
            out[row, :] = -np.inf  # only now: `out` may be the logits themselves
        banned = top_legal == -np.inf  # the host forbade all of them
        if banned:
            top = 0.0
        sum_ = 0.0
        for k in range(n):
            if banned:
                sures[line, k] = 0.0
            sum_ += math.exp(sures[line, k] - top)
        norm, above = top + math.log(sum_), all_total / max(all_count, 1)
        for k in range(n):
            if pays[line, k] != -np.inf:
                if dense:
                    out[row, tree_word[begin + k]] = sures[line, k] - norm + (pays[line, k] - above)
                else:
                    words[row, k] = tree_word[begin + k]
                    sures[row, k] -= norm
                    pays[row, k] -= above
            elif not dense:
                sures[row, k], pays[row, k] = -np.inf, 0.0


@numba.njit(cache=True, nogil=True)
def _first_closed(stand, row, place):
    """The first closed item at or behind `place`."""
    low, high = 0, stand.closed.shape[1]
    while low < high:
        middle = (low + high) // 2
        if stand.closed[row, middle] < place:
            low = middle + 1
        else:
            high = middle
    return low


@numba.njit(cache=True, nogil=True)
def _worth(tree, stand, row, item):
    if tree.exact:
        return stand.worth[row, tree.klass[item]]
    paid = 0.0
    for c in range(tree.value.shape[1]):
        paid += tree.value[item, c] * stand.net[row, c]
    return paid


@numba.njit(cache=True, nogil=True)
def _any_left(tree, terms, stand, row):
    """Whether the row may have any item at all."""
    count = 0
    for g in range(tree.held.shape[1]):
        if stand.allowed[row, g]:
            count += tree.held[0, g]
    for e in range(stand.closed.shape[1]):
        item = stand.closed[row, e]
        if item < len(tree.klass) and stand.allowed[row, tree.klass[item]]:
            count -= 1
    for w in range(terms.witness.shape[1]):
        if stand.alive[row, w] and not stand.allowed[row, tree.klass[terms.witness[row, w]]]:
            count += 1
    return count > 0


@numba.njit(cache=True, nogil=True)
def _settle(tree, terms, stand, row):
    columns, classes = tree.value.shape[1], tree.low.shape[0]
    for c in range(columns):
        net = 0.0
        for side in range(2):
            p = c + side * columns
            sign = 1.0 - 2.0 * side
            dual = terms.initial[row, p]
            if dual != 0.0:
                dual = dual * math.exp(-terms.rate[row, p] * stand.excess[row, p] * sign)
                net += min(dual, terms.ceiling[row, p], HUGE) * sign
        stand.net[row, c] = net
    for g in range(classes):
        if tree.exact:
            paid = 0.0
            for c in range(columns):
                paid += tree.low[g, c] * stand.net[row, c]
            stand.worth[row, g] = paid
        stand.allowed[row, g] = terms.kind[row] == FREE
    if stand.count[row] >= terms.slots[row]:
        stand.over[row] = FULL
    if terms.kind[row] != FREE:
        _admit(tree, terms, stand, row)
    if not _any_left(tree, terms, stand, row):
        stand.allowed[row] = True  # promises are let go before the slate is
        if stand.over[row] == RUNNING and not _any_left(tree, terms, stand, row):
            stand.over[row] = FULL


@numba.njit(cache=True, nogil=True)
def _admit(tree, terms, stand, row):
    """Classes of which any item may be swapped for one of the witness."""
    columns = tree.value.shape[1]
    low, high = np.empty(columns), np.empty(columns)
    total = np.zeros(columns)
    for c in range(columns):
        for w in range(stand.alive.shape[1]):
            if stand.alive[row, w]:
                total[c] += terms.gives[row, w, c]
        total[c] += stand.gained[row, c]
    for w in range(stand.alive.shape[1]):
        if not stand.alive[row, w]:
            continue
        for c in range(columns):
            without = total[c] - terms.gives[row, w, c]
            low[c], high[c] = terms.least[row, c] - without, terms.most[row, c] - without
        for g in range(tree.low.shape[0]):
            if not stand.allowed[row, g]:
                fits = True
                for c in range(columns):
                    if tree.low[g, c] < low[c] or tree.high[g, c] > high[c]:
                        fits = False
                        break
                stand.allowed[row, g] = fits


@numba.njit(cache=True, nogil=True)
def _advance(tree, terms, stand, row, token):
    if stand.place[row] >= tree.depth:
        if token != tree.between[stand.place[row] - tree.depth]:
            stand.over[row] = LOST
            return
        stand.place[row] += 1
        if stand.place[row] == tree.depth + len(tree.between):
            stand.place[row], stand.node[row] = 0, 0
        return
    code = -1
    if token < tree.code_of.shape[1]:
        code = tree.code_of[stand.place[row], token]
    node = stand.node[row]
    low, high = tree.child[node], tree.child[node + 1]
    end = high
    while low < high:
        middle = (low + high) // 2
        if tree.code[middle] < code:
            low = middle + 1
        else:
            high = middle
    if code < 0 or low >= end or tree.code[low] != code:
        stand.over[row] = LOST
        return
    stand.node[row] = low
    stand.place[row] += 1
    if stand.place[row] < tree.depth:
        return
    item = _item(tree, terms, stand, row, low)
    if item < 0:
        stand.over[row] = LOST
        return
    _take(tree, terms, stand, row, item)
    _settle(tree, terms, stand, row)
    if stand.over[row] == FULL or len(tree.between) == 0:
        stand.place[row], stand.node[row] = 0, 0


@numba.njit(cache=True, nogil=True)
def _item(tree, terms, stand, row, leaf):
    """The best paid open item of an id, those the guard admits first."""
    best, best_paid, best_kept = -1, 0.0, False
    for item in range(tree.first[leaf], tree.stop[leaf]):
        near = _first_closed(stand, row, item)
        if near < stand.closed.shape[1] and stand.closed[row, near] == item:
            continue
        kept = stand.allowed[row, tree.klass[item]]
        for w in range(terms.witness.shape[1]):
            kept = kept or (stand.alive[row, w] and terms.witness[row, w] == item)
        paid = _worth(tree, stand, row, item)
        if best < 0 or (kept and not best_kept) or (kept == best_kept and paid > best_paid):
            best, best_paid, best_kept = item, paid, kept
    return best


@numba.njit(cache=True, nogil=True)
def _take(tree, terms, stand, row, item):
    columns = tree.value.shape[1]
    _leave(tree, terms, stand, row, item)
    for p in range(2 * columns):
        due = terms.share[row, p]
        if terms.remaining[row]:
            missing = due * terms.slots[row] - stand.gained[row, p % columns]
            due = missing / max(terms.slots[row] - stand.count[row], 1)
        stand.excess[row, p] += tree.value[item, p % columns] - due
    for c in range(columns):
        stand.gained[row, c] += tree.value[item, c]
    stand.chosen[row, stand.count[row]] = item
    stand.count[row] += 1
    near = _first_closed(stand, row, item)
    for e in range(stand.closed.shape[1] - 1, near, -1):
        stand.closed[row, e] = stand.closed[row, e - 1]
    stand.closed[row, near] = item


@numba.njit(cache=True, nogil=True)
def _leave(tree, terms, stand, row, item):
    """The witness item that makes room leaves; see `decode.guard.advance`."""
    columns, kind = tree.value.shape[1], terms.kind[row]
    total = stand.gained[row].copy()
    for w in range(stand.alive.shape[1]):
        if stand.alive[row, w]:
            for c in range(columns):
                total[c] += terms.gives[row, w, c]
    out, least = -1, 0.0
    for w in range(stand.alive.shape[1]):
        if not stand.alive[row, w]:
            continue
        if terms.witness[row, w] == item:
            out = w
            break
        if kind == FLOOR:
            keep = terms.gives[row, w, terms.column[row]]
        elif kind == CAP:
            keep = -terms.gives[row, w, terms.column[row]]
        else:
            same, room = True, np.inf
            for c in range(columns):
                floor, cap = terms.floor[row, c], terms.cap[row, c]
                if math.isinf(floor) and math.isinf(cap):
                    continue
                same = same and terms.gives[row, w, c] == tree.value[item, c]
                size = 1 + abs(cap if math.isinf(floor) else floor)
                left = total[c] + tree.value[item, c] - terms.gives[row, w, c]
                room = min(room, (left - floor) / size, (cap - left) / size)
            keep = -np.inf if same else -room
        if out < 0 or keep < least:
            out, least = w, keep
    if out >= 0:
        stand.alive[row, out] = False
