"""An audit in words, tables and figures: what bounds promised by rate, beside what became of slates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..evaluate.audit import BINS, DEFAULT, Audit, Bound, Case, Reality, Steps
from ..evaluate.bootstrap import Known
from .looks import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, RED, Key
from .page import Bullets, Column, Figure, Note, Page, Section, Table

REAL = Key("happened, mean", BLACK, "circle")
LARGEST = Key("happened, largest", GREY, "diamond", (2, 2))
LOOKS = {
    "paper": Key("the paper's bound", RED, "square", (6, 3)),
    "ours": Key("our bound", BLUE, "triangle-up", (8, 3)),
    "ours, as seen": Key("our bound, as seen", GREEN, "cross", (2, 2)),
}
WORST, BEST = (
    Key("no slate could be worse", ORANGE, "stroke"),
    Key("what the best slate is worth", PURPLE, "stroke", (8, 3, 2, 3)),
)
SUBJECTS = {
    "shortfall": "Value missing to the floor",
    "still": "Relevance lost, scores standing still",
    "moving": "Relevance lost on the way",
}
OF = {
    "shortfall": "value units missing to the floor in a slate decoded item by item",
    "still": "relevance lost to the best slate with the floor, had all scores stayed as they were at the first slot",
    "moving": "relevance lost to the best slate with the floor, of the scores seen on the way",
}


def page(audit: Audit, name: str, colophon: Mapping[str, str | Sequence[str]]) -> Page:
    """name: of the model"""
    goals = [*dict.fromkeys((c.goal, c.floor) for c in audit.cases)]
    sections = [_steps(audit.steps)]
    for number, goal in enumerate(goals):
        cases = [c for c in audit.cases if (c.goal, c.floor) == goal]
        sections.append(_goal(cases, number, audit))
    sections.append(_conditions(audit))
    lead = [
        f"What theory promises for slates of {audit.slots} out of {audit.items:,} items, and what became of those of "
        f"{audit.users:,} users. Intervals are 95 %, users are drawn again.",
        Bullets(verdicts(audit)),
    ]
    return Page(f"Bounds against reality: {name}", lead, sections, colophon)


def verdicts(audit: Audit) -> list[str]:
    """What is to be said, a sentence each."""
    said = []
    for steps in audit.steps:
        broken = sorted({c.name for s in steps.samples for c in s.report.checks if not c.holds})
        told = f"does not hold ({', '.join(broken)})" if broken else "is not contradicted"
        said.append(
            f"Assumption 1 {told} on the {steps.scale} scale; sigma {steps.plain.value:.3g}, robust {steps.robust.value:.2g}."
        )
    printed = [c for c in audit.cases if c.decoder != DEFAULT]
    scales = [*dict.fromkeys(c.scale for c in printed)]
    for subject, title in SUBJECTS.items():
        bounds = [(c.scale, b) for c in printed for b in getattr(c, subject).bounds]
        for name in dict.fromkeys(b.name for _, b in bounds):
            own = [(scale, b) for scale, b in bounds if b.name == name]
            over = [b.exceeded for _, b in own if not math.isnan(b.exceeded)]
            said.append(
                f"{title}: {LOOKS[name].label} is {f'exceeded for {_range(over)}' if over else 'held against none'} of users, vacuous for "
                + ", ".join(_idle([b for on, b in own if on == scale], subject, scale) for scale in scales) + "."
            )  # fmt: skip
    for goal, left in audit.left_out.items():
        if left:
            said.append(f"{goal}: {left:,} of {audit.users:,} users cannot get a slate that keeps it and are left out.")
    return said


def plain(value: Any) -> Any:
    """The audit, or any part of it, as JSON can hold it: fields by name, null for what is not known."""
    if hasattr(value, "_asdict"):
        return {name: plain(x) for name, x in value._asdict().items()}
    if isinstance(value, Mapping):
        return {name: plain(x) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [plain(x) for x in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "infinite"
    return value


def _idle(bounds: Sequence[Bound], subject: str, scale: str) -> str:
    """For how many users bounds on one scale say nothing; where it is known, no more than what the best slate is worth."""
    shares = [b.vacuous if subject == "shortfall" or math.isnan(b.idle) else b.idle for b in bounds]
    return f"{_range(shares)} ({scale})"


def _range(shares: Sequence[float]) -> str:
    low, high = (f"{100 * x:.3g} %" for x in (min(shares), max(shares)))
    return low if low == high else f"{low} to {high}"


# ---- steps ----------------------------------------------------------------------------------------------------------


def _steps(steps: Sequence[Steps]) -> Section:
    keys = [
        Key("steps of items evenly spaced", BLUE, "square"),
        Key("steps of the best items", RED, "circle", (6, 3)),
        Key("Gaussian, as Assumption 1 has it", GREY, "stroke", (2, 2)),
    ]
    sizes = [[s.scale, s.plain, s.robust, s.largest, s.spread, s.noise, s.paper_noise] for s in steps]
    checks = [
        [s.scale, sample.items, c.name, c.effect, c.limit, c.p_value, "holds" if c.holds else "broken"]
        for s in steps
        for sample in s.samples
        for c in sample.report.checks
    ]
    return Section(
        "How scores move",
        [
            "Assumption 1 says: from slot to slot every item's score takes an independent Gaussian step, of one size per user. "
            "Here the model is decoded plainly, and its steps are looked at on several scales.",
            Figure(
                "steps", "Steps from slot to slot, and the Gaussian they should follow", [_density(s, keys) for s in steps],
                "Share of steps by their size, in units of the user's own sigma, with the Gaussian of the same variance",
                "Share of steps in bins of a quarter sigma, on a logarithmic axis; what lies beyond 6 sigma is in the last bins.", keys,
            ),
            Table(
                "sigma", "The size of steps, mean over users",
                ["scale", Column("sigma", ".3g"), Column("robust sigma", ".3g"), Column("largest sigma", ".3g"),
                 Column("spread of relevance", ".3g"), Column("noise term, ours", ".3g"), Column("noise term, paper's", ".3g")],
                sizes,
                "Robust sigma comes from the median step; it equals sigma where steps are Gaussian. Noise terms are what the steps add "
                "to a regret bound.",
            ),
            Table(
                "assumption", "Assumption 1, one check a line",
                ["scale", "items", "check", Column("effect", ".2g"), Column("limit", ".2g"), Column("p", ".2g"), "verdict"], checks,
                "A check is broken if its p is below 0.005 and its effect above its limit.",
            ),
        ],
    )  # fmt: skip


def _density(steps: Steps, keys: Sequence[Key]):
    import altair

    middle, wide = (BINS[1:] + BINS[:-1]) / 2, BINS[1] - BINS[0]
    looks = {"evenly spaced": keys[0], "best at the first slot": keys[1]}
    rows = [
        {"z": float(z), "share": share, "name": looks[s.items].label}
        for s in steps.samples
        for z, share in zip(middle, s.share, strict=True)
        if share > 0
    ]
    bell = [
        {"z": float(z), "share": wide * math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi), "name": keys[2].label}
        for z in middle
    ]
    least = 1e-6  # what is drawn; the Gaussian is below it from 5 sigma on
    return _lines(
        altair, [r for r in rows + bell if r["share"] >= least], "z", "share", keys, title=f"{steps.scale} scale",
        x=altair.X("z:Q", title="step / sigma"), y=altair.Y("share:Q", title="share of steps", scale=altair.Scale(type="log"), axis=altair.Axis(format=".0e", tickCount=6)),
        marks=False,
    )  # fmt: skip


# ---- bounds ---------------------------------------------------------------------------------------------------------


def _goal(cases: Sequence[Case], number: int, audit: Audit) -> Section:
    goal, floor = cases[0].goal, cases[0].floor
    parts: list[Any] = [f"{cases[0].users:,} users; the best slate is sought for the first {audit.close:,}."]
    for subject, title in SUBJECTS.items():
        printed = [c for c in cases if c.decoder != DEFAULT]
        names = [b.name for b in getattr(printed[0], subject).bounds]
        keys = [REAL, LARGEST, *(LOOKS[n] for n in names), WORST, *([BEST] if subject != "shortfall" else [])]
        scales = [*dict.fromkeys(c.scale for c in printed)]
        panels = [_by_rate([c for c in printed if c.scale == scale], subject, keys, scale) for scale in scales]
        parts.append(
            Figure(
                f"{subject}-{number}", title, panels,
                f"{title} by rate: what happened and what was promised",
                f"The printed algorithm by its rate, a panel a scale: {OF[subject]}. Bounds are means over users.", keys,
            )
        )  # fmt: skip
        parts += [_happened(cases, subject, number), _promised(cases, subject, number)]
    return Section(f"{goal} ≥ {floor:g}", parts)


def _by_rate(cases: Sequence[Case], subject: str, keys: Sequence[Key], scale: str):
    import altair

    rows, bars = [], []

    def add(rate, name, y):
        if math.isfinite(y):
            rows.append({"rate": rate, "y": y, "name": name})

    for c in cases:
        reality = getattr(c, subject)
        add(c.rate, REAL.label, reality.mean.value)
        add(c.rate, LARGEST.label, reality.largest)
        add(c.rate, WORST.label, reality.worst)
        if subject != "shortfall":
            add(c.rate, BEST.label, getattr(c, f"{subject}_best").value)
        if math.isfinite(reality.mean.low):
            bars.append({"rate": c.rate, "low": reality.mean.low, "high": reality.mean.high, "name": REAL.label})
        for b in reality.bounds:
            add(c.rate, LOOKS[b.name].label, b.mean.value)
    low = min(abs(r["y"]) for r in rows if r["y"]) if any(r["y"] for r in rows) else 1.0
    return _lines(
        altair, rows, "rate", "y", keys, title=f"{scale} scale",
        x=altair.X("rate:Q", title="rate", scale=altair.Scale(type="log", padding=12), axis=altair.Axis(values=[c.rate or 0.0 for c in cases], format="~r")),
        y=altair.Y("y:Q", title="value units" if subject == "shortfall" else "relevance", scale=altair.Scale(type="symlog", constant=max(low, 1e-3)),
                   axis=altair.Axis(tickCount=5, format="~r")),
        bars=bars,
    )  # fmt: skip


def _lines(altair, rows, across, up, keys, *, title, x, y, marks=True, bars=()):
    """Lines with the keys' looks."""
    looks = {key.label: key for key in keys}
    for row in [*rows, *bars]:
        row["color"], row["shape"] = looks[row["name"]].color, looks[row["name"]].shape
    color, shape = altair.Color("color:N", scale=None, legend=None), altair.Shape("shape:N", scale=None, legend=None)
    layers = [
        altair.Chart(altair.Data(values=[r for r in rows if r["name"] == key.label]))
        .mark_line(strokeWidth=2, strokeDash=list(key.dash) or [1, 0])
        .encode(x=x, y=y, color=color, order=f"{across}:Q")
        for key in keys
    ]
    if bars:
        ends = altair.Chart(altair.Data(values=list(bars)))
        layers.append(ends.mark_rule(strokeWidth=2).encode(x=x, y=altair.Y("low:Q"), y2="high:Q", color=color))
    if marks:
        dots = altair.Chart(altair.Data(values=rows)).mark_point(filled=True, size=60, opacity=1)
        layers.append(dots.encode(x=x, y=y, color=color, shape=shape, tooltip=["name:N", f"{across}:Q", f"{up}:Q"]))
    return altair.layer(*layers).properties(title=title)


def _happened(cases: Sequence[Case], subject: str, number: int) -> Table:
    shortfall = subject == "shortfall"
    columns: list[Column | str] = [
        "decoder",
        "scale",
        Column("rate", "g"),
        Column("happened", ".3g"),
        Column("largest", ".3g"),
    ]
    columns += (
        [Column("missed", ".1%")]
        if shortfall
        else [Column("best is worth", ".3g"), Column("to the exact optimum", ".3g")]
    )
    rows = []
    for c in cases:
        reality: Reality = getattr(c, subject)
        more = [c.missed] if shortfall else [getattr(c, f"{subject}_{of}") for of in ("best", "exact")]
        rows.append([c.decoder, c.scale, c.rate, reality.mean, reality.largest, *more])
    return Table(f"{subject}-{number}", f"{SUBJECTS[subject]}: what happened", columns, rows, f"Of {OF[subject]}.")


def _promised(cases: Sequence[Case], subject: str, number: int) -> Table:
    shortfall = subject == "shortfall"
    columns: list[Column | str] = ["bound", "scale", Column("rate", "g"), Column("says", ".3g"), Column("largest", ".3g"), Column("vacuous", ".0%")]  # fmt: skip
    columns += [] if shortfall else [Column("above the best", ".0%")]
    columns += [Column("exceeded", ".1%")]
    rows = []
    for c in cases:
        for b in getattr(c, subject).bounds:
            says: Any = "infinite" if b.mean.value == math.inf else b.mean
            largest: Any = "infinite" if b.largest == math.inf else b.largest
            idle = [] if shortfall else [b.idle]
            rows.append([LOOKS[b.name].label, c.scale, c.rate, says, largest, b.vacuous, *idle, b.exceeded])
    worst = f"the floor, {cases[0].floor:g}" if shortfall else "slots times the spread of relevance"
    told = f"Shares of users. Vacuous: no slate could be worse, {worst}. Exceeded: what happened is above the bound."
    if not shortfall:
        told += " Above the best: the bound says no more than that a slate cannot lose what the best one is worth."
    return Table(f"{subject}-bounds-{number}", f"{SUBJECTS[subject]}: what was promised", columns, rows, told)


def _conditions(audit: Audit) -> Section:
    """Which conditions of each bound hold, over all rates: 'no' where one case breaks it."""
    rows = []
    printed = [c for c in audit.cases if c.decoder != DEFAULT]
    for subject, title in SUBJECTS.items():
        for scale in dict.fromkeys(c.scale for c in printed):
            own: list[Bound] = [b for c in printed if c.scale == scale for b in getattr(c, subject).bounds]
            for name in dict.fromkeys(b.name for b in own):
                told = [condition for b in own if b.name == name for condition in b.conditions]
                for text in dict.fromkeys(c.text for c in told):
                    kept = sum(c.holds for c in told if c.text == text)
                    every = sum(c.text == text for c in told)
                    verdict = "yes" if kept == every else "no" if not kept else f"in {kept} of {every} cases"
                    rows.append([title, LOOKS[name].label, scale, text, verdict])
    return Section(
        "What the bounds rest on",
        [
            Table("conditions", "Conditions", ["bound on", "whose", "scale", "it needs", "holds here"], rows),
            Note(
                "A bound whose conditions do not hold may be right by luck: that it was not exceeded here proves nothing. Two conditions "
                "of the paper's proofs can hold for no slate of distinct items; docs/guarantees.md shows worlds where its bounds fail."
            ),
            "What was looked at:",
            Bullets(list(audit.sampling)),
        ],
    )


def numbers(known: Known) -> str:
    """A mean for one screen; what is rounding is nothing."""
    if abs(known.value) < 1e-9:
        return "0"
    return "infinite" if known.value == math.inf else "-" if math.isnan(known.value) else f"{known.value:.3g}"
