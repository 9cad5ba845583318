"""The tree step in Triton, one program a row: `scores` and `advance` of `tree.py`, which says what they mean.

Nothing waits for the device and no shape depends on a value, so a step can be captured in a CUDA graph; `advance_` changes a stand
in place, because a graph is played over the same memory. Reckoned in float64, as `tree.py`.
"""

from __future__ import annotations

import torch
import triton  # pyrefly: ignore
import triton.language as tl  # pyrefly: ignore
from torch import Tensor

from .tree import CAP, FLOOR, FREE, FULL, LOST, RUNNING, SEVERAL, Stand, Terms, Tree

RUNS, FULL_, LOST_ = tl.constexpr(RUNNING), tl.constexpr(FULL), tl.constexpr(LOST)
FREE_, FLOOR_, CAP_, SEVERAL_ = tl.constexpr(FREE), tl.constexpr(FLOOR), tl.constexpr(CAP), tl.constexpr(SEVERAL)
MOST = tl.constexpr(torch.finfo(torch.float64).max)
HUGE = tl.constexpr(1e30)
INF = tl.constexpr(float("inf"))


def scores(tree: Tree, terms: Terms, stand: Stand, logits: Tensor, out: Tensor | None = None) -> Tensor:
    """(R, V) as `tree.scores`, written to `out` if it is given, which must not be the logits. logits: (R, V)"""
    out = torch.empty_like(logits) if out is None else out
    rows, width = logits.shape
    fan = triton.next_power_of_2(tree.fan)
    _scores[(rows,)](
        tree.child, tree.first, tree.stop, tree.word, tree.klass, tree.value, tree.big, tree.held, tree.total, tree.between,
        stand.node, stand.place, stand.over, stand.closed, stand.net, stand.allowed, stand.worth, stand.alive, terms.witness,
        logits, out, width, logits.stride(0), out.stride(0), len(tree.klass), tree.held.shape[1], tree.depth, tree.end,
        stand.closed.shape[1], terms.witness.shape[1], tree.few, C=tree.value.shape[1], G=len(tree.low), EXACT=tree.exact,
        FAN=fan, FILL=1024, num_warps=min(16, max(4, fan // 128)),
    )  # fmt: skip
    return out


def advance(tree: Tree, terms: Terms, stand: Stand, tokens: Tensor) -> Stand:
    """As `tree.advance`. tokens: (R,)"""
    stand = Stand(*(x.clone() for x in stand))
    advance_(tree, terms, stand, tokens)
    return stand


def advance_(tree: Tree, terms: Terms, stand: Stand, tokens: Tensor) -> None:
    """The same, in the memory of `stand`."""
    columns, slots = tree.value.shape[1], stand.chosen.shape[1]
    _advance[(len(tokens),)](
        tree.child, tree.code, tree.code_of, tree.first, tree.stop, tree.klass, tree.value, tree.held, tree.low, tree.high,
        tree.between, *terms, *stand, tokens, tree.code_of.shape[1], len(tree.klass), tree.held.shape[1], tree.depth,
        len(tree.between), slots, stand.closed.shape[1], stand.alive.shape[1], C=columns, G=len(tree.low), EXACT=tree.exact,
        E_=triton.next_power_of_2(stand.closed.shape[1]), W_=triton.next_power_of_2(max(stand.alive.shape[1], 1)),
        G_=triton.next_power_of_2(len(tree.low)), num_warps=1,
    )  # fmt: skip


@triton.jit
def _paid(p_value, p_net, p_worth, p_klass, row, at, mask, C: tl.constexpr, G: tl.constexpr, EXACT: tl.constexpr):
    """What items at these places are paid."""
    if EXACT:
        return tl.load(p_worth + row * G + tl.load(p_klass + at, mask, 0).to(tl.int64), mask, 0.0)
    paid = tl.zeros_like(at).to(tl.float64)
    for c in tl.static_range(C):
        paid += tl.load(p_value + at * C + c, mask, 0.0) * tl.load(p_net + row * C + c)
    return paid


@triton.jit
def _scores(
    p_child, p_first, p_stop, p_word, p_klass, p_value, p_big, p_held, p_total, p_between,
    p_node, p_place, p_over, p_closed, p_net, p_allowed, p_worth, p_alive, p_witness,
    p_logits, p_out, V, s_logits, s_out, M, H, depth, end, E, W, few,
    C: tl.constexpr, G: tl.constexpr, EXACT: tl.constexpr, FAN: tl.constexpr, FILL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    over, place = tl.load(p_over + row), tl.load(p_place + row)
    p_logits += row * s_logits
    p_out += row * s_out
    inside = (over == RUNS) & (place < depth)
    only = tl.where(over != RUNS, end, -1)
    if (over == RUNS) & (place >= depth):
        only = tl.load(p_between + place - depth).to(tl.int32)
    i_fill = tl.arange(0, FILL)
    for start in range(0, V, FILL):
        i = start + i_fill
        left = tl.load(p_logits + i, mask=(i < V) & (only < 0) & (over != RUNS), other=0.0)
        forced = tl.where((only >= 0) & (i == only), 0.0, -INF)
        tl.store(p_out + i, tl.where((over != RUNS) & (only < 0), left, forced), mask=i < V)
    if inside:
        node = tl.load(p_node + row)
        begin = tl.load(p_child + node).to(tl.int64)
        n = tl.load(p_child + node + 1).to(tl.int64) - begin
        i_child = begin + tl.arange(0, FAN)
        there = tl.arange(0, FAN) < n
        first = tl.load(p_first + i_child, there, 0).to(tl.int64)
        stop = tl.load(p_stop + i_child, there, 0).to(tl.int64)
        word = tl.load(p_word + i_child, there, 0)
        line = tl.load(p_big + i_child, there, -1).to(tl.int64)
        large, small = line >= 0, there & (line < 0)
        count = tl.zeros([FAN], tl.float64)
        paid = tl.zeros([FAN], tl.float64)
        if tl.max(large.to(tl.int32), 0) > 0:
            for g in range(G):
                admitted = tl.load(p_allowed + row * G + g).to(tl.float64)
                held = tl.load(p_held + g * H + line, large, 0).to(tl.float64) * admitted
                count += held
                if EXACT:
                    paid += held * tl.load(p_worth + row * G + g)
                else:
                    for c in tl.static_range(C):
                        price = tl.load(p_net + row * C + c) * admitted
                        paid += tl.load(p_total + (g * C + c) * H + line, large, 0.0) * price
        if tl.max(small.to(tl.int32), 0) > 0:
            for t in range(0, few):
                at = first + t
                here = small & (at < stop)
                klass = tl.load(p_klass + at, here, 0).to(tl.int64)
                here = here & (tl.load(p_allowed + row * G + klass, here, 0) != 0)
                count += here.to(tl.float64)
                paid += tl.where(here, _paid(p_value, p_net, p_worth, p_klass, row, at, here, C, G, EXACT), 0.0)
        low, high = tl.load(p_first + node), tl.load(p_stop + node)
        for e in range(0, E):
            item = tl.load(p_closed + row * E + e)
            if (item >= low) & (item < high):
                klass = tl.load(p_klass + item).to(tl.int64)
                if tl.load(p_allowed + row * G + klass) != 0:
                    its = there & (first <= item) & (item < stop)
                    at = tl.where(its, item, 0)
                    count -= its.to(tl.float64)
                    paid -= tl.where(its, _paid(p_value, p_net, p_worth, p_klass, row, at, its, C, G, EXACT), 0.0)
        for w in range(0, W):
            item = tl.load(p_witness + row * W + w)
            if (tl.load(p_alive + row * W + w) != 0) & (item >= low) & (item < high):
                klass = tl.load(p_klass + item).to(tl.int64)
                if tl.load(p_allowed + row * G + klass) == 0:
                    its = there & (first <= item) & (item < stop)
                    at = tl.where(its, item, 0)
                    count += its.to(tl.float64)
                    paid += tl.where(its, _paid(p_value, p_net, p_worth, p_klass, row, at, its, C, G, EXACT), 0.0)
        legal = there & (count > 0)
        sure = tl.load(p_logits + word, there, 0.0).to(tl.float64)
        sure = tl.where(sure != sure, -INF, sure)
        sure = tl.where(there, tl.minimum(sure, MOST), -INF)
        some = tl.max((legal & (sure > -INF)).to(tl.int32), 0)  # or the host forbade all of them
        sure = tl.where(there & (some == 0), 0.0, sure)
        top = tl.max(sure, 0)
        sure -= top + tl.log(tl.sum(tl.exp(sure - top), 0))
        above = tl.sum(tl.where(legal, paid, 0.0), 0) / tl.maximum(tl.sum(tl.where(legal, count, 0.0), 0), 1.0)
        found = sure + (paid / tl.maximum(count, 1.0) - above)
        tl.debug_barrier()  # the row was filled by other threads
        tl.store(p_out + word, found.to(p_out.dtype.element_ty), mask=legal)


@triton.jit
def _advance(
    p_child, p_code, p_code_of, p_first, p_stop, p_klass, p_value, p_held, p_low, p_high, p_between,
    p_slots, p_remaining, p_initial, p_share, p_rate, p_ceiling, p_kind, p_column, p_floor, p_cap, p_least, p_most,
    p_witness, p_gives,
    p_node, p_place, p_over, p_count, p_chosen, p_gained, p_excess, p_alive, p_closed, p_net, p_allowed, p_worth,
    p_token, known, M, H, depth, between, K, E, W,
    C: tl.constexpr, G: tl.constexpr, EXACT: tl.constexpr, E_: tl.constexpr, W_: tl.constexpr, G_: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    token, place, node = tl.load(p_token + row), tl.load(p_place + row), tl.load(p_node + row)
    moves = (token >= 0) & (tl.load(p_over + row) == RUNS)
    tl.debug_barrier()  # here and below: one thread writes what all have read, or reads what another wrote
    if moves & (place >= depth):  # between two items
        last = place + 1 == depth + between
        if token != tl.load(p_between + place - depth):
            tl.store(p_over + row, LOST_)
        else:
            tl.store(p_place + row, tl.where(last, 0, place + 1))
            tl.store(p_node + row, tl.where(last, 0, node))
    if moves & (place < depth):
        code = tl.load(p_code_of + place * known + token, token < known, -1)
        low = tl.load(p_child + node).to(tl.int64)
        high = tl.load(p_child + node + 1).to(tl.int64)
        while high - low > 1:
            middle = (low + high) // 2
            before = tl.load(p_code + middle) <= code
            low = tl.where(before, middle, low)
            high = tl.where(before, high, middle)
        if (code < 0) | (tl.load(p_code + low) != code):
            tl.store(p_over + row, LOST_)
        elif place + 1 < depth:
            tl.store(p_node + row, low)
            tl.store(p_place + row, place + 1)
        else:
            i_closed, i_witness, i_class = tl.arange(0, E_), tl.arange(0, W_), tl.arange(0, G_)
            closed = tl.load(p_closed + row * E + i_closed, i_closed < E, M)
            alive = tl.load(p_alive + row * W + i_witness, i_witness < W, 0) != 0
            witness = tl.load(p_witness + row * W + i_witness, i_witness < W, -1)
            # The item: the best paid of its open ones, those the guard admits first, then by order.
            item = tl.full((), -1, tl.int64)
            best = tl.full((), 0.0, tl.float64)
            admitted = tl.full((), 0, tl.int32)
            for at in range(tl.load(p_first + low).to(tl.int64), tl.load(p_stop + low).to(tl.int64)):
                klass = tl.load(p_klass + at).to(tl.int64)
                paid = tl.full((), 0.0, tl.float64)
                if EXACT:
                    paid += tl.load(p_worth + row * G + klass)
                else:
                    for c in tl.static_range(C):
                        paid += tl.load(p_value + at * C + c) * tl.load(p_net + row * C + c)
                kept = tl.max((alive & (witness == at)).to(tl.int32), 0) | tl.load(p_allowed + row * G + klass).to(
                    tl.int32
                )
                open_ = tl.max((closed == at).to(tl.int32), 0) == 0
                wins = open_ & ((item < 0) | (kept > admitted) | ((kept == admitted) & (paid > best)))
                item = tl.where(wins, at, item)
                best = tl.where(wins, paid, best)
                admitted = tl.where(wins, kept, admitted)
            if item < 0:
                tl.store(p_node + row, low)
                tl.store(p_place + row, place + 1)
                tl.store(p_over + row, LOST_)
            else:
                slots, count, kind = tl.load(p_slots + row), tl.load(p_count + row), tl.load(p_kind + row)
                # The witness item that makes room leaves.
                if kind != FREE_:
                    keep = tl.zeros([W_], tl.float64)
                    if kind == SEVERAL_:
                        room = tl.full([W_], INF, tl.float64)
                        same = i_witness < W
                        for c in tl.static_range(C):
                            gives = tl.load(p_gives + (row * W + i_witness) * C + c, i_witness < W, 0.0)
                            value = tl.load(p_value + item * C + c)
                            left = (
                                tl.load(p_gained + row * C + c) + tl.sum(tl.where(alive, gives, 0.0), 0) + value - gives
                            )
                            floor, cap = tl.load(p_floor + row * C + c), tl.load(p_cap + row * C + c)
                            bound = (floor > -INF) | (cap < INF)
                            size = 1 + tl.abs(tl.where(floor > -INF, floor, tl.where(cap < INF, cap, 0.0)))
                            tight = tl.minimum((left - floor) / size, (cap - left) / size)
                            room = tl.where(bound, tl.minimum(room, tight), room)
                            same = same & ((gives == value) | (bound == 0))
                        keep = tl.where(same, -INF, -room)
                    else:
                        column = tl.load(p_column + row)
                        keep = tl.load(p_gives + (row * W + i_witness) * C + column, i_witness < W, 0.0)
                        keep = tl.where(kind == CAP_, -keep, keep)
                    itself = (alive & (witness == item)).to(tl.int32)
                    out = tl.argmin(tl.where(alive, keep, INF), 0)
                    out = tl.where(tl.max(itself, 0) > 0, tl.argmax(itself, 0), out)
                    alive = alive & (i_witness != out)
                    tl.store(p_alive + row * W + i_witness, alive, i_witness < W)
                # What it gives, and what was due.
                for p in tl.static_range(2 * C):
                    due = tl.load(p_share + row * 2 * C + p)
                    missing = due * slots - tl.load(p_gained + row * C + p % C)
                    due = tl.where(tl.load(p_remaining + row) != 0, missing / tl.maximum(slots - count, 1), due)
                    more = tl.load(p_value + item * C + p % C) - due
                    tl.store(p_excess + row * 2 * C + p, tl.load(p_excess + row * 2 * C + p) + more)
                tl.debug_barrier()
                for c in tl.static_range(C):
                    value = tl.load(p_value + item * C + c)
                    tl.store(p_gained + row * C + c, tl.load(p_gained + row * C + c) + value)
                tl.store(p_chosen + row * K + count, item)
                tl.store(p_count + row, count + 1)
                left_of = tl.load(p_closed + row * E + i_closed - 1, (i_closed > 0) & (i_closed < E), -1)
                closed = tl.where(closed < item, closed, tl.where(left_of < item, item, left_of))
                tl.debug_barrier()
                tl.store(p_closed + row * E + i_closed, closed, i_closed < E)
                # Prices, and the classes of which any item may be swapped for one of the witness.
                worth = tl.zeros([G_], tl.float64)
                fits = alive[:, None] & (i_class < G)[None, :]
                for c in tl.static_range(C):
                    net = tl.full((), 0.0, tl.float64)
                    for side in tl.static_range(2):
                        p = row * 2 * C + c + side * C
                        sign = 1.0 - 2.0 * side
                        initial = tl.load(p_initial + p)
                        dual = initial * tl.exp(-tl.load(p_rate + p) * tl.load(p_excess + p) * sign)
                        dual = tl.minimum(tl.minimum(dual, tl.load(p_ceiling + p)), HUGE)
                        net += tl.where(initial != 0, dual * sign, 0.0)
                    tl.store(p_net + row * C + c, net)
                    lowest = tl.load(p_low + i_class * C + c, i_class < G, 0.0)
                    highest = tl.load(p_high + i_class * C + c, i_class < G, 0.0)
                    worth += lowest * net
                    gives = tl.load(p_gives + (row * W + i_witness) * C + c, i_witness < W, 0.0)
                    without = tl.load(p_gained + row * C + c) + tl.sum(tl.where(alive, gives, 0.0), 0) - gives
                    least = tl.load(p_least + row * C + c) - without
                    most = tl.load(p_most + row * C + c) - without
                    fits = fits & (lowest[None, :] >= least[:, None]) & (highest[None, :] <= most[:, None])
                if EXACT:
                    tl.store(p_worth + row * G + i_class, worth, i_class < G)
                allowed = (tl.max(fits.to(tl.int32), 0) > 0) | (kind == FREE_)
                tl.store(p_allowed + row * G + i_class, allowed, i_class < G)
                tl.debug_barrier()
                # Promises are let go before the slate is.
                held = tl.load(p_held + i_class * H, i_class < G, 0)
                shut = (i_closed < E) & (closed < M)
                klass = tl.load(p_klass + closed, shut, 0).to(tl.int64)
                gone = tl.sum((shut & (tl.load(p_allowed + row * G + klass, shut, 0) != 0)).to(tl.int32), 0)
                klass = tl.load(p_klass + witness, alive, 0).to(tl.int64)
                more = tl.sum((alive & (tl.load(p_allowed + row * G + klass, alive, 1) == 0)).to(tl.int32), 0)
                none = tl.sum(tl.where(allowed, held, 0), 0) - gone + more <= 0
                tl.debug_barrier()
                if none:
                    tl.store(p_allowed + row * G + i_class, i_class < G, i_class < G)
                empty = none & (tl.sum(held, 0) - tl.sum(shut.to(tl.int32), 0) <= 0)
                full = empty | (count + 1 >= slots)
                tl.store(p_over + row, tl.where(full, FULL_, RUNS))
                ends = full | (between == 0)
                tl.store(p_place + row, tl.where(ends, 0, place + 1))
                tl.store(p_node + row, tl.where(ends, 0, low))
