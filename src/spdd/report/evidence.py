"""A sweep as the sections of a page: fronts in both views, slot by slot, rates, what was asked and what came.

The words are made from the numbers, so they say what was measured, whoever it favours. Needs the extra `report`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..evaluate.bootstrap import DRAWS, Known
from ..evaluate.positions import by_position
from ..evaluate.sweep import Swept
from ..evaluate.verdicts import (
    ATTAINED,
    OURS_IN_EVERY_SLATE,
    OURS_ON_AVERAGE,
    Keeper,
    Verdict,
    nearest,
    verdict,
)
from .looks import GREY, Key, keys_for
from .page import Column, Figure, Part, Section, Table

# The families a figure shows: more lines than these and nobody can follow one.
SHOWN = (
    "greedy",
    "must-fill",
    "WA",
    "WA, relative",
    "EPR",
    "MB-UCB",
    "MB-TS",
    "SPDD as printed",
    "SPDD by default",
    "SPDD over traffic",
    "SPDD priced",
    "SPDD priced, rate 0.1",
)
SLOTS_SHOWN = ("greedy", "must-fill", "WA", "SPDD as printed", "SPDD by default", "SPDD over traffic")
HOW = (
    "A slate is judged by what its user did later. Two views, as they tell different stories: **on average** any slate may miss "
    "as long as all together deliver; **in every slate** the floor binds each one. Intervals are of 95 % and redraw users, "
    "the same for every decoder."
)
TITLES = {
    "ndcg": "NDCG of consumption",
    "objective_ndcg": "NDCG of the objective's items",
    "precision": "precision of consumption",
    "objective_precision": "precision of the objective's items",
    "stream_share": "objective's share of what was consumed",
    "share": "average share of the slots",
    "attained": "share of slates that hold the floor",
    "consumption": "users who consumed what stands there",
}


def sections(swept: Swept, rates: Swept | None = None, *, objective: str, draws: int = DRAWS) -> list[Section]:
    """Everything about one domain. rates: a sweep over `grid.rates`.  objective: what it is, in words"""
    found = verdict(swept, draws)
    name, slug = swept.about["name"], _slug(swept.about["name"])
    parts: list[Part] = [
        _about(swept, objective),
        fronts(swept, f"{slug}-fronts"),
        *said(swept, found),
        table_of_areas(found, f"{slug}-areas"),
        attainment(swept, f"{slug}-attainment"),
        table_of_keepers(found, swept, f"{slug}-keepers"),
        positions(swept, found, f"{slug}-positions"),
    ]
    if rates is not None:
        parts.append(rate_fronts(rates, f"{slug}-rates"))
    parts += [control(found, f"{slug}-control"), table_of_control(found, f"{slug}-asked")]
    return [Section(name, parts)]


def said(swept: Swept, found: Verdict) -> list[Part]:
    """What the numbers say, in a few sentences."""
    lines: list[Part] = []
    for area in found.areas:
        if area.curve == OURS_ON_AVERAGE and area.ahead is not None:
            lines.append(
                f"**On average** ({area.plane}): {OURS_ON_AVERAGE} covers {_against(area.ahead)} than the best rival, "
                f"{area.rival}."
            )
    ours = next((k for k in found.keepers if k.curve == OURS_IN_EVERY_SLATE), None)
    if ours is not None:
        for rival in ("WA", "WA, relative", "SPDD as printed", "must-fill"):
            if rival in ours.kept:
                lines.append(
                    f"**In every slate**: {OURS_IN_EVERY_SLATE} keeps {_times(ours.kept[rival])} of the consumption and "
                    f"{_times(ours.more[rival])} of the objective's NDCG of {rival} (the best of the settings tried that hold the "
                    f"floor of {swept.about['floor']:g} in at least {ATTAINED:.0%} of slates)."
                )
    if found.out_of_reach:
        lines.append(f"No setting tried holds the floor so often: {', '.join(found.out_of_reach)}.")
    return lines


# ---- figures ----------------------------------------------------------------------------------------------------------


def fronts(swept: Swept, name: str) -> Figure:
    """The paper's figure 2: what is consumed against what the objective gets."""
    keys = _keys(swept, SHOWN)
    planes = (
        ("objective_ndcg", "ndcg"),
        ("objective_precision", "precision"),
        ("stream_share", "ndcg"),
        ("share", "ndcg"),
    )
    return Figure(
        name,
        f"What the objective costs on average: {swept.about['name']}",
        [_plane(swept, keys, x, y) for x, y in planes],
        "Consumption falls as the objective's share rises, for every decoder; lines further up and to the right are better.",
        f"Each mark is a decoder at one setting, over {swept.about['users']:,} users. Further up and to the right is better.",
        keys,
    )


def attainment(swept: Swept, name: str) -> Figure:
    """The other view: slates that hold the floor, each by itself."""
    keys = _keys(swept, SHOWN)
    return Figure(
        name,
        f"What a floor in every slate costs: {swept.about['name']}",
        [_plane(swept, keys, "attained", "ndcg"), _plane(swept, keys, "attained", "objective_ndcg")],
        "Consumption against the share of slates that hold the floor; decoders with a guard stand at 100 %.",
        f"The floor is {swept.about['floor']:g} of {swept.about['slots']} slots. Marks at the right edge keep it in every slate "
        "that can hold it.",
        keys,
    )


def positions(swept: Swept, found: Verdict, name: str) -> Figure:
    """The paper's figure 3: slot by slot, at the settings that come nearest to the share that is asked."""
    altair = _altair()
    keys = _keys(swept, SLOTS_SHOWN)
    share = swept.about["floor"] / swept.about["slots"]
    rows = []
    for key in keys:
        result = nearest(swept, key.label, share)
        each = by_position(result.outcome, found.draws)
        for slot in range(swept.about["slots"]):
            row: dict[str, Any] = {"name": key.label, "slot": slot + 1}
            for what in ("share", "consumption"):
                row |= {what if end == "value" else f"{what} {end}": each[what][end][slot] for end in each[what]}
            rows.append(row)
    panels = []
    for what, title in (("share", "share of the objective"), ("consumption", TITLES["consumption"])):
        x = altair.X("slot:O", title="slot", axis=altair.Axis(labelAngle=0))
        base = altair.Chart(altair.Data(values=rows)).encode(x=x, **_looks(altair, keys))
        line = base.mark_line(strokeWidth=2).encode(
            y=altair.Y(f"{what}:Q", title=title, axis=altair.Axis(format="%")), strokeDash=_dash(altair, keys)
        )
        marks = base.mark_point(filled=True, size=45, opacity=1).encode(y=f"{what}:Q", shape=_shape(altair, keys))
        panels.append(altair.layer(line, marks).properties(height=280))
    return Figure(
        name,
        f"Slot by slot: {swept.about['name']}",
        panels,
        "Left, which slots the objective gets; right, how many users consumed what stands in each slot.",
        f"Each decoder at the setting whose average share is nearest to {share:.0%}: "
        + ", ".join(f"{k.label} {nearest(swept, k.label, share).record['metrics']['share']:.0%}" for k in keys)
        + ".",
        keys,
    )


def rate_fronts(swept: Swept, name: str) -> Figure:
    """The paper's figure 5: slow and fast prices, without a guard."""
    panels, every = [], []
    for scale in ("relative", "logit"):
        names = [curve for curve in swept.curves() if curve.endswith(scale)]
        keys = keys_for(names)
        every += keys
        panels.append(_plane(swept, keys, "share", "ndcg", f"{scale} scale"))
    return Figure(
        name,
        f"Slow prices and fast ones: {swept.about['name']}",
        panels,
        "Consumption against the average share for slow and fast rates, on two scales.",
        "No guard, first price 1: a target is asked, the rate decides how much of it comes. Lines end where 80 % was asked.",
        every,
    )


def control(found: Verdict, name: str) -> Figure:
    """What came against what was asked."""
    altair = _altair()
    keys = keys_for(dict.fromkeys(d.curve for d in found.delivered))
    rows = [
        {"name": d.curve, "asked": d.asked, "came": d.share.value, "low": d.share.low, "high": d.share.high}
        for d in found.delivered
    ]
    x = altair.X("asked:Q", title="share asked for", axis=altair.Axis(format="%"))
    y = altair.Y("came:Q", title="share delivered", axis=altair.Axis(format="%"))
    base = altair.Chart(altair.Data(values=rows)).encode(x=x, y=y, **_looks(altair, keys))
    same = altair.Chart(altair.Data(values=[{"at": 0}, {"at": 1}])).mark_line(color=GREY, strokeWidth=1)
    panel = altair.layer(
        same.encode(x=altair.X("at:Q"), y=altair.Y("at:Q")),
        base.mark_line(strokeWidth=2).encode(strokeDash=_dash(altair, keys)),
        base.mark_point(filled=True, size=45, opacity=1).encode(shape=_shape(altair, keys)),
    ).properties(height=320)
    return Figure(
        name,
        "Asked and delivered",
        [panel],
        "The delivered share against the asked one, a line per decoder; on the diagonal they are the same.",
        "On the grey line a decoder delivers what it is asked for. Floors in every slate may only be exceeded: what a model "
        "gives by itself is not taken away.",
        keys,
    )


def _plane(swept: Swept, keys: Sequence[Key], x: str, y: str, title: str = "") -> Any:
    """Points of every family in a plane of two metrics, joined in the order of their knob."""
    altair = _altair()
    rows = []
    for key in keys:
        records = [r for r in swept.records if r["curve"] == key.label and r["seed"] == _first_seed(swept, key.label)]
        for order, record in enumerate(sorted(records, key=lambda r: (r["metrics"][x] or 0, -(r["metrics"][y] or 0)))):
            at = ", ".join(f"{name} {value:g}" for name, value in record["knob"].items())
            rows.append(
                {"name": key.label, "x": record["metrics"][x], "y": record["metrics"][y], "order": order, "at": at}
            )
    across = altair.X(
        "x:Q", title=TITLES[x], axis=altair.Axis(format=_form(x)), scale=altair.Scale(zero=False, nice=True)
    )
    up = altair.Y("y:Q", title=TITLES[y], axis=altair.Axis(format=_form(y)), scale=altair.Scale(zero=False))
    base = altair.Chart(altair.Data(values=rows)).encode(
        x=across, y=up, tooltip=["name:N", "at:N", "x:Q", "y:Q"], **_looks(altair, keys)
    )
    return altair.layer(
        base.mark_line(strokeWidth=1.8, opacity=0.85).encode(order="order:Q", strokeDash=_dash(altair, keys)),
        base.mark_point(filled=True, size=45, opacity=1).encode(shape=_shape(altair, keys)),
    ).properties(height=320, **({"title": title} if title else {}))


# ---- tables -----------------------------------------------------------------------------------------------------------


def table_of_areas(found: Verdict, name: str) -> Table:
    rows, strong = [], set()
    for area in found.areas:
        if area.curve == OURS_ON_AVERAGE:
            strong.add(len(rows))
        rows.append([area.curve, area.plane, area.area, area.ahead])
    return Table(
        name,
        "Area under each family's front (hypervolume from 0), 95 % intervals over users",
        ["decoder", "plane", Column("area", ".5f"), Column("ahead of the best rival", "+.1%")],
        rows,
        "Ahead: of the largest area among WA, EPR, MB-UCB and MB-TS, as a part of it, on the same users.",
        strong,
    )


def table_of_keepers(found: Verdict, swept: Swept, name: str) -> Table:
    rows, strong = [], set()
    for n, one in enumerate(sorted(found.keepers, key=lambda k: -k.metrics["ndcg"].value)):
        if one.curve == OURS_IN_EVERY_SLATE:
            strong.add(n)
        metrics = one.metrics
        rows.append(
            [
                one.curve,
                _knob(one),
                metrics["attained"],
                metrics["ndcg"],
                metrics["objective_ndcg"],
                metrics["share"],
                one.kept.get("WA"),
            ]
        )
    return Table(
        name,
        f"The best setting of each family at which {ATTAINED:.0%} of slates or more hold {swept.about['floor']:g} of {swept.about['slots']}",
        [
            "decoder",
            "setting",
            Column("slates with it", ".1%"),
            Column("NDCG, consumption", ".4f"),
            Column("NDCG, objective", ".4f"),
            Column("average share", ".1%"),
            Column("consumption / WA's", ".2f"),
        ],
        rows,
        "Best: most consumption. Families that are asked for a floor stand at that floor." + _unreached(found),
        strong,
    )


def table_of_control(found: Verdict, name: str) -> Table:
    asked = sorted({d.asked for d in found.delivered})
    curves = list(dict.fromkeys(d.curve for d in found.delivered))
    error = {(d.curve, d.asked): d.error for d in found.delivered}
    return Table(
        name,
        "Delivered minus asked, share of the slots",
        ["decoder", *(Column(f"{a:.0%}", "+.3f") for a in asked)],
        [[c, *(error.get((c, a)) and error[c, a].value for a in asked)] for c in curves],
        "Over the same users. A floor in every slate cannot be missed by a slate that could hold it, and is exceeded by those "
        "that hold more by themselves.",
    )


def _unreached(found: Verdict) -> str:
    return f" No setting holds it: {', '.join(found.out_of_reach)}." if found.out_of_reach else ""


# ---- small things -----------------------------------------------------------------------------------------------------


def _about(swept: Swept, objective: str) -> Part:
    about = swept.about
    greedy = _greedy(swept)
    return (
        f"{about['users']:,} users, slates of {about['slots']}, objective: {objective}. By itself the model gives it "
        f"{greedy['share']:.1%} of the slots, and {greedy['attained']:.1%} of slates hold {about['floor']:g}; its NDCG of "
        f"consumption is {greedy['ndcg']:.4f}."
    )


def _greedy(swept: Swept) -> Mapping[str, float]:
    return next(r for r in swept.records if r["curve"] == "greedy")["metrics"]


def _keys(swept: Swept, names: Sequence[str]) -> list[Key]:
    there = swept.curves()
    return keys_for([name for name in names if name in there])


def _first_seed(swept: Swept, curve: str) -> int:
    return next(r["seed"] for r in swept.records if r["curve"] == curve)


def _looks(altair: Any, keys: Sequence[Key]) -> dict[str, Any]:
    scale = altair.Scale(domain=[k.label for k in keys], range=[k.color for k in keys])
    return {"color": altair.Color("name:N", scale=scale, legend=None)}


def _dash(altair: Any, keys: Sequence[Key]) -> Any:
    scale = altair.Scale(domain=[k.label for k in keys], range=[list(k.dash) or [1, 0] for k in keys])
    return altair.StrokeDash("name:N", scale=scale, legend=None)


def _shape(altair: Any, keys: Sequence[Key]) -> Any:
    scale = altair.Scale(domain=[k.label for k in keys], range=[k.shape for k in keys])
    return altair.Shape("name:N", scale=scale, legend=None)


def _form(metric: str) -> str:
    """How an axis writes a metric: shares in per cent, precisions with all the digits they have."""
    return "%" if metric in ("share", "attained", "stream_share") else ".2%" if "precision" in metric else ".3f"


def _knob(one: Keeper) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in one.knob.items()) or "–"


def _against(ahead: Known) -> str:
    """ "3.2 % more (1.0 % to 5.1 %)", of a part"""
    word = "more" if ahead.value >= 0 else "less"
    return f"{abs(ahead.value):.1%} {word} ({ahead.low:+.1%} to {ahead.high:+.1%})"


def _times(part: Known) -> str:
    return f"{part.value:.2f} times ({part.low:.2f} to {part.high:.2f})"


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in text.lower()).strip("-")


def _altair() -> Any:
    import altair

    return altair
