"""What rows of the tree may write, in numba: `branches` and `scores` of `tree.py`, which says what they mean, row by row.

Numpy arrays in and out. A row goes over its children a few times, once for each thing that is asked of them, in loops short
enough for vector instructions; the exponential is our own for that reason.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from .tree import RUNNING, Stand, Terms, Tree
from .tree_cpu import behind

MOST = float(np.finfo(np.float64).max)
LEAST = -700.0  # exp of less counts as exp(-700): 1e-304 of the largest term
LOG2E, ROUND = 1.4426950408889634, 6755399441055744.0  # 1.5 * 2^52: adding it rounds to whole numbers
HIGH, LOW = 0.693145751953125, 1.42860682030941723212e-6  # log(2) in two parts, the first exact in products
P3, P4, P5, P6, P7, P8, P9, P10 = (1 / math.factorial(n) for n in range(3, 11))
MANTISSA, SIGN, REST = np.int64(52), np.int64(63), np.int64(2**63 - 1)
ZERO, ONE = np.int64(0), np.int64(1)
# Sums may be taken in any order, and NaN is not looked for (it was made -inf before).
SUMS = {"reassoc", "contract", "nsz", "nnan"}


def _float_of(typingctx, bits):
    """The float64 of these bits."""

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.DoubleType())

    return numba.types.float64(numba.types.int64), generate


def _bits_of(typingctx, number):
    """The bits of this float64."""

    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(64))

    return numba.types.int64(numba.types.float64), generate


as_float: Any = intrinsic(_float_of)
as_bits: Any = intrinsic(_bits_of)


@numba.njit(cache=True, nogil=True)
def branches(tree: Tree, terms: Terms, stand: Stand, logits, words, sures, pays):
    """`tree.branches`, written to words, sures and pays (R, W), which hold -1, -inf and 0."""
    _step(tree, terms, stand, logits, logits, False, words, sures, pays)


@numba.njit(cache=True, nogil=True)
def scores(tree: Tree, terms: Terms, stand: Stand, logits, out):
    """`tree.scores`, written to out (R, V), which may be the logits themselves."""
    nothing = np.empty((0, 0))
    _step(tree, terms, stand, logits, out, True, np.empty((0, 0), np.int64), nothing, nothing)


@numba.njit(cache=True, nogil=True)
def widest(tree: Tree, stand: Stand):
    """The most children that a row may go to."""
    most = 1
    for row in range(len(stand.node)):
        if stand.over[row] == RUNNING and stand.place[row] < tree.depth:
            most = max(most, tree.child[stand.node[row] + 1] - tree.child[stand.node[row]])
    return most


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _step(tree, terms, stand, logits, out, dense, words, sures, pays):
    """Both of the above. One function, with all arrays at hand: handing them on costs more than using them."""
    tree_child, tree_first, tree_stop, tree_word = tree.child, tree.first, tree.stop, tree.word
    klass, value, big, held, mass, total_of = tree.klass, tree.value, tree.big, tree.held, tree.mass, tree.total
    exact, between, end_word, depth = tree.exact, tree.between, tree.end, tree.depth
    nodes, places, overs, shut, net = stand.node, stand.place, stand.over, stand.closed, stand.net
    allowed, worth, alive, witness = stand.allowed, stand.worth, stand.alive, terms.witness
    columns, classes = value.shape[1], allowed.shape[1]
    counts, totals, sure = np.empty(tree.fan), np.empty(tree.fan), np.empty(tree.fan)
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
        node = nodes[row]
        begin, end = tree_child[node], tree_child[node + 1]
        n = end - begin
        if (
            n == 1 and dense and big[begin] < 0
        ):  # all of the probability, and paid what the node itself is: 0, where it is legal
            open_, e = False, behind(shut, row, tree_first[begin])
            for item in range(tree_first[begin], tree_stop[begin]):
                if e < shut.shape[1] and shut[row, e] == item:
                    e += 1
                    continue
                open_ = open_ or allowed[row, klass[item]]
                for w in range(0 if open_ else witness.shape[1]):
                    open_ = open_ or (alive[row, w] and witness[row, w] == item)
            out[row, :] = -np.inf
            if open_:
                out[row, tree_word[begin]] = 0.0
            continue
        first, stop, word = tree_first[begin:end], tree_stop[begin:end], tree_word[begin:end]
        count, total, score = counts[:n], totals[:n], sure[:n]
        whole, free = True, True  # all classes are admitted; nothing is paid
        for g in range(classes):
            whole = whole and allowed[row, g]
        for v in range(columns):
            free = free and net[row, v] == 0
        # What lies below each child. Large ones stand in a row where all are.
        line = big[begin]
        if whole and free:
            _size(count, first, stop)
            total[:] = 0.0
        elif line >= 0 and big[end - 1] - line == n - 1:
            if whole:
                _size(count, first, stop)
            else:
                count[:] = 0.0
            total[:] = 0.0
            for g in range(0 if whole else classes):
                if allowed[row, g]:
                    _add(count, held[g, line : line + n], 1.0)
                    if exact:
                        if worth[row, g] != 0:
                            _add(total, held[g, line : line + n], worth[row, g])
                    else:
                        for v in range(columns):
                            if net[row, v] != 0:
                                _add(total, total_of[g, v, line : line + n], net[row, v])
            for v in range(columns if whole else 0):
                if net[row, v] != 0:
                    _add(total, mass[v, line : line + n], net[row, v])
        else:
            for k in range(n):
                number, paid, line = 0, 0.0, big[begin + k]
                if line >= 0:
                    for g in range(classes):
                        if allowed[row, g]:
                            number += held[g, line]
                            if exact:
                                paid += held[g, line] * worth[row, g]
                            else:
                                for v in range(columns):
                                    paid += total_of[g, v, line] * net[row, v]
                else:
                    for item in range(first[k], stop[k]):
                        g = klass[item]
                        if allowed[row, g]:
                            number += 1
                            if exact:
                                paid += worth[row, g]
                            else:
                                for v in range(columns):
                                    paid += value[item, v] * net[row, v]
                count[k], total[k] = number, paid
        # Closed items are taken off again, and witness items that the guard's classes leave out are put in.
        e = behind(shut, row, first[0])
        while e < shut.shape[1] and shut[row, e] < stop[n - 1]:
            item = shut[row, e]
            g = klass[item]
            if allowed[row, g]:
                k = _child(first, item)
                count[k] -= 1
                if exact:
                    total[k] -= worth[row, g]
                else:
                    for v in range(columns):
                        total[k] -= value[item, v] * net[row, v]
            e += 1
        for w in range(0 if whole else witness.shape[1]):
            item = witness[row, w]
            if alive[row, w] and first[0] <= item < stop[n - 1] and not allowed[row, klass[item]]:
                k = _child(first, item)
                count[k] += 1
                for v in range(columns):
                    total[k] += value[item, v] * net[row, v]
        # Log p over all children, payments over legal ones. Words that follow each other are read and written at once.
        near = word[0]
        follow = _follow(word)
        if follow:
            _copy(score, logits[row, near : near + n])
        else:
            for k in range(n):
                score[k] = logits[row, word[k]]
        top = _top(score, count)
        if top == -np.inf:  # the host forbade all of them
            score[:] = 0.0
            top = 0.0
        norm = top + (math.log(_mass(score, top)) if n > 1 else score[0] - top)
        above = _mean(count, total)
        if not dense:
            for k in range(n):
                if count[k] > 0:
                    words[row, k] = word[k]
                    sures[row, k], pays[row, k] = score[k] - norm, total[k] / count[k] - above
            continue
        out[row, :] = -np.inf  # only now: `out` may be the logits themselves
        if follow:
            _write(out[row, near : near + n], score, total, count, norm, above)
        else:
            for k in range(n):
                if count[k] > 0:
                    out[row, word[k]] = score[k] - norm + (total[k] / count[k] - above)


@numba.njit(cache=True, nogil=True)
def _copy(to, x):
    for k in range(len(to)):
        to[k] = x[k]


@numba.njit(cache=True, nogil=True)
def _size(count, first, stop):
    for k in range(len(count)):
        count[k] = stop[k] - first[k]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _write(to, score, total, count, norm, above):
    for k in range(len(to)):
        x = score[k] - norm + (total[k] / count[k] - above)
        to[k] = x if count[k] > 0 else -np.inf


@numba.njit(cache=True, nogil=True)
def _child(first, item):
    """Which child an item lies below."""
    low, high = 0, len(first)
    while high - low > 1:
        middle = (low + high) // 2
        if first[middle] <= item:
            low = middle
        else:
            high = middle
    return low


@numba.njit(cache=True, nogil=True)
def _add(to, x, times):
    for k in range(len(to)):
        to[k] += x[k] * times


@numba.njit(cache=True, nogil=True)
def _follow(word):
    """Whether these are numbers that follow each other."""
    apart = 0
    for k in range(len(word)):
        apart |= word[k] - word[0] - k
    return apart == 0


@numba.njit(cache=True, nogil=True)
def _top(score, count):
    """The largest score, after NaN and infinity were made what can be reckoned with; -inf where no legal child has any."""
    legal, top = ZERO, as_key(-np.inf)
    for k in range(len(score)):
        x = score[k]
        x = x if x == x else -np.inf
        x = x if x < MOST else MOST
        score[k] = x
        legal += ONE if (x > -np.inf) & (count[k] > 0) else ZERO
        key = as_key(x)
        top = key if key > top else top
    return as_float(top ^ ((top >> SIGN) & REST)) if legal > 0 else -np.inf


@numba.njit(cache=True, nogil=True)
def as_key(x):
    """A whole number that is larger where x is: their maximum is found eight at a time, that of float64 is not."""
    bits = as_bits(x)
    return bits ^ ((bits >> SIGN) & REST)


@numba.njit(cache=True, nogil=True, fastmath=SUMS)
def _mean(count, total):
    """What items are paid on average, over children that have any."""
    items, paid = 0.0, 0.0
    for k in range(len(count)):
        items += count[k]
        paid += total[k] if count[k] > 0 else 0.0
    return paid / max(items, 1.0)


@numba.njit(cache=True, nogil=True, fastmath=SUMS)
def _mass(score, top):
    """Sum of exp(score - top)."""
    total = 0.0
    for k in range(len(score)):
        total += _exp(score[k] - top)
    return total


# Not inlined by numba but by LLVM, which keeps these flags: were sums free here, adding ROUND and taking it off would do nothing.
@numba.njit(cache=True, nogil=True, fastmath={"contract", "nsz"})
def _exp(x):
    """exp of a float64 that is at most 0, to 13 digits and eight at a time, where the C library's is called one by one.

    It is 2 to a whole power, times a series in a rest of at most log(2) / 2.
    """
    x = x if x > LEAST else LEAST
    whole = x * LOG2E + ROUND
    power = whole - ROUND
    rest = x - power * HIGH - power * LOW
    p = P10
    p = p * rest + P9
    p = p * rest + P8
    p = p * rest + P7
    p = p * rest + P6
    p = p * rest + P5
    p = p * rest + P4
    p = p * rest + P3
    p = p * rest + 0.5
    p = p * rest + 1.0
    p = p * rest + 1.0
    return as_float(as_bits(p) + (as_bits(whole) << MANTISSA))
