"""What theory promises about a slate, with explicit constants.

Two kinds: promises about the printed algorithm (how far it may fall short of a floor, how much relevance it may lose)
and certificates (the most that any slate could be worth). The paper's own constants are here beside ours because they
differ: `tests/decode/test_bounds.py` has worlds where the paper's fail. What they assume is checked in `assumption.py`.

Letters as in the paper: rate eta, price l_k after slot k, share beta = R/K, r_k = b(j_k) - beta.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# --- How far short ---------------------------------------------------------------------------------------------------


def violation_bound(rate, share, largest, *, spread=1.0, start=1.0, below=None):
    """The most the printed algorithm can miss a floor by.

        shortfall <= max(0, share + ln(spread / (start * (largest - below))) / rate)

    Once the price is above spread / (largest - below), the item of largest value beats every item of value below the
    share, so the price no longer grows; the last growth was at most e^(rate * share); and ln(l_K / l_0) is
    rate * shortfall. Holds for any scores, also autoregressive ones. Infinite where nothing can be promised.

    share: floor / slots.  largest: the largest value *still unused* at every slot until the floor is met.
    spread: the largest difference of relevance between two candidates of one slot (1 on [0, 1] scales).
    start: the first price.
    below: the largest value under the share, if known (0 for 0/1 values); `share` is always safe.
    Numbers, arrays or tensors, broadcast together.

    >>> round(violation_bound(1.0, 0.3, 1.0), 4)
    0.6567
    >>> violation_bound(1.0, 0.3, 1.0, below=0.0)  # 0/1 values: less than one item, so a whole floor is met
    0.3
    """
    given = (rate, share, largest, spread, start, share if below is None else below)
    rate, share, largest, spread, start, below = _float64(given)
    gap = largest - below
    bound = (share + (spread / (start * gap)).log() / rate).clamp(min=0)
    promised = (rate > 0) & (gap > 0) & (largest >= share)
    return _as_given(torch.where(promised, bound, math.inf), given)


def paper_violation_bound(rate, share, largest):
    """What the paper's proof of Statement 1 ends with: -ln(largest - share) / rate.

    It leaves out the overshoot of the last growth (`share` in `violation_bound`) and takes the largest value of the
    catalog although those items may be used up; both make it too small in some worlds.
    """
    given = (rate, share, largest)
    rate, share, largest = _float64(given)
    return _as_given(-(largest - share).log() / rate, given)


# --- How much relevance ----------------------------------------------------------------------------------------------


def regret_bound(duals, gained, share, *, items=None, sigma=0.0, delta=0.05) -> Tensor:
    """The most relevance a run of the printed algorithm can have lost to the best slate that meets the floor: (R,).

        OPT - ALG <= max over m in {l_min, l_max} of sum_k max(l_{k-1} r_k, m r_k)      (+ `noise_term`)

    l_min and l_max are the smallest and largest price any slot was filled at. The paper has sum_k l_{k-1} r_k alone
    (Lemma 1); what it leaves out is at most (l_max - l_min) R (1 - share / largest value).

    Why, for scores that do not move. Let S be the best slate and N the n slots whose item is not in S; the n items of
    S never shown were free at all of them, so for each slot k in N and each such item i,
    p(i) - p(j_k) <= l_{k-1} (b(j_k) - b(i)). Average over all ways to pair them, with m the mean of l_{k-1} over N:

        OPT - ALG <= sum_{k in N} l_{k-1} b(j_k) - m sum_i b(i) <= sum_{k in N} l_{k-1} r_k + m sum_{k not in N} r_k,

    the second step because S meets the floor. Slot by slot that is at most max(l_{k-1} r_k, m r_k), whichever slots
    are in N; the sum is convex in m, so one end of [l_min, l_max] is the worst. The paper compares slot k with a
    maximum over *all* items, also used ones; then every r_k counts at its own price, which is not true of shared items.
    (Pairing in any one way: the b(i) - share sum to 0 or more over the slate, so their negative parts, each at most
    share, cannot exceed R (1 - share / largest value), and prices differ by l_max - l_min at most.)

    duals: (R, K+1), l_0 ... l_K.  gained: (R, K), value taken at each slot.  share: floor / slots, number or (R,).
    items: number of items, with sigma (number or (R,)) and delta: for scores that move as in Assumption 1. Then
    `noise_term` is added, and the bound holds with probability 1 - delta. Without: for scores that do not move.

    >>> duals = torch.tensor([[1.0, 1.2, 0.7]])
    >>> regret_bound(duals, torch.tensor([[0.0, 1.0]]), 0.5)
    tensor([0.1000], dtype=torch.float64)
    """
    price, r = _run(duals, gained, share)
    ends = torch.stack([price.amin(1), price.amax(1)])[:, :, None]  # (2, R, 1)
    static = torch.maximum(price * r, ends * r).sum(2).amax(0)
    return static if items is None else static + noise_term(items, r.shape[1], sigma, delta)


def regret_bound_paper(duals, gained, share, *, rate, items=None, sigma=0.0, delta=0.05) -> Tensor:
    """Statement 2 of the paper with the constants of its proof: (R,). It can fail; `regret_bound` does not.

        (l_0 - l_K) / eta + eta K max_k(l_k) max_k(r_k^2) + 4/3 sigma K^1.5 sqrt(2 ln(2 M K / delta))

    Arguments as in `regret_bound`; rate: number or (R,). The proof needs |rate * r_k| <= 1.
    """
    _, r = _run(duals, gained, share)
    first, second = _mirror_terms(duals, r, rate)
    largest = torch.as_tensor(duals, dtype=torch.float64).amax(1) * r.square().amax(1)
    static = first + second * r.shape[1] * largest
    return static if items is None else static + paper_noise_term(items, r.shape[1], sigma, delta)


def mirror_bound(duals, gained, share, *, rate) -> Tensor:
    """The most that sum_k l_{k-1} r_k can be, whatever the scores, if |rate * r_k| <= 1: (R,).

        (l_0 - l_K) / eta + eta sum_k l_{k-1} r_k^2

    From e^-x <= 1 - x + x^2. Arguments as in `regret_bound_paper`.
    """
    price, r = _run(duals, gained, share)
    first, second = _mirror_terms(duals, r, rate)
    return first + second * (price * r.square()).sum(1)


def noise_term(items, slots, sigma, delta):
    """How much random score changes can add to the regret, with probability 1 - delta. Same kind as `sigma`.

        s (sqrt(2 ln(2N / delta)) + sqrt(2 ln(2N^2 / delta))),   s^2 = sigma^2 K (K-1) / 2,   N = M! / (M-K)!

    Along any of the N ordered slates the steps add up to a Gaussian of variance s^2; the first root bounds all N sums
    (the best slate's is one of them), the second all N^2 sums of what the algorithm passed over on its own path.
    Covers both readings of Assumption 1: one draw per slot and item, or fresh draws after every prefix.

    >>> round(noise_term(12, 4, 0.1, 0.05), 2), round(paper_noise_term(12, 4, 0.1, 0.05), 2)
    (2.89, 4.15)
    """
    paths = math.lgamma(items + 1) - math.lgamma(items - slots + 1)  # ln N
    roots = sum(math.sqrt(2 * (math.log(2 / delta) + power * paths)) for power in (1, 2))
    return sigma * (math.sqrt(slots * (slots - 1) / 2) * roots)


def paper_noise_term(items, slots, sigma, delta):
    """The paper's 4/3 sigma K^1.5 sqrt(2 ln(2 M K / delta)): a union bound over one Gaussian per slot and item.

    With fresh draws after every prefix there are exponentially many Gaussians, and the event it builds on, every score
    within sigma sqrt(k-1) sqrt(2 ln(2 M K / delta)) of where it began, is far less likely than 1 - delta.
    """
    return sigma * (4 / 3 * slots**1.5 * math.sqrt(2 * math.log(2 * items * slots / delta)))


# --- The most any slate could be worth -------------------------------------------------------------------------------


def certificate(relevance, value, *, slots, floor=None, cap=None, eligible=None) -> Tensor:
    """An upper bound on the relevance of any slate that keeps the floors and caps, for scores that do not move: (R,).

        min over l of  D(l) = (sum of the K largest p_j + l b_j) - l R

    For one objective the minimum is exact, and for 0/1 values it *is* the best slate's relevance; for several it is
    what descent reaches, a true bound all the same. -inf where an objective is out of reach: no slate is worth anything.

    relevance: (R, M).  value: (M,), (M, C) or (R, M, C).  floor, cap: number, (C,), (R, C), or (R,) if C is 1.
    eligible: (M,) or (R, M) bool.  With fewer eligible items than slots, slates of all of them are meant.

    >>> certificate([[0.9, 0.8, 0.3, 0.1]], [0, 0, 1, 1], slots=2, floor=1)
    tensor([1.2000], dtype=torch.float64)
    """
    return dual_minimum(relevance, value, slots=slots, floor=floor, cap=cap, eligible=eligible).bound


def dual_function(relevance, value, dual, *, slots, floor=None, cap=None, eligible=None) -> Tensor:
    """D(l): what the best slate is worth when missing a target is only priced, not forbidden: (R,). Never below OPT.

        D(l) = max over slates of  sum_j (p_j + sum_c l_c b_jc) a_j  -  sum_c (l_c floor_c if l_c > 0 else l_c cap_c)

    dual: as `floor`; signed, above 0 it is the price of the floor, below 0 (minus) the price of the cap.
    A price on a target that is not there gives infinity.
    """
    problem = _problem(relevance, value, slots, floor, cap, eligible)
    return _dual_value(problem, _columns(dual, problem.relevance, problem.floor.shape[1], 0.0))


class DualMinimum(NamedTuple):
    """The best certificate found and the prices that give it."""

    bound: Tensor  # (R,)
    dual: Tensor  # (R, C), signed as in `dual_function`; infinite where a target is out of reach


def dual_minimum(relevance, value, *, slots, floor=None, cap=None, eligible=None, sweeps=3, steps=60) -> DualMinimum:
    """The certificate with its prices; arguments as in `certificate`.

    Several objectives: `sweeps` rounds of exact minimisation over one price at a time, then `steps` subgradient steps,
    because one price at a time can get stuck on a kink, then one more round.
    """
    problem = _problem(relevance, value, slots, floor, cap, eligible)
    best = DualMinimum(_dual_value(problem, torch.zeros_like(problem.floor)), torch.zeros_like(problem.floor))
    several = problem.floor.shape[1] > 1
    for sweep in range(sweeps + 1 if several else 1):
        if sweep == sweeps:
            best = _subgradient(problem, best, steps)
        for c in range(problem.floor.shape[1]):
            dual = best.dual.clone()
            dual[:, c] = _best_price(problem, dual, c)
            best = _lower(best, _dual_value(problem, dual), dual)
    hopeless = _hopeless(problem)  # (R, C)
    return DualMinimum(
        best.bound.masked_fill((hopeless != 0).any(1), -math.inf),
        torch.where(hopeless != 0, hopeless * math.inf, best.dual),
    )


# --- Inside ----------------------------------------------------------------------------------------------------------


class _Problem(NamedTuple):
    relevance: Tensor  # (R, M)
    value: Tensor  # (R, M, C)
    floor: Tensor  # (R, C), -inf: none
    cap: Tensor  # (R, C), inf: none
    eligible: Tensor  # (R, M)
    slots: int


def _problem(relevance, value, slots, floor, cap, eligible) -> _Problem:
    relevance = torch.as_tensor(relevance).double()
    rows, items = relevance.shape
    eligible = torch.as_tensor(True if eligible is None else eligible, device=relevance.device).expand(rows, items)
    value = torch.as_tensor(value, device=relevance.device).double()
    value = value[:, None] if value.ndim == 1 else value
    objectives = value.shape[-1]
    return _Problem(
        relevance.masked_fill(~eligible, 0.0),  # it may be -inf there
        value.expand(rows, items, objectives),
        _columns(floor, relevance, objectives, -math.inf),
        _columns(cap, relevance, objectives, math.inf),
        eligible,
        min(slots, items),
    )


def _columns(number, relevance, objectives, absent):
    """A target or price as (R, C), where `relevance` is."""
    number = torch.as_tensor(absent if number is None else number, device=relevance.device).double()
    if number.ndim == 1 and objectives == 1:
        number = number[:, None]
    return number.expand(len(relevance), objectives)


def _top(problem, score):
    """Items (R, K) with the highest `score` (R, M), and which of them are eligible (with few, not all)."""
    items = score.masked_fill(~problem.eligible, -math.inf).topk(problem.slots).indices
    return items, problem.eligible.gather(1, items)


def _sum(number, top):
    """Sum of (R, M) numbers over the picked items: (R,)."""
    items, there = top
    return (number.gather(1, items) * there).sum(1)


def _gained(problem, top):
    return torch.stack([_sum(problem.value[:, :, c], top) for c in range(problem.value.shape[2])], 1)  # (R, C)


def _priced(problem, dual):
    return problem.relevance + torch.einsum("rmc,rc->rm", problem.value, dual)


def _dual_value(problem, dual):
    top = _top(problem, _priced(problem, dual))
    surplus = _gained(problem, top) - torch.where(dual > 0, problem.floor, problem.cap)
    return _sum(problem.relevance, top) + torch.where(dual == 0, 0.0, dual * surplus).sum(1)


def _lower(best, bound, dual):
    better = bound < best.bound
    return DualMinimum(torch.where(better, bound, best.bound), torch.where(better[:, None], dual, best.dual))


def _hopeless(problem):
    """+1 where a floor is above all a slate can collect, -1 where a cap is below the least, else 0: (R, C)."""
    signs = []
    for c in range(problem.floor.shape[1]):
        value, floor, cap = problem.value[:, :, c], problem.floor[:, c], problem.cap[:, c]
        most, least = _sum(value, _top(problem, value)), _sum(value, _top(problem, -value))
        signs.append((_snap(most - floor, floor) < 0).double() - (_snap(cap - least, cap) < 0).double())
    return torch.stack(signs, 1)


def _best_price(problem, dual, c):
    """The price of objective c that makes D least while the others stay as they are: (R,). Exact.

    D is a maximum of one line per slate (relevance + price x surplus). Keep two slates: the best at a price that is
    too low (it misses the target) and at one that is too high. Where their lines cross ask for the best slate: if it
    is no better than they are, this is the minimum; if it is, it replaces one of them.
    """
    base = _priced(problem, dual * (torch.arange(dual.shape[1], device=dual.device) != c))  # (R, M)
    value, floor, cap = problem.value[:, :, c], problem.floor[:, c], problem.cap[:, c]
    plain = _sum(value, _top(problem, base))
    # A cap is a floor on minus the value. Where nothing is missed, value and target become 0 and the price stays 0.
    sign = (plain < floor).double() - (plain > cap).double()
    target = torch.where(sign > 0, floor, torch.where(sign < 0, -cap, 0.0))
    value = value * sign[:, None]

    def line(top):
        return _sum(base, top), _snap(_sum(value, top) - target, target)

    low, low_surplus = line(_top(problem, base))
    high, high_surplus = line(_top_by_value(problem, value, base))
    best, price = low, torch.zeros_like(low)
    searching = (low_surplus < 0) & (high_surplus >= 0)
    for _ in range(100):  # each round finds a new corner of D; a handful is usual
        if not searching.any():
            break
        crossing = ((low - high) / (high_surplus - low_surplus)).clamp(min=0).where(searching, price)
        new, surplus = line(_top(problem, base + crossing[:, None] * value))
        found, known = new + crossing * surplus, low + crossing * low_surplus
        better = searching & (found < best)
        best, price = torch.where(better, found, best), torch.where(better, crossing, price)
        searching &= found > known + 1e-12 * (1 + known.abs())
        below, above = searching & (surplus < 0), searching & (surplus >= 0)
        low, low_surplus = torch.where(below, new, low), torch.where(below, surplus, low_surplus)
        high, high_surplus = torch.where(above, new, high), torch.where(above, surplus, high_surplus)
    return price * sign


def _top_by_value(problem, value, base):
    """The best slate at an infinite price: most value, among equals the highest base score."""
    by_base = base.argsort(dim=1, descending=True)
    value = value.masked_fill(~problem.eligible, -math.inf).gather(1, by_base)
    items = by_base.gather(1, value.argsort(dim=1, descending=True, stable=True))[:, : problem.slots]
    return items, problem.eligible.gather(1, items)


def _snap(surplus, target):
    """A surplus within rounding of zero is zero."""
    return torch.where(surplus.abs() <= 1e-9 * target.abs().clamp(min=1, max=1e300), 0.0, surplus)


def _subgradient(problem, best, steps):
    """Steps against the subgradient towards a value a little below the best one seen (Polyak); keeps the best."""
    dual, bound = best.dual, best.bound
    hope = 0.1 * (_dual_value(problem, torch.zeros_like(dual)) - bound) + 1e-3 * bound.abs()
    for _ in range(steps):
        gained = _gained(problem, _top(problem, _priced(problem, dual)))
        at_zero = gained.clamp(problem.floor, problem.cap)
        slope = gained - at_zero.where(dual == 0, problem.floor.where(dual > 0, problem.cap))
        step = (bound - best.bound + hope) / slope.square().sum(1).clamp(min=1e-12)
        dual = dual - step[:, None] * slope
        dual = torch.where(problem.floor.isinf(), dual.clamp(max=0), dual)
        dual = torch.where(problem.cap.isinf(), dual.clamp(min=0), dual)
        bound = _dual_value(problem, dual)
        hope = torch.where(bound < best.bound, hope, 0.8 * hope)
        best = _lower(best, bound, dual)
    return best


def _run(duals, gained, share):
    """Prices the slots were filled at (R, K), and r (R, K), in float64."""
    gained = torch.as_tensor(gained).double()
    share = torch.as_tensor(share).double()
    price = torch.as_tensor(duals).double()[:, :-1]
    return price, gained - (share[:, None] if share.ndim else share)


def _mirror_terms(duals, r, rate):
    """(l_0 - l_K) / eta and eta, both (R,), if |eta r| <= 1 everywhere."""
    duals, rate = torch.as_tensor(duals).double(), torch.as_tensor(rate).double().expand(len(r))
    largest = float((rate[:, None] * r).abs().max())
    if not largest <= 1 + 1e-12 or not bool((rate > 0).all()):
        raise ValueError(
            f"`rate` times |value - share| must be at most 1 and `rate` above 0, got {largest:.3g} and "
            f"{float(rate.min()):.3g}: the step e^-x <= 1 - x + x^2 needs it. Lower `rate` or rescale `value`; "
            "`regret_bound` has no such limit."
        )
    return (duals[:, 0] - duals[:, -1]) / rate, rate


def _float64(given):
    return [torch.as_tensor(number, dtype=torch.float64) for number in given]


def _as_given(answer, given):
    """A tensor if one was given, else an array if one was, else a float."""
    if any(isinstance(number, Tensor) for number in given):
        return answer
    return answer.numpy() if any(np.ndim(number) for number in given) else float(answer)
