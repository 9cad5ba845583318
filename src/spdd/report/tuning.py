"""The page of a search: what was tried on validation users, what was chosen and why, and how it does on test users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..evaluate.tune import Compared, Trial, Tuned
from .looks import BLUE, GREY, RED, Key
from .page import Column, Figure, Page, Section, Table

CHOSEN = Key("chosen", RED, "diamond")
USUAL = Key("usual settings", BLUE, "square")
TRIED = Key("tried by the search", GREY, "circle")


def page(found: Tuned, test: Sequence[Compared], *, wish: str, made: Mapping[str, Any]) -> Page:
    """found: the search, on validation users.  test: the chosen settings first, then the usual ones, on test users"""
    return Page(
        f"Settings for: {wish}",
        list(said(found, test)),
        [
            Section("The search", [trials_figure(found), trials_table(found)]),
            Section("On other users", [test_table(test)]),
        ],
        made,
    )


def said(found: Tuned, test: Sequence[Compared]) -> list[str]:
    """What was chosen and what it costs, in a few sentences."""
    target, taken = found.target, found.chosen or found.nearest
    lines = [_target(found)]
    if found.chosen is None:
        lines.append(f"**Nothing that was tried meets it** ({missed(found)}). The nearest: {words(taken)}.")
    else:
        lines.append(
            f"Chosen of {len(found.trials)} settings, as it costs least: **{words(taken)}**. On the {target.users:,} validation "
            f"users: {_metrics(taken.metrics)}."
        )
    ours = test[0].metrics
    lines.append(
        f"On test users, whom the search never saw: NDCG of consumption {ours['ndcg']}, of the objective's items "
        f"{ours['objective_ndcg']}, average share {ours['share']}, slates that hold the floor {ours['attained']}."
    )
    return lines


def missed(found: Tuned) -> str:
    """By how much the nearest misses the target."""
    near, target = found.nearest.metrics, found.target
    if target.view == "slate":
        return (
            f"{near['attained']:.1%} of slates hold the floor, {target.attained:.0%} should, with the interval in mind"
        )
    return f"the average share is {near['share']:.3f}, {target.share:.3f} was asked"


def words(trial: Trial) -> str:
    """A setting as people would say it."""
    point = trial.point
    given = [f"{name} {_short(x)}" for name, x in point.settings.items()]
    given += [f"{name.replace('_', ' ')} {_short(x)}" for name, x in point.objective.items()]
    name = point.decoder if point.curve == "tried" else point.curve
    return f"{name} ({', '.join(given)})" if given else name


def trials_figure(found: Tuned) -> Figure:
    """What every setting kept of consumption and gave the objective; only those that meet the target are filled."""
    import altair

    taken = found.chosen or found.nearest
    rivals = {trial.key for trial in found.rivals}
    rows = []
    for trial in found.trials:
        key = CHOSEN if trial.key == taken.key else USUAL if trial.key in rivals else TRIED
        rows.append(
            {"x": trial.metrics["objective_ndcg"], "y": trial.metrics["ndcg"], "at": words(trial), "name": key.label,
             "color": key.color, "shape": key.shape, "met": trial.miss == 0}
        )  # fmt: skip
    rows.sort(key=lambda row: row["name"] == CHOSEN.label)  # on top
    panel = (
        altair.Chart(altair.Data(values=rows))
        .mark_point(size=70, strokeWidth=1.8, opacity=1)
        .encode(
            x=altair.X("x:Q", title="NDCG of the objective's items", scale=altair.Scale(zero=False)),
            y=altair.Y("y:Q", title="NDCG of consumption", scale=altair.Scale(zero=False)),
            color=altair.Color("color:N", scale=None, legend=None),
            shape=altair.Shape("shape:N", scale=None, legend=None),
            fill=altair.condition("datum.met", altair.Fill("color:N", scale=None, legend=None), altair.value("transparent")),
            tooltip=["name:N", "at:N", "x:Q", "y:Q"],
        )
        .properties(height=380)
    )  # fmt: skip
    return Figure(
        "trials",
        "Everything that was tried",
        [panel],
        "Consumption against what the objective gets, a mark per setting; the chosen one is a red diamond.",
        "Filled marks meet the target, hollow ones do not. On validation users.",
        [CHOSEN, USUAL, TRIED],
    )


def trials_table(found: Tuned) -> Table:
    taken = found.chosen or found.nearest
    unique = {trial.key: trial for trial in found.trials}.values()
    ranked = sorted(unique, key=lambda trial: (trial.miss, -trial.metrics["ndcg"]))
    return Table(
        "trials",
        "All settings, those that meet the target first",
        [
            "setting",
            Column("NDCG, consumption", ".4f"),
            Column("NDCG, objective", ".4f"),
            Column("average share", ".3f"),
            Column("slates with the floor", ".1%"),
            Column("off the target", ".3f"),
        ],
        [
            [words(t), *(t.metrics[m] for m in ("ndcg", "objective_ndcg", "share", "attained")), float(t.miss)]
            for t in ranked
        ],
        "Of those that meet the target and keep 99 % of the best one's consumption, the one that gives the objective most is "
        "chosen.",
        {n for n, trial in enumerate(ranked) if trial.key == taken.key},
    )


def test_table(test: Sequence[Compared]) -> Table:
    return Table(
        "test",
        "The chosen settings and the usual ones on test users, 95 % intervals over users",
        [
            "decoder",
            Column("NDCG, consumption", ".4f"),
            Column("NDCG, objective", ".4f"),
            Column("average share", ".3f"),
            Column("slates with the floor", ".1%"),
            Column("delivered - asked", "+.3f"),
            Column("chosen's consumption / this one's", ".2f"),
        ],
        [
            [
                "chosen" if one.kept is None else one.curve,
                *(one.metrics[m] for m in ("ndcg", "objective_ndcg", "share", "attained")),
                one.error,
                one.kept,
            ]
            for one in test
        ],
        "The search saw none of what these users did later.",
        {0},
    )


def _target(found: Tuned) -> str:
    target = found.target
    if target.view == "slate":
        return f"Asked: at least {target.floor:g} of {target.slots} in at least {target.attained:.0%} of slates."
    return f"Asked: {target.share:.3g} per slot on average over all slates, within {target.tolerance:g}."


def _metrics(metrics: Mapping[str, float]) -> str:
    return (
        f"NDCG of consumption {metrics['ndcg']:.4f}, of the objective's items {metrics['objective_ndcg'] or 0:.4f}, average "
        f"share {metrics['share']:.3f}, slates that hold the floor {metrics['attained']:.1%}"
    )


def _short(given: Any) -> str:
    return f"{given:.3g}" if isinstance(given, float) else str(given)
