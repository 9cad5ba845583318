"""Bounds against reality: what theory promises for a model's slates, and what became of them.

One floor at a time, the printed algorithm at several rates, and our default beside it. Every promise is taken with its
constants, user by user, and laid beside what happened to that user; what each rests on is checked on the same scores.

    violation    value missing to the floor in slates decoded item by item; holds for any scores
    still        relevance lost if scores stood as they were at the first slot, where the best slate is known
    moving       relevance lost on the way, against the best slate in hindsight of the scores seen on that way

All users asked are decoded; the optimum is sought for the first `close` of them. Letters: U users, K slots, M items.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..decode.assumption import AssumptionReport, check_assumption, estimate_sigma
from ..decode.bounds import noise_term, paper_noise_term
from ..decode.proposals import proposes
from ..decode.spdd import Greedy
from ..decode.warm import is_binary
from ..objective import Objective
from ..relevance import check_scale
from .bootstrap import Known, draw_users, known
from .metrics import Ratio
from .sweep import cut
from .walks import Goal, Setting, judged, on_scale, walk

SCALES = (
    "probability",
    "relative",
)  # what is audited unless told otherwise: as printed, and where the proof has its [0, 1]
STEPS_ON = ("probability", "relative", "logit")  # where steps of scores are looked at
RATES = (0.1, 0.3, 1.0, 3.0)
DEFAULT = "SPDD by default"
LOOKED_AT = 64  # items a user's steps are judged by
NUMBERS = 6_000_000  # scores held at once: users decoded together times slots times items
SPACED, BEST = "evenly spaced", "best at the first slot"  # which items those are
BINS = np.linspace(-6, 6, 49)


class Condition(NamedTuple):
    """Something a bound rests on, and whether it is so here."""

    text: str
    holds: bool


class Bound(NamedTuple):
    """What a bound says, over users, and how it stood.

    vacuous:  share of users to whom it says nothing: no slate of any model could be worse
    idle:     share of users to whom it says no more than that a slate cannot lose more than the best one is worth
    exceeded: share of users for whom what happened is above it
    """

    name: str
    mean: Known
    largest: float
    vacuous: float
    idle: float
    exceeded: float
    conditions: tuple[Condition, ...]


class Reality(NamedTuple):
    """What happened, over users. worst: what no slate could exceed: the floor, or slots times the spread of relevance"""

    mean: Known
    largest: float
    users: int
    worst: float
    bounds: tuple[Bound, ...]


class Case(NamedTuple):
    """One floor decoded one way. U users had enough items and could reach the floor.

    decoder:  "SPDD as printed" or "SPDD by default".  scale: what relevance is measured on, and the printed one decodes on
    missed:   share of slates that end short.  shortfall: value missing to the floor, against the violation bounds
    still, moving: relevance lost, against the regret bounds; `best` is what the best slate is worth there
    exact:    mean regret against the optimum found by integer program (still) or by trying all slates (moving)
    """

    goal: str
    floor: float
    decoder: str
    scale: str
    rate: float | None
    users: int
    missed: Known
    shortfall: Reality
    still: Reality
    still_best: Known
    still_exact: Known
    moving: Reality
    moving_best: Known
    moving_exact: Known


class Sample(NamedTuple):
    """Some items' steps. share: (B,) of the steps in each bin of `BINS`, in units of the user's own step size"""

    items: str
    report: AssumptionReport
    share: tuple[float, ...]


class Steps(NamedTuple):
    """How scores move from slot to slot on one scale, decoded plainly. Sigmas are means over users.

    spread: largest relevance less smallest at the first slot, mean.  noise: what the steps add to a regret bound, mean
    """

    scale: str
    plain: Known
    robust: Known
    largest: float
    spread: Known
    noise: Known
    paper_noise: Known
    samples: tuple[Sample, ...]

    @property
    def holds(self) -> bool:
        return all(s.report.holds for s in self.samples)


class Audit(NamedTuple):
    """left_out: by goal, users whose slates cannot be filled or cannot reach the floor.  sampling: what was not looked at in full"""

    users: int
    items: int
    slots: int
    close: int
    delta: float
    steps: tuple[Steps, ...]
    cases: tuple[Case, ...]
    left_out: dict[str, int]
    sampling: tuple[str, ...]


def settings(scales: Sequence[str], rates: Sequence[float]) -> list[Setting]:
    return [
        setting
        for scale in scales
        for setting in (*(Setting("SPDD as printed", scale, rate) for rate in rates), Setting(DEFAULT, scale))
    ]


def audit(
    model: Any,
    asked: Callable[[slice], Any],
    users: int,
    goals: Sequence[Goal],
    *,
    slots: int = 10,
    rates: Sequence[float] = RATES,
    scales: Sequence[str] = SCALES,
    close: int = 50,
    delta: float = 0.05,
    seed: int = 0,
    progress: Callable[[int], None] = lambda users: None,
) -> Audit:
    """The audit of a model that gives scores: `start`, `logits`, `advance`.

    asked:  rows (a slice) -> (histories, exclude) of these users
    rates, scales: of the printed algorithm.  close: users whose best slate is sought.  delta: how unlikely noise terms may fail
    seed:   of the draws of users for intervals
    """
    goals = [_checked(goal, slots) for goal in goals]
    _check(model, users, goals, slots, rates, scales)
    items = len(goals[0].value)
    chunks = list(cut(users, max(1, min(256, NUMBERS // (slots * items)))))
    walks = [*dict.fromkeys([*STEPS_ON, *scales])]
    steps, sigma, count = _steps(model, asked, chunks, walks, slots, delta, seed, progress)
    cases, left_out = [], {}
    for goal in goals:
        for setting in settings(scales, rates):
            parts = []
            for rows in chunks:
                near = max(0, min(rows.stop, close) - rows.start)
                parts.append(judged(model, asked(rows), goal, setting, slots, sigma[setting.scale][rows], delta, near))
                progress(rows.stop - rows.start)
            found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            left_out[f"{goal.name} >= {goal.floor:g}"] = int((~found["kept"]).sum())
            broken = next(s for s in steps if s.scale == setting.scale)
            cases.append(_case(goal, setting, found, broken.holds, slots, seed))
    return Audit(
        users, items, slots, min(close, users), delta, tuple(steps), tuple(cases), left_out,
        _sampling(items, count, min(close, users)),
    )  # fmt: skip


# ---- how scores move ------------------------------------------------------------------------------------------------


def _steps(model, asked, chunks, scales, slots, delta, seed, progress):
    """Steps on each scale, every user's sigma by scale (U,), and how many items users may have (U,)."""
    sizes: dict[str, list[Tensor]] = {scale: [] for scale in scales}  # (plain, robust, spread) of each user
    samples: dict[tuple[str, str], list[Tensor]] = {}
    count = []
    for rows in chunks:
        histories, exclude = asked(rows)
        seen = walk(Greedy(slots=slots), model, histories, exclude)
        open_, items = seen.open, seen.logits.shape[2]
        count += open_.sum(1).tolist()
        first = seen.logits[:, 0].masked_fill(~open_, -torch.inf)
        best = first.topk(min(LOOKED_AT, items), 1).indices
        spaced = torch.linspace(0, items - 1, min(LOOKED_AT, items)).round().long().unique()
        for scale in scales:
            scores = on_scale(scale, seen.logits, open_)
            for own, may in zip(scores, open_, strict=True):
                found = estimate_sigma(own[None, :, may])
                spread = own[0, may].amax() - own[0, may].amin()
                sizes[scale].append(torch.stack([found.plain[0], found.robust[0], spread]))
            samples.setdefault((scale, SPACED), []).append(scores[:, :, spaced])
            ranked = scores.gather(2, best[:, None].expand(-1, slots, -1))
            samples.setdefault((scale, BEST), []).append(ranked)
        progress(rows.stop - rows.start)
    draws = draw_users(len(count), seed=seed)
    looked = {name: torch.cat(parts) for name, parts in samples.items()}
    few = min(LOOKED_AT, *count)
    names = [BEST] if in_pools(np.array(count), items) else [SPACED, BEST]
    found = []
    for scale in scales:
        plain, robust, spread = torch.stack(sizes[scale], 1).numpy()
        noise, paper_noise = (term(max(count), slots, plain, delta) for term in (noise_term, paper_noise_term))
        checked = [_sample(n, looked[scale, n] if n == SPACED else looked[scale, n][:, :, :few]) for n in names]
        found.append(
            Steps(
                scale, _known(plain, draws), _known(robust, draws), float(plain.max()), _known(spread, draws),
                _known(noise, draws), _known(paper_noise, draws), tuple(checked),
            )
        )  # fmt: skip
    return found, {s: torch.stack(sizes[s], 1)[0] for s in scales}, np.array(count)


def in_pools(count: np.ndarray, items: int) -> bool:
    """Whether users choose from small pools, so that most items have no scores of their own. count: (U,) of a user's items"""
    return count.mean() < items / 2


def _sample(name: str, scores: Tensor) -> Sample:
    """What steps of these items (U, K, N) look like."""
    change = scores.diff(dim=1)
    size = change.square().mean((1, 2), keepdim=True).sqrt()
    z = (change / size)[size[:, 0, 0] > 0].flatten().numpy()
    share = np.histogram(z.clip(BINS[0], BINS[-1]), BINS)[0] / max(len(z), 1)  # what lies outside is in the last bins
    return Sample(name, check_assumption(scores), tuple(share.tolist()))


# ---- over users -----------------------------------------------------------------------------------------------------


def _case(goal: Goal, setting: Setting, found, assumed: bool, slots, seed) -> Case:
    """Numbers per user become means with intervals, and bounds are held against what happened."""
    kept = found.pop("kept")
    found = {name: x[kept] for name, x in found.items()}
    users = int(kept.sum())
    if not users:
        raise ValueError(
            f"no user can get {slots} items that reach the floor {goal.floor:g} of '{goal.name}'. Lower the floor."
        )
    draws = draw_users(users, seed=seed)
    printed = setting.rate is not None
    unit = Condition("relevance in [0, 1]", bool(found["unit"].all()))
    worst = slots * (1.0 if unit.holds else float(found["spread"].max()))

    def reality(name, worst, names, judged=None):
        real = found[name]
        judged = real if judged is None else judged
        # Relevance in [0, 1] is never below 0, so a slate cannot lose more than the best is worth.
        most = found[f"{name} best"] if f"{name} best" in found and unit.holds else np.full(users, worst)
        bounds = [_bound(label, found[column], judged, worst, most, draws, told) for label, column, told in names]
        return Reality(_known(real, draws), _largest(real), int(np.isfinite(real).sum()), worst, tuple(bounds))

    left = Condition("items of the largest value do not run out", bool(found["lasting"].all()))
    still = Condition("scores that stand still", True)
    gaussian = Condition("Assumption 1", assumed)
    shortfalls, stills, movings = [], [], []
    if printed:
        small = Condition("|rate (value - share)| <= 1", bool((found["step"] <= 1).all()))
        # Of the paper's proofs: a slot is compared with items that are gone (docs/guarantees.md), which data cannot mend.
        reuse = Condition("an item may be shown again", False)
        first = Condition("first price 1", True)
        shortfalls = [
            ("paper", "violation paper", (unit, first, left, Condition("the price stops before its last step", False))),
            ("ours", "violation ours", (unit,)),
            ("ours, as seen", "violation seen", ()),
        ]
        stills = [("paper", "still paper", (first, small, reuse)), ("ours", "still ours", (still,))]
        movings = [("paper", "moving paper", (first, small, reuse, gaussian)), ("ours", "moving ours", (gaussian,))]
    # The certificate is the optimum for 0/1 values; for others only the integer program says whether a bound is exceeded.
    judged = found["still"] if is_binary(torch.as_tensor(goal.value)) else found["still exact"]
    tried = np.where(np.isnan(found["moving exact"]), found["moving"], found["moving exact"])
    return Case(
        goal.name, goal.floor, setting.name, setting.scale, setting.rate, users,
        _known((found["shortfall"] > 0).astype(float), draws),
        reality("shortfall", goal.floor, shortfalls),
        reality("still", worst, stills, judged),
        _known(found["still best"], draws), _known(found["still exact"], draws),
        reality("moving", worst, movings, tried),
        _known(found["moving best"], draws), _known(found["moving exact"], draws),
    )  # fmt: skip


def _bound(name, said, real, worst, most, draws, conditions) -> Bound:
    """most: (U,) what a user can lose at the very most, nan where that is not known"""
    there = np.isfinite(real) & ~np.isnan(said)
    over = real[there] > said[there] + 1e-6 * (1 + np.abs(said[there]))
    known_most = ~np.isnan(most)
    vacuous, idle = (np.isnan(said) | (said >= limit - 1e-9) for limit in (worst, most))
    return Bound(
        name, _known(said, draws), _largest(said), float(vacuous.mean()),
        float(idle[known_most].mean()) if known_most.any() else math.nan,
        float(over.mean()) if there.any() else math.nan, conditions,
    )  # fmt: skip


def _known(number: np.ndarray, draws: np.ndarray) -> Known:
    """The mean over users who have a number, with its interval."""
    number = np.asarray(number, dtype=np.float64)
    there = ~np.isnan(number)
    if not there.any() or np.isinf(number[there]).any():
        return Known(math.inf if there.any() else math.nan, math.nan, math.nan, math.nan)
    return known(Ratio(np.where(there, number, 0), there.astype(float)), draws)


def _largest(number) -> float:
    number = number[~np.isnan(number)]
    return float(number.max()) if len(number) else math.nan


# ---- the front door -------------------------------------------------------------------------------------------------


def _checked(goal: Goal, slots) -> Goal:
    """The goal with its value as plain numbers, if it can be one."""
    Objective(goal.name, goal.value, at_least=goal.floor)
    value = np.asarray(goal.value, dtype=np.float64)
    if value.ndim != 1:
        raise ValueError(f"`value` of '{goal.name}' must be one number for each item, got shape {value.shape}.")
    if not goal.floor > 0:
        raise ValueError(
            f"the floor of '{goal.name}' must be above 0, got {goal.floor:g}: theory speaks about floors. "
            "Give one like 'new>=3'."
        )
    return Goal(goal.name, value, float(goal.floor))


def _check(model, users, goals, slots, rates, scales) -> None:
    if proposes(model):
        raise ValueError(
            f"a model that proposes items ({type(model).__name__}) never scores all of them, and bounds speak of all: what "
            "was not proposed could be anything. Audit a model that gives scores (sasrec, transact); what slates of this "
            "one came to, `spdd slate` says."
        )
    if not goals or not users:
        raise ValueError("an audit needs a floor and a user at least. Give one like 'new>=3'; see --part and --users.")
    if len({len(goal.value) for goal in goals}) > 1:
        raise ValueError("all goals of an audit must have values for the same items.")
    if slots < 2:
        raise ValueError(f"`slots` must be at least 2, or no score has a step to look at; got {slots}.")
    if slots > len(goals[0].value):
        raise ValueError(f"`slots` must not exceed the {len(goals[0].value)} items there are, got {slots}.")
    for scale in scales:
        check_scale(scale)
    if not rates or not scales or not all(0 < rate < math.inf for rate in rates):
        raise ValueError(
            f"`rates` must be numbers above 0, one at least, got {list(rates)}: with no rate nothing is promised."
        )


def _sampling(items, count, close) -> tuple[str, ...]:
    """What was looked at in full and what was not, in words."""
    spaced = "" if in_pools(count, items) else f"{min(LOOKED_AT, items)} items evenly spaced over the catalogue, and "
    return (
        f"Sigma, spreads, violation and certificates: all {len(count):,} users, every item a user may have.",
        f"Assumption 1 and the distribution of steps: {spaced}each user's {min(LOOKED_AT, *count)} best items at the first slot.",
        f"Best slates, by integer program and in hindsight: the first {close:,} users.",
    )
