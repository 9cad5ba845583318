"""Which settings meet a target at least cost, found on users whose later events nobody has to keep for a verdict.

Two views of one target, value units per slate:

    "slate"    every slate should meet the floor: at least `attained` of them do (0.95), and would with other users: the lower
               end of the 95 % interval counts
    "average"  the average over all slates should be what was asked, within `tolerance` (0.01 of the largest value, per slot)

Cost is consumption lost: of all settings that meet the target, those are kept whose NDCG of consumption is within `spare` (1 %)
of the best of them, and of these the one with the highest NDCG of the objective's items is chosen. What was tried always includes
what one would have taken without any search (the rivals), so the choice is never worse than they are on the users it was made on.

The family that is searched: SPDD on each of `scales`, with a first price, a rate and a pace. In the view of slates the guard
keeps the floor and prices say where the items stand; there is nothing to gain without it, since it costs nothing where prices do
its work. In the view of averages either traffic shares one price that moves after every batch, or each slate has a price of its
own that is not guarded; the first price is steered (`control.py`) until the average is right. Prices are searched around the
*anchor* of their scale, the fixed price at which the average is what was asked, because models differ in what a nat is worth.

optuna's TPE proposes scales, rates and prices. Its study lives in memory: every proposal follows from the seed and from results,
and every result is kept on disk by the sweep, so a search that was killed is walked through again in seconds and goes on, with
the same proposals as if nothing had happened. More trials later go on in the same way.

Nothing here can see another part of the data than the bench it is given.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .bootstrap import DRAWS, Known, draw_users, known, quotient
from .control import steer
from .grid import PRINTED, aimed, weighed
from .metrics import measure, shortfall
from .sweep import Bench, Point, Swept, read, sweep

VIEWS = ("slate", "average")
SCALES = ("logit", "relative")
PRICED = {"logit": 1.0, "log_probability": 1.0, "identity": 1.0, "relative": 0.1, "sigmoid": 0.1, "probability": 0.01}
RIVALS = 6
MEASURED = ("ndcg", "objective_ndcg", "share", "attained")


GREEDY = Point("greedy", {}, "greedy")


class Target(NamedTuple):
    """What is asked. floor: value units per slate.  slots: of a slate.  users: it is judged by.  tolerance: value per slot"""

    view: str
    floor: float
    slots: int
    users: int
    attained: float = 0.95
    tolerance: float = 0.01

    @property
    def share(self) -> float:
        """Value per slot."""
        return self.floor / self.slots


class Trial(NamedTuple):
    """A setting that was tried. miss: how far from the target, 0 where it meets it.  record: the sweep's"""

    point: Point
    record: dict[str, Any]
    miss: float

    @property
    def metrics(self) -> dict[str, float]:
        return self.record["metrics"]

    @property
    def key(self) -> str:
        return self.record["key"]


class Tuned(NamedTuple):
    """What a search found.

    chosen: None where nothing that was tried meets the target; then `nearest` came nearest
    rivals: what one would have taken without a search.  searched: the rest, in order.  folder: of the sweep
    anchors: by scale, the fixed price at which the average is what was asked
    """

    target: Target
    chosen: Trial | None
    nearest: Trial
    rivals: list[Trial]
    searched: list[Trial]
    anchors: dict[str, float]
    folder: Path

    @property
    def trials(self) -> list[Trial]:
        return [*self.rivals, *self.searched]


def tune(
    bench: Bench,
    folder: str | Path,
    *,
    view: str = "slate",
    attained: float = 0.95,
    tolerance: float | None = None,
    trials: int = 40,
    seconds: float = math.inf,
    spare: float = 0.01,
    scales: Sequence[str] = SCALES,
    seed: int = 0,
    batch: int = 256,
    progress: Callable[[int], None] = lambda trials: None,
) -> Tuned:
    """The cheapest settings that meet the floor of the bench's domain.

    folder:  where the sweep keeps every point; a search found there goes on
    trials:  proposals beside the rivals.  seconds: no proposal is begun after that, except the first
    batch:   users asked together; prices shared over traffic move once a batch
    progress: told when a step is done, of `steps`
    """
    target = target_of(bench, view, attained, tolerance)
    for name, number in (("trials", trials), ("seconds", seconds), ("spare", spare)):
        if isinstance(number, bool) or not isinstance(number, int | float) or not number >= (name == "trials"):
            raise ValueError(f"`{name}` must be a number of at least {int(name == 'trials')}, got {number!r}.")
    for scale in scales:
        if scale not in PRICED:
            raise ValueError(f"`scales` must be some of {', '.join(PRICED)}, got {scale!r}.")
    began = time.monotonic()
    lab = Lab(bench, Path(folder), target, batch)
    rivals = []
    for rival in lab.rivals():
        rivals.append(rival)
        progress(1)
    searched: list[Trial] = []
    anchors: dict[str, float] = {}
    if view == "slate" or not plain_is_enough(target, lab.plain):
        for scale in scales:
            anchors[scale] = lab.anchor(scale)
            progress(1)
        study = _study(lab, anchors)
        for number in range(trials):
            if searched and time.monotonic() - began > seconds:
                break
            study.sampler = _sampler(seed, number)
            proposal = study.ask()
            found = lab.proposed(proposal, anchors)
            study.tell(proposal, found.metrics["ndcg"] if found.miss == 0 else -found.miss)
            searched.append(found)
            progress(1)
    chosen = choose([*rivals, *searched], spare)
    nearest = min([*rivals, *searched], key=lambda trial: (trial.miss, -trial.metrics["ndcg"]))
    lab.keep([*rivals, *searched])
    return Tuned(target, chosen, nearest, rivals, searched, anchors, lab.folder)


def steps(trials: int, scales: Sequence[str] = SCALES) -> int:
    """How many steps of progress a search has, at most."""
    return RIVALS + len(scales) + trials


def target_of(bench: Bench, view: str, attained: float = 0.95, tolerance: float | None = None) -> Target:
    """The target, if there are slates that meet it; a ValueError says what can be reached where there are none."""
    if view not in VIEWS:
        raise ValueError(f"`view` must be one of {', '.join(VIEWS)}, got {view!r}.")
    if not isinstance(attained, int | float) or not 0 < attained <= 1:
        raise ValueError(f"`attained` must be above 0 and at most 1, got {attained!r}. It is a share of all slates.")
    domain = bench.domain
    if tolerance is None:
        tolerance = 0.01 * float(domain.value.max())
    if not isinstance(tolerance, int | float) or not 0 < tolerance < math.inf:
        raise ValueError(f"`tolerance` must be a number above 0, got {tolerance!r}. It is value per slot.")
    target = Target(view, domain.floor, domain.slots, domain.users, float(attained), float(tolerance))
    reach = reachable(bench)
    if view == "slate":
        able = float((shortfall(reach, domain.floor) == 0).mean())
        if able < attained:
            raise ValueError(
                f"{attained:.0%} of slates should hold at least {domain.floor:g}, and at most {able:.1%} can: for the other "
                f"users there is not enough value among the items they may get (on average a slate can reach {reach.mean():.4g}). "
                f"Lower the floor, or `attained` (--attained)."
            )
    elif reach.mean() / domain.slots < target.share - tolerance:
        raise ValueError(
            f"slates should give {target.share:.4g} per slot on average, and at most {reach.mean() / domain.slots:.4g} can be "
            "reached: there is not enough value among the items users may get. Lower the target."
        )
    return target


def reachable(bench: Bench) -> np.ndarray:
    """(U,) the most value each user's slate could hold."""
    domain = bench.domain
    if domain.reachable is not None:
        return domain.reachable
    best = -np.sort(-np.atleast_2d(domain.value), axis=1)[:, : domain.slots].sum(1)
    return np.broadcast_to(best, (domain.users,))


def miss(target: Target, metrics: Mapping[str, float], plain: Mapping[str, float]) -> float:
    """How far metrics are from the target; 0 where they meet it. plain: what the model gives by itself

    A floor on the average is not missed upwards by what the model gives by itself.
    """
    if target.view == "slate":
        return max(0.0, target.attained - metrics["attained"] + _half(metrics["attained"], target.users))
    low, high = target.share - target.tolerance, max(target.share, plain["share"]) + target.tolerance
    return max(0.0, low - metrics["share"], metrics["share"] - high)


def _half(share: float, users: int) -> float:
    """Half the 95 % interval of a share of users; nothing where all do, as where a guard sees to it."""
    return 1.96 * math.sqrt(share * (1 - share) / users)


def plain_is_enough(target: Target, plain: Mapping[str, float]) -> bool:
    """Whether the model's own slates give the average that is asked."""
    return target.view == "average" and plain["share"] >= target.share - target.tolerance


def choose(trials: Sequence[Trial], spare: float = 0.01) -> Trial | None:
    """The trial that meets the target at least cost; None where none does. spare: see this file's first lines"""
    good = [trial for trial in trials if trial.miss == 0]
    if not good:
        return None
    least = (1 - spare) * max(trial.metrics["ndcg"] for trial in good)
    good = [trial for trial in good if trial.metrics["ndcg"] >= least]
    return max(good, key=lambda trial: (trial.metrics["objective_ndcg"] or 0.0, trial.metrics["ndcg"]))


# ---- trying things ------------------------------------------------------------------------------------------------------


class Lab:
    """Tries points one by one, each through the sweep, which keeps it."""

    def __init__(self, bench: Bench, folder: Path, target: Target, batch: int):
        self.bench, self.folder, self.target, self.batch = bench, folder, target, batch
        self.plain = self.record(GREEDY)["metrics"]  # what the model gives by itself

    def record(self, point: Point) -> dict[str, Any]:
        return sweep(lambda: self.bench, [point], self.folder, batch=self.batch)[0]

    def tried(self, point: Point) -> Trial:
        record = self.record(point)
        return Trial(point, record, miss(self.target, record["metrics"], self.plain))

    def keep(self, trials: Sequence[Trial]) -> None:
        """The records of these trials, once each, as the sweep's last run."""
        points = list({trial.key: trial.point for trial in trials}.values())
        sweep(lambda: self.bench, points, self.folder, batch=self.batch)

    def rivals(self) -> Iterator[Trial]:
        """What one would take without a search."""
        share, slots = self.target.share, self.target.slots
        yield self.tried(GREEDY)
        yield self.tried(aimed("must-fill", share, slots, "must-fill"))
        yield self.weight()
        yield self.tried(aimed("SPDD as printed", share, slots, "spdd", **PRINTED))
        yield self.tried(aimed("SPDD by default", share, slots, "spdd"))
        yield self.tried(aimed("SPDD over traffic", share, slots, "spdd", per="traffic"))

    def weight(self) -> Trial:
        """The weighted average whose weight meets the target most closely: the rival that is hardest to beat."""
        wanted, metric, near = self.target.share, "share", self.target.tolerance / 2
        if self.target.view == "slate":
            near, metric = (1 - self.target.attained) / 8 or 1e-3, "attained"
            wanted = min(self.target.attained + _half(self.target.attained, self.target.users) + near, 1.0)

        def point(log_price: float) -> Point:
            return weighed("WA", _round(math.exp(log_price)), "wa")

        found = _steered(lambda z: self.record(point(z))["metrics"][metric], wanted, 1.0, near)
        tried = [self.tried(point(z)) for z in found.tried]
        return min(tried, key=lambda trial: (trial.miss, -trial.metrics["ndcg"]))

    def anchor(self, scale: str) -> float:
        """The fixed price on this scale at which the average is what was asked, or a little above what there is anyway."""
        most = float(reachable(self.bench).mean()) / self.target.slots
        plain = self.plain["share"]
        wanted = max(self.target.share, plain + 0.1 * (most - plain))

        def delivered(log_price: float) -> float:
            return self.record(weighed(f"WA, {scale}", _round(math.exp(log_price)), "wa", scale=scale))["metrics"][
                "share"
            ]

        near = max(self.target.tolerance / 2, 0.02 * wanted)
        return _round(math.exp(_steered(delivered, wanted, PRICED[scale], near).knob))

    def proposed(self, proposal: Any, anchors: Mapping[str, float]) -> Trial:
        """What optuna asks for, tried."""
        scale = proposal.suggest_categorical("scale", list(anchors))
        anchor = anchors[scale]
        if self.target.view == "slate":
            price = _round(anchor * proposal.suggest_float("price", 0.02, 4.0, log=True))
            settings = {
                "scale": scale,
                "start": price,
                "rate": _round(proposal.suggest_float("rate", 0.0, 1.0)),
                "pace": proposal.suggest_categorical("pace", ["even", "remaining"]),
            }
            return self.tried(self._point({"price": price}, settings))
        if proposal.suggest_categorical("per", ["traffic", "slate"]) == "traffic":
            rate = _round(proposal.suggest_float("traffic_rate", 0.02, 1.0, log=True))
            settings = {"scale": scale, "start": anchor, "traffic_rate": rate}
            return self.tried(self._point({"price": anchor, "rate": rate}, settings, per="traffic"))
        rate = _round(proposal.suggest_float("rate", 0.02, 1.0, log=True))
        pace = proposal.suggest_categorical("pace", ["even", "remaining"])

        def point(log_price: float) -> Point:
            price = _round(math.exp(log_price))
            settings = {"scale": scale, "start": price, "rate": rate, "pace": pace, "guard": False}
            return self._point({"price": price}, settings)

        share, near = self.target.share, self.target.tolerance / 2
        found = _steered(lambda z: self.record(point(z))["metrics"]["share"], share, anchor, near, most=6)
        return self.tried(point(found.knob))

    def _point(self, knob: Mapping[str, float], settings: Mapping[str, Any], per: str = "slate") -> Point:
        return Point("tried", knob, "spdd", settings, {"at_least": self.target.floor, "per": per})


def _study(lab: Lab, anchors: Mapping[str, float]) -> Any:
    """A study in memory, which first proposes what is known to be good: moderate prices, slow or not moving at all."""
    optuna = _optuna()
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(direction="maximize")
    finally:
        optuna.logging.set_verbosity(verbosity)
    scale = next(iter(anchors))
    if lab.target.view == "slate":
        for price, rate in ((0.3, 0.3), (0.3, 0.0), (1.0, 0.1), (0.05, 0.1)):
            study.enqueue_trial({"scale": scale, "price": price, "rate": rate, "pace": "even"})
    else:
        study.enqueue_trial({"scale": scale, "per": "traffic", "traffic_rate": 0.1})
        study.enqueue_trial({"scale": scale, "per": "slate", "rate": 0.1, "pace": "even"})
    return study


def _sampler(seed: int, number: int) -> Any:
    """A sampler for this trial alone, so that a proposal follows from the seed and what is known, not from who asked before."""
    return _optuna().samplers.TPESampler(seed=seed * 1_000_003 + number)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ValueError("tuning needs optuna. Install it: pip install 'spdd[tune]'.") from None
    return optuna


def _steered(delivered, wanted, price, near, most=12):
    """Over the logarithm of a price."""
    first = math.log(price)
    reach = math.log(1e4)
    return steer(
        delivered,
        wanted,
        first=first,
        low=first - reach,
        high=first + reach,
        step=math.log(2),
        tolerance=near,
        most=most,
    )


def _round(number: float) -> float:
    """Four digits: settings are read by people."""
    return float(f"{number:.4g}")


# ---- side by side -----------------------------------------------------------------------------------------------------


class Compared(NamedTuple):
    """One policy beside the chosen one, on the same users.

    metrics: each with its interval.  kept: the chosen one's consumption over this one's; None for the chosen one itself
    """

    curve: str
    key: str
    metrics: dict[str, Known]
    error: Known
    kept: Known | None


def compare(
    folder: str | Path, chosen: Point, others: Sequence[Point], bench: Bench, batch: int = 256
) -> list[Compared]:
    """The chosen policy first, then the others, on the users of this bench, with intervals over users.

    error: delivered minus asked, value per slot
    """
    points = [chosen, *(point for point in others if point != chosen)]
    records = sweep(lambda: bench, points, folder, batch=batch)
    return compared(read(folder), records)


def compared(swept: Swept, records: Sequence[Mapping[str, Any]], draws: int = DRAWS) -> list[Compared]:
    """As `compare`, of records that are there; the first is the chosen one's."""
    drawn = draw_users(swept.about["users"], draws)
    found, first = [], None
    for record in records:
        ratios = measure(swept.outcome(record), swept.truth, record["floor"])
        first = first or ratios["ndcg"]
        share = known(ratios["share"], drawn)
        asked = record["floor"] / record["slots"]
        found.append(
            Compared(
                record["curve"],
                record["key"],
                {name: known(ratios[name], drawn) for name in MEASURED},
                Known(share.value - asked, share.low - asked, share.high - asked, math.nan),
                quotient(first, ratios["ndcg"], drawn) if found else None,
            )
        )
    return found
