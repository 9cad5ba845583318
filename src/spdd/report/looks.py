"""How things look wherever they are drawn: colours the colour-blind can tell apart, a shape and a dash for each besides.

The colours are Okabe and Ito's, less their yellow, which nobody sees on white. A decoder looks the same in every figure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

INK, GREY, PALE = "#1f2328", "#59636e", "#e3e7eb"
BLACK, ORANGE, SKY, GREEN, BLUE, RED, PURPLE = (
    "#000000",
    "#d98200",
    "#4da6d9",
    "#00876a",
    "#0068a8",
    "#cf5300",
    "#b25a8e",
)

# By day -> by night. Every colour that is not here looks the same on both.
NIGHT = {
    INK: "#e6e9ec", GREY: "#a2acb6", PALE: "#343a41", BLACK: "#f4f4f4", ORANGE: "#f0a93a", SKY: "#74c1ee",
    GREEN: "#2fc29b", BLUE: "#6a9fe8", RED: "#f2803a", PURPLE: "#df93bd",
}  # fmt: skip


class Key(NamedTuple):
    """A line of a legend. shape: as vega calls it.  dash: lengths of dashes and gaps, none for a whole line"""

    label: str
    color: str
    shape: str = "circle"
    dash: tuple[int, ...] = ()


KNOWN = {
    key.label.lower(): key
    for key in (
        Key("Greedy", BLACK, "diamond"),
        Key("must-fill", PURPLE, "triangle-up", (2, 2)),
        Key("WA", RED, "square"),
        Key("WA on probabilities", RED, "cross", (6, 3)),
        Key("WA, relative", RED, "diamond", (2, 2)),
        Key("EPR", ORANGE, "triangle-down", (8, 3, 2, 3)),
        Key("MB-UCB", SKY, "triangle-left", (1, 3)),
        Key("MB-TS", GREY, "triangle-right", (1, 3)),
        Key("SPDD as printed", GREEN, "cross", (6, 3)),
        Key("SPDD as printed, relative", GREEN, "triangle-down", (2, 2)),
        Key("SPDD by default", BLUE, "circle"),
        Key("SPDD over traffic", BLUE, "diamond", (2, 2)),
        Key("SPDD over traffic, relative", SKY, "diamond", (1, 3)),
        Key("SPDD priced", BLUE, "triangle-up", (8, 3)),
        Key("SPDD priced, rate 0.1", SKY, "circle", (8, 3)),
    )
}
# For whatever else is drawn, in this order.
OTHERS = (
    (BLUE, "circle", ()),
    (RED, "square", (6, 3)),
    (GREEN, "triangle-up", (2, 2)),
    (PURPLE, "diamond", (8, 3, 2, 3)),
    (ORANGE, "triangle-down", (10, 3)),
    (SKY, "cross", (1, 3)),
    (BLACK, "triangle-left", ()),
    (GREY, "triangle-right", (4, 4)),
)


def keys_for(names: Iterable[str]) -> list[Key]:
    """A look for each name, all different: the decoder's own where it is one, else the next that is free.

    >>> [key.color for key in keys_for(["WA", "mine", "yours"])] == [RED, BLUE, GREEN]
    True
    """
    names = list(dict.fromkeys(names))
    own = [KNOWN[name.lower()] for name in names if name.lower() in KNOWN]
    colors, looks = {key.color for key in own}, {key[1:] for key in own}
    # First what shares no colour, then what differs at all, then, where there are more names than looks, again.
    free = [look for look in OTHERS if look[0] not in colors] + [
        look for look in OTHERS if look[0] in colors and look not in looks
    ]
    rest = itertools.cycle(free)
    return [KNOWN[n.lower()]._replace(label=n) if n.lower() in KNOWN else Key(n, *next(rest)) for n in names]


def themed(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A vega-lite spec with our fonts, lines and greys, where it does not say its own."""
    own = dict(spec.get("config", {}))
    own.pop("view", None)  # altair's own sizes, which stand in every chart
    return {**spec, "config": _merged(CONFIG, own)}


_AXIS = {
    "labelFontSize": 12, "titleFontSize": 12.5, "titleFontWeight": "normal", "titlePadding": 8, "labelColor": GREY, "titleColor": INK,
    "gridColor": PALE, "domain": False, "ticks": False, "labelOverlap": "greedy", "labelSeparation": 8, "labelPadding": 6,
}  # fmt: skip
CONFIG: dict[str, Any] = {
    "font": "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif",
    "background": "transparent",
    "view": {"stroke": None, "continuousHeight": 300},
    "axis": _AXIS,
    # The title of a vertical axis lies flat above it, where it can be read and takes no width.
    "axisY": {"titleAngle": 0, "titleAlign": "left", "titleAnchor": "end", "titleBaseline": "bottom", "titleX": -34, "titleY": -10, "tickCount": 6},
    "axisX": {"tickCount": 6},
    "title": {"anchor": "start", "color": INK, "fontSize": 14, "fontWeight": 600, "subtitleColor": GREY, "subtitleFontSize": 12, "offset": 12},
    "header": {"labelColor": INK, "titleColor": INK, "labelFontSize": 12},
    "legend": {"orient": "bottom", "direction": "horizontal", "columns": {"signal": "width < 400 ? 2 : 4"}, "title": None, "labelFontSize": 12,
               "labelColor": INK, "titleColor": INK, "labelLimit": 220, "symbolSize": 80, "rowPadding": 5, "columnPadding": 8},
    "range": {"category": [look[0] for look in OTHERS], "symbol": [look[1] for look in OTHERS]},
    "text": {"color": INK, "fontSize": 12},
    "rule": {"color": GREY},
    "bar": {"color": BLUE},
    "line": {"color": BLUE, "strokeWidth": 2},
    "point": {"color": BLUE, "filled": True, "size": 55, "opacity": 1},
}  # fmt: skip


def _merged(ground: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(ground)
    for name, value in over.items():
        both[name] = (
            _merged(both[name], value) if isinstance(value, dict) and isinstance(both.get(name), dict) else value
        )
    return both
