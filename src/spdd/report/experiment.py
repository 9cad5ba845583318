"""An experiment as a page: whether it can be believed, by how much arms differ, and what it could have found.

Plain data in (`evaluate.ab.Experiment`), a `Page` out. Where the truth is known, because the experiment was simulated, it
stands beside every estimate; nothing else changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..evaluate import sequential
from ..evaluate.ab import Experiment
from ..evaluate.experiment import CORRECTIONS, Analysis, Estimate
from .looks import BLACK, GREY, Key, keys_for
from .page import Bullets, Column, Figure, Note, Page, Section, Table

TRUTH = Key("what it does to everybody", BLACK, "diamond")


def experiment_page(result: Experiment, title: str, made: Mapping[str, str | Sequence[str]]) -> Page:
    """made: the colophon"""
    sections = [
        Section("Can it be believed?", [*_trust(result), assignment_table(result)]),
        Section("By how much arms differ", [lifts_figure(result), results_table(result), *_reading(result)]),
    ]
    if len(result.looks) > 1:
        sections.append(Section("Looking before the end", [looks_figure(result), _guard(result)]))
    if result.plan:
        sections.append(Section("What it could have found", [plan_table(result)]))
    return Page(
        title, [" ".join(findings(result))], [*sections, Section("How it is analysed", [Bullets(method(result))])], made
    )


# ---- in words -------------------------------------------------------------------------------------------------------


def findings(result: Experiment) -> list[str]:
    """What the experiment found, a sentence each."""
    seen = result.analysis
    if seen.ratio.wrong:
        return [
            "**The arms do not have the users they should have, so nothing here can be believed.** Find the fault first."
        ]
    found = [e for e in seen.estimates if e.adjusted < seen.alpha]
    said = [f"{_count(len(seen.estimates), 'comparison')}, {len(found) or 'none'} found after the correction."]
    if result.aa:
        said.append("All arms have the same policy, so whatever is found is an error.")
    for e in found:
        change = f"{e.lift.value:+.1%}" if not math.isnan(e.lift.value) else f"{e.difference.value:+.4g}"
        said.append(f"**{e.arm}** changes {e.metric} by {change} (adjusted p {_p(e.adjusted)}).")
    if result.truth:
        held = sum(_covers(result, e) for e in seen.estimates)
        said.append(f"The truth, known here, lies in {held} of {len(seen.estimates)} intervals.")
    return said


def method(result: Experiment) -> list[str]:
    """How numbers came about, a line each."""
    seen = result.analysis
    before = [m.name for m in result.metrics if m.top_before]
    lines = [
        f"An interval holds what it is about in {1 - seen.alpha:.0%} of experiments like this one; users are its unit.",
        "Ratio metrics are sums over all users of an arm, divided; their variance comes by the delta method.",
        f"Correction: {CORRECTIONS[seen.correction]}.",
    ]
    if result.salt:
        lines.insert(
            0, f"Users have their arm from the sha256 of the salt `{result.salt}` and their name, once and for all."
        )
    if before and any(e.variance != 1 for e in seen.estimates):
        lines.append(f"What users did before takes out what made them differ anyway (CUPED): {', '.join(before)}.")
    if seen.planned is not None:
        lines.append(
            "Intervals hold at every look together (a normal mixture), so looking often costs width, not truth."
        )
    else:
        lines.append(
            "One look, at the end: who looks earlier and stops at a finding errs far more often. To look earlier: `--peek`."
        )
    lines += [f"{name}: {about}." for name, about in result.about.items() if about]
    return lines


def _trust(result: Experiment) -> list[Any]:
    ratio = result.analysis.ratio
    if ratio.wrong:
        return [
            Note(
                f"Users are not divided as they should be: a division as uneven comes once in {1 / max(ratio.p_value, 1e-12):,.0f} "
                "experiments by chance. Some are lost or counted twice in one arm, and who is lost is seldom like the others."
            )
        ]
    return [f"Users are divided as they should be (chi-square over all arms, p {_p(ratio.p_value)})."]


def _reading(result: Experiment) -> list[Any]:
    if not result.truth:
        return []
    return [
        "The truth is what everybody would have done, had everybody been in the arm, and everybody in the control, on the "
        "same days. An experiment sees each user in one arm only; here the others were played out as well."
    ]


def _guard(result: Experiment) -> str:
    seen, planned = result.analysis, result.analysis.planned or 1
    wide = sequential.width(sum(seen.ratio.users), planned, seen.alpha) / 1.96
    return (
        f"Each look counts the users who had come by then. At the last one intervals are {wide:.2f} times as wide as those of an "
        "experiment that is looked at once."
    )


# ---- tables ---------------------------------------------------------------------------------------------------------


def assignment_table(result: Experiment) -> Table:
    ratio = result.analysis.ratio
    columns: list[Column | str] = ["arm", "users", Column("due", ",.1f")]
    rows: list[list[Any]] = [[*row] for row in zip(result.arms, ratio.users, ratio.due, strict=True)]
    if result.shown:
        columns += [
            Column("slates a user", ".2f"),
            Column("wanted items a slate", ".2f"),
            Column("slates with the floor", ".1%"),
        ]
        for row in rows:
            row += result.shown[row[0]][1:]
    return Table("arms", "Who saw what", columns, rows)


def results_table(result: Experiment) -> Table:
    columns = [
        "arm", "metric", Column("control", ".4g"), Column("level", ".4g"), Column("difference", "+.3g"), Column("lift", "+.2%"),
Column("adjusted p", ".3f"), Column("variance left", ".0%"),
    ]  # fmt: skip
    if result.truth:
        columns += [Column("true lift", "+.2%"), "held"]
    rows, strong = [], set()
    for number, e in enumerate(result.analysis.estimates):
        row: list[Any] = [e.arm, e.metric, e.control, e.level, e.difference, e.lift, e.adjusted, e.variance]
        if result.truth:
            row += [result.truth[e.arm, e.metric].lift, "yes" if _covers(result, e) else "no"]
        rows.append(row)
        if e.adjusted < result.analysis.alpha:
            strong.add(number)
    about = "; ".join(f"{m.name}: {m.about}" for m in result.metrics if m.about)
    text = (
        "Bold: found after the correction. Levels are adjusted for what users did before, where that is known, so the control's "
        "differ a little from pair to pair. "
    )
    if result.truth:
        text += "Held: whether the interval of the lift holds the true one. "
    return Table("results", "Every arm against the control", columns, rows, text + about + "." * bool(about), strong)


def plan_table(result: Experiment) -> Table:
    rows = [[p.metric, p.found, p.needed or None] for p in result.plan]
    users, lift = result.plan[0].users, result.plan[0].lift
    return Table(
        "plan",
        f"With {users:,} users in {len(result.arms)} arms",
        ["metric", Column("least lift found", ".1%"), f"users needed for a lift of {100 * lift:g} %"],
        rows,
        "Found in 80 of 100 experiments, after the correction, if users vary as they did before; said before the experiment.",
    )


# ---- figures --------------------------------------------------------------------------------------------------------


def lifts_figure(result: Experiment) -> Figure:
    """A panel per metric: each arm's lift with its interval and, where it is known, the truth."""
    keys = {key.label: key for key in keys_for(result.arms[1:])}
    panels, told = [], []
    for metric in result.metrics:
        found = [e for e in result.analysis.estimates if e.metric == metric.name and not math.isnan(e.lift.low)]
        if found:
            panels.append(_lifts(result, metric.name, found, keys))
            told += [
                f"{e.arm}, {e.metric}: {e.lift.value:+.1%} ({e.lift.low:+.1%} to {e.lift.high:+.1%})" for e in found
            ]
    if not panels:
        panels.append(_nothing())
    legend = [*keys.values(), *([TRUTH] if result.truth else [])]
    text = "Lines: the intervals of the lift over the control. The vertical line is no effect; scales differ."
    return Figure("lifts", "Lift over the control", panels, "; ".join(told) or "no lifts", text, legend)


def looks_figure(result: Experiment) -> Figure:
    """A panel per metric: how the interval of the first arm's lift narrows as users come."""
    keys = {key.label: key for key in keys_for(result.arms[1:])}
    panels = [_looks(result.looks, metric.name, keys) for metric in result.metrics]
    return Figure(
        "looks",
        "Lift over the control, as users come",
        panels,
        "intervals of each arm's lift at every look, narrowing",
        "Bands: intervals that hold at all looks together.",
        list(keys.values()),
    )


def _lifts(result: Experiment, metric: str, found: Sequence[Estimate], keys: Mapping[str, Key]) -> Any:
    altair = _altair()
    rows = []
    for e in found:
        key = keys[e.arm]
        row = {
            "arm": e.arm,
            "lift": e.lift.value,
            "low": e.lift.low,
            "high": e.lift.high,
            "color": key.color,
            "shape": key.shape,
        }
        rows.append(row | ({"truth": result.truth[e.arm, metric].lift} if result.truth else {}))
    base = altair.Chart(altair.Data(values=rows)).encode(
        y=altair.Y("arm:N", title=None, sort=[e.arm for e in found]),
        color=altair.Color("color:N", scale=None, legend=None),
    )
    form = ".0%" if max(abs(x) for e in found for x in e.lift[1:3]) > 0.1 else ".1%"
    x = altair.X(
        "low:Q", title="lift", axis=altair.Axis(format=form, tickCount=4), scale=altair.Scale(zero=True, nice=True)
    )
    layers = [
        altair.Chart(altair.Data(values=[{"at": 0}])).mark_rule(color=GREY, strokeDash=[3, 3]).encode(x="at:Q"),
        base.mark_rule(strokeWidth=3).encode(x=x, x2="high:Q"),
        base.mark_point(size=90).encode(x="lift:Q", shape=altair.Shape("shape:N", scale=None, legend=None)),
    ]
    if result.truth:
        layers.append(
            base.mark_point(size=45, color=BLACK, shape="diamond", yOffset=-13).encode(
                x="truth:Q", color=altair.value(BLACK)
            )
        )
    return altair.layer(*layers).properties(title=metric, height=46 * len(found) + 20)


def _looks(seen: Sequence[Analysis], metric: str, keys: Mapping[str, Key]) -> Any:
    altair = _altair()
    rows = [
        {"users": sum(look.ratio.users), "arm": e.arm, "lift": e.lift.value, "low": e.lift.low, "high": e.lift.high, "color": keys[e.arm].color}
        for look in seen
        for e in look.estimates
        if e.metric == metric and not math.isnan(e.lift.low)
    ]  # fmt: skip
    base = altair.Chart(altair.Data(values=rows)).encode(
        x=altair.X("users:Q", title="users so far", axis=altair.Axis(tickCount=4)),
        color=altair.Color("color:N", scale=None, legend=None),
        detail="arm:N",
    )
    y = altair.Y("low:Q", title="lift", axis=altair.Axis(format=".0%"))
    zero = altair.Chart(altair.Data(values=[{"at": 0}])).mark_rule(color=GREY, strokeDash=[3, 3]).encode(y="at:Q")
    band = base.mark_area(opacity=0.2).encode(y=y, y2="high:Q")
    return altair.layer(band, zero, base.mark_line(point=True).encode(y="lift:Q")).properties(title=metric, height=220)


def _nothing() -> Any:
    altair = _altair()
    return altair.Chart(altair.Data(values=[{"text": "no lift can be told"}])).mark_text().encode(text="text:N")


def _altair() -> Any:
    try:
        import altair
    except ModuleNotFoundError:
        raise ModuleNotFoundError("pictures need altair and vl-convert: pip install 'spdd[report]'") from None
    return altair


# ---- small things ---------------------------------------------------------------------------------------------------


def _covers(result: Experiment, e: Estimate) -> bool:
    true = result.truth[e.arm, e.metric]
    if math.isnan(e.lift.low):
        return e.difference.low <= true.difference <= e.difference.high or e.difference.value == true.difference
    return e.lift.low <= true.lift <= e.lift.high


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"
