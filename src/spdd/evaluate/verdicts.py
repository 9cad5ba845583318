"""What a sweep says: which families cover most on average, which keep a floor in every slate at least cost, who delivers what.

Two views of the same points, because they tell different stories:

    average     the area a family covers between consumption and the objective, whatever single slates look like
    attainment  only points at which at least `ATTAINED` of the slates hold the floor; what of consumption is left there

All intervals redraw users, the same for all families, so differences are paired (`bootstrap.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .bootstrap import Known, difference, draw_users, known, quotient
from .metrics import Ratio, measure
from .pareto import Family, ahead, hypervolumes
from .sweep import Result, Swept, together

ATTAINED = 0.95
PLANES = {"both NDCGs": ("ndcg", "objective_ndcg"), "share and NDCG": ("share", "ndcg")}
RIVALS = ("WA", "WA on probabilities", "WA, relative", "EPR", "MB-UCB", "MB-TS")
OURS_ON_AVERAGE = "SPDD over traffic"
OURS_IN_EVERY_SLATE = "SPDD by default"
METRICS = (
    "ndcg",
    "objective_ndcg",
    "precision",
    "objective_precision",
    "stream_share",
    "share",
    "attained",
    "shortfall",
)


class Area(NamedTuple):
    """How much a family covers in one plane. ahead: of the best rival, as a part of its area; None for rivals"""

    plane: str
    curve: str
    area: Known
    rival: str | None = None
    ahead: Known | None = None


class Keeper(NamedTuple):
    """The setting of a family that keeps the floor and most of consumption. kept: its consumption over others', by name"""

    curve: str
    knob: Mapping[str, float]
    metrics: dict[str, Known]
    kept: dict[str, Known]
    more: dict[str, Known]  # the same for the objective's NDCG


class Delivered(NamedTuple):
    """What was asked and what came, value per slot."""

    curve: str
    asked: float
    share: Known
    error: Known


class Verdict(NamedTuple):
    """Everything a sweep says. draws: (D, U), for whoever wants more."""

    areas: list[Area]
    keepers: list[Keeper]
    out_of_reach: list[str]  # families of which no setting keeps the floor
    delivered: list[Delivered]
    draws: np.ndarray


def verdict(swept: Swept, draws: int = 1000) -> Verdict:
    """All of it, for a sweep over `grid.points`."""
    drawn = draw_users(swept.about["users"], draws)
    keepers = {curve: keeper(swept, curve, drawn) for curve in swept.curves()}
    return Verdict(
        areas(swept, drawn),
        compared([found for found in keepers.values() if found is not None], drawn),
        [curve for curve, found in keepers.items() if found is None],
        delivered(swept, drawn),
        drawn,
    )


# ---- on average -------------------------------------------------------------------------------------------------------


def family(results: Sequence[Result], truth: Any, plane: Sequence[str]) -> Family:
    """The points of a family in a plane of two metrics. Points that differ in their seed alone are one, over all seeds."""
    found = measure(together(results), truth)
    which: dict[str, list[int]] = {}
    for n, result in enumerate(results):
        which.setdefault(str(sorted(result.record["knob"].items())), []).append(n)
    first, second = (
        Ratio(*(np.stack([part[n].mean(0) for n in which.values()]) for part in found[metric])) for metric in plane
    )
    return Family(first, second)


def areas(swept: Swept, drawn: np.ndarray) -> list[Area]:
    """Every family's area in each plane, and how far ours are ahead of the best rival."""
    found = []
    for plane, metrics in PLANES.items():
        families = {curve: family(swept.of(curve), swept.truth, metrics) for curve in swept.curves()}
        covered = hypervolumes(families, drawn)
        rivals = [curve for curve in RIVALS if curve in families]
        best = max(rivals, key=lambda curve: covered[curve].value, default=None)
        for curve, area in covered.items():
            lead = None if best is None or curve in RIVALS else ahead(families[curve], families[best], drawn)
            found.append(Area(plane, curve, area, None if lead is None else best, lead))
    return found


# ---- in every slate ---------------------------------------------------------------------------------------------------


class _Kept(NamedTuple):
    record: Mapping[str, Any]
    ratios: dict[str, Ratio]


def keeper(swept: Swept, curve: str, drawn: np.ndarray) -> _Kept | None:
    """The point of this family with most consumption, of those at which enough slates hold the floor."""
    results = [r for r in swept.of(curve) if r.record["metrics"]["attained"] >= ATTAINED]
    if not results:
        return None
    # The default is one setting, not a family to pick from: the floor that is judged is the floor that is asked.
    asked = [r for r in results if _asks(r.record)]
    best = max(asked or results, key=lambda r: r.record["metrics"]["ndcg"])
    return _Kept(best.record, measure(best.outcome, swept.truth, best.record["floor"]))


def _asks(record: Mapping[str, Any]) -> bool:
    return "asked" in record["knob"] and abs(record["knob"]["asked"] * record["slots"] - record["floor"]) < 1e-9


def compared(kept: Sequence[_Kept], drawn: np.ndarray) -> list[Keeper]:
    """Each one's metrics, and its consumption and objective beside all others', on the same users."""
    found = []
    for one in kept:
        others = [other for other in kept if other is not one]
        found.append(
            Keeper(
                one.record["curve"],
                one.record["knob"],
                {name: known(one.ratios[name], drawn) for name in METRICS if name in one.ratios},
                {o.record["curve"]: quotient(one.ratios["ndcg"], o.ratios["ndcg"], drawn) for o in others},
                {
                    o.record["curve"]: quotient(one.ratios["objective_ndcg"], o.ratios["objective_ndcg"], drawn)
                    for o in others
                },
            )
        )
    return found


# ---- what was asked ---------------------------------------------------------------------------------------------------


def delivered(swept: Swept, drawn: np.ndarray) -> list[Delivered]:
    """Delivered minus asked, for every decoder that is asked for a share."""
    found = []
    for record in swept.records:
        if "asked" not in record["knob"]:
            continue
        share = measure(swept.outcome(record), swept.truth)["share"]
        asked = record["knob"]["asked"]
        error = difference(share, Ratio(asked * share.bottom, share.bottom), drawn)
        found.append(Delivered(record["curve"], asked, known(share, drawn), error))
    return found


def nearest(swept: Swept, curve: str, share: float) -> Result:
    """The point of a family whose average share is nearest to this one."""
    return min(swept.of(curve), key=lambda r: abs(r.record["metrics"]["share"] - share))
