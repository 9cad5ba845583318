"""The picture of what decoders trade: panels with one vertical axis, sweeps as lines, single decoders as dots.

Labels stand at what they name, so that nobody has to match colours with a legend. Colours are of Okabe and Ito's set,
which the colour-blind can tell apart, and every line has dots of its own shape besides. Needs the extra `report`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

WIDTH, HEIGHT = 520, 460  # of a panel, in pixels
LETTERS = 12  # their height
INK, GREY, PALE = "#222222", "#5f5f5f", "#e6e6e6"
LOOKS = (("#D55E00", "square"), ("#8A4A77", "triangle-up"), ("#0072B2", "circle"), ("#00795A", "cross"))


class Dot(NamedTuple):
    """A decoder at one setting.

    label: what stands at the dot
    x:     one number per panel
    error: half an interval, along y
    swept: whether it is one of several settings of `name`, which a line joins in the order given
    """

    name: str
    label: str
    x: tuple[float, ...]
    y: float
    error: float = 0.0
    swept: bool = False


class Panel(NamedTuple):
    """title says what one sees, `x` what the axis is; all of x are shares of 1."""

    title: str
    x: str


def trade_offs(dots: Sequence[Dot], panels: Sequence[Panel], *, y: str, title: str, notes: Sequence[str] = ()) -> Any:
    """An altair chart: a panel for every x of the dots, side by side. y: what the vertical axis is"""
    altair = _altair()
    low, high = min(d.y - d.error for d in dots), max(d.y + d.error for d in dots)
    room = 0.06 * (high - low) or 1.0
    frame = Frame((-0.04, 1.04), (low - room, high + room))
    parts = [_panel(altair, dots, i, panel, y, frame) for i, panel in enumerate(panels)]
    return (
        altair.hconcat(*parts, spacing=36)
        .properties(
            title=altair.TitleParams(
                title,
                subtitle=list(notes),
                anchor="start",
                fontSize=19,
                subtitleFontSize=13,
                subtitleColor=GREY,
                offset=18,
            ),
            background="white",
            padding=18,
        )
        .configure_view(stroke=None)
        .configure(font="Helvetica, Arial, sans-serif")
    )


def save(chart: Any, path: Path) -> None:
    """Write the chart as .svg and as .png. path: with either suffix"""
    _altair()
    chart.save(path.with_suffix(".svg"))
    chart.save(path.with_suffix(".png"), scale_factor=2)


def _altair() -> Any:
    try:
        import altair
        import vl_convert  # noqa: F401  (what altair draws with)
    except ModuleNotFoundError:
        raise ModuleNotFoundError("pictures need altair and vl-convert: pip install 'spdd[report]'") from None
    return altair


# ---- one panel ------------------------------------------------------------------------------------------------------


class Frame(NamedTuple):
    """What a panel shows, in the units of the data. Pixels count from the top left."""

    x: tuple[float, float]
    y: tuple[float, float]

    def pixels(self, x: float, y: float) -> tuple[float, float]:
        across, down = (x - self.x[0]) / (self.x[1] - self.x[0]), (self.y[1] - y) / (self.y[1] - self.y[0])
        return across * WIDTH, down * HEIGHT

    def units(self, across: float, down: float) -> tuple[float, float]:
        x, y = across / WIDTH, down / HEIGHT
        return self.x[0] + x * (self.x[1] - self.x[0]), self.y[1] - y * (self.y[1] - self.y[0])


def _panel(altair: Any, dots: Sequence[Dot], i: int, panel: Panel, y_title: str, frame: Frame) -> Any:
    swept = list(dict.fromkeys(d.name for d in dots if d.swept))
    looks = dict(zip(swept, LOOKS, strict=False))
    rows = []
    for order, d in enumerate(sorted(dots, key=lambda d: not d.swept)):  # single dots on top
        color, shape = looks.get(d.name, (GREY, "diamond"))
        rows.append(
            {"x": d.x[i], "y": d.y, "low": d.y - d.error, "high": d.y + d.error, "name": d.name, "label": d.label,
             "order": order, "swept": d.swept, "color": color, "shape": shape}
        )  # fmt: skip
    texts = [
        {"text": text.words, "color": looks.get(text.name, (INK, ""))[0], "bold": text.big} | _ends(text, place, frame)
        for text, place in placed(_texts(dots, i, frame), _obstacles(dots, i, frame))
    ]

    x = altair.X(
        "x:Q",
        title=panel.x,
        scale=altair.Scale(domain=list(frame.x), nice=False),
        axis=altair.Axis(format=".0%", values=[0, 0.2, 0.4, 0.6, 0.8, 1], **_AXIS),
    )
    y = altair.Y(
        "y:Q",
        title=y_title if i == 0 else None,
        scale=altair.Scale(domain=list(frame.y), nice=False, zero=False),
        axis=altair.Axis(tickCount=6, **_AXIS),
    )
    color = altair.Color("color:N", scale=None, legend=None)
    shape = altair.Shape("shape:N", scale=None, legend=None)
    all_dots = altair.Chart(altair.Data(values=rows)).encode(x=x, y=y, color=color)
    all_texts = altair.Chart(altair.Data(values=texts)).encode(color=color)
    layers = [
        altair.Chart(altair.Data(values=[r for r in rows if r["swept"]]))
        .mark_line(strokeWidth=2, opacity=0.75)
        .encode(x=x, y=y, color=color, detail="name:N", order="order:Q"),
        all_dots.mark_rule(strokeWidth=1.5, opacity=0.6).encode(y=altair.Y("low:Q", title=y_title if i == 0 else None), y2="high:Q"),
        all_dots.mark_point(filled=True, size=62, opacity=1, stroke="white", strokeWidth=0.8).encode(shape=shape),
        all_texts.transform_filter("datum.far").mark_rule(strokeWidth=0.7, opacity=0.7).encode(
            x="from_x:Q", y="from_y:Q", x2="to_x:Q", y2="to_y:Q"
        ),
    ]  # fmt: skip
    for big in (False, True):
        style = {"fontSize": LETTERS + 2 * big, "fontWeight": "bold" if big else "normal"}
        layers.append(
            all_texts.transform_filter(f"datum.bold == {str(big).lower()}")
            .mark_text(**style)
            .encode(x="x:Q", y="y:Q", text="text:N")
        )
    heading = altair.TitleParams(panel.title, anchor="start", fontSize=15, color=INK, offset=10)
    return altair.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=heading)


_AXIS = {
    "labelFontSize": LETTERS,
    "titleFontSize": 13,
    "titleFontWeight": "normal",
    "titlePadding": 10,
    "labelColor": GREY,
    "titleColor": INK,
    "gridColor": PALE,
    "domain": False,
    "ticks": False,
}


# ---- labels ---------------------------------------------------------------------------------------------------------


class Box(NamedTuple):
    """A rectangle in pixels: its middle and its sides."""

    x: float
    y: float
    wide: float
    high: float

    def overlap(self, other: Box) -> float:
        """Area in common."""
        across = (self.wide + other.wide) / 2 - abs(self.x - other.x)
        down = (self.high + other.high) / 2 - abs(self.y - other.y)
        across, down = min(across, self.wide, other.wide), min(down, self.high, other.high)
        return across * down if across > 0 and down > 0 else 0.0


class Text(NamedTuple):
    """Words that want to stand near a place. x, y: pixels"""

    words: str
    name: str
    big: bool
    x: float
    y: float

    @property
    def size(self) -> tuple[float, float]:
        height = LETTERS + 2 * self.big
        return (0.58 if self.big else 0.54) * height * len(self.words) + 4, height + 2


def _texts(dots: Sequence[Dot], i: int, frame: Frame) -> list[Text]:
    """Names of lines, then of single dots, then of the dots on lines: who comes first gets the better place."""
    names: dict[str, list[Dot]] = {}
    alone: dict[tuple[float, float], list[str]] = {}
    marks = []
    for d in dots:
        place = frame.pixels(d.x[i], d.y)
        if d.swept:
            names.setdefault(d.name, []).append(d)
            marks.append(Text(d.label, d.name, False, *place))
        else:  # dots on one another share a label
            near = next((p for p in alone if math.dist(p, place) < 3), place)
            alone.setdefault(near, []).append(d.label)
    lines = []
    for name, own in names.items():
        middle = own[(2 * len(own)) // 3]
        lines.append(Text(name, name, True, *frame.pixels(middle.x[i], middle.y)))
    owner = {d.label: d.name for d in dots if not d.swept}
    singles = [Text(" and ".join(labels), owner[labels[0]], False, *place) for place, labels in alone.items()]
    return lines + singles + [m for m in marks if m.words]


def _obstacles(dots: Sequence[Dot], i: int, frame: Frame) -> list[Box]:
    """What labels should not cover: dots, their bars, and lines in small steps."""
    found, last = [], {}
    for d in dots:
        x, y = frame.pixels(d.x[i], d.y)
        found.append(Box(x, y, 10, 10))
        reach = frame.pixels(d.x[i], d.y - d.error)[1] - y
        found.append(Box(x, y, 3, 2 * reach))
        if d.swept:
            if d.name in last:
                before = last[d.name]
                steps = max(1, int(math.dist(before, (x, y)) // 5))
                for s in range(1, steps):
                    part = s / steps
                    found.append(Box(before[0] + part * (x - before[0]), before[1] + part * (y - before[1]), 4, 4))
            last[d.name] = x, y
    return found


def placed(texts: Sequence[Text], obstacles: Sequence[Box]) -> list[tuple[Text, Box]]:
    """Each text and its box: the nearest place around its dot that covers least of what is there already."""
    taken: list[tuple[Text, Box]] = []
    for text in texts:
        wide, high = text.size
        best, least = None, math.inf
        for gap in (7, 11, 16, 24, 34, 46, 60):
            for turn in range(16):
                across, down = math.cos(turn * math.pi / 8), math.sin(turn * math.pi / 8)
                box = Box(text.x + across * (wide / 2 + gap), text.y + down * (high / 2 + gap), wide, high)
                if not (wide / 2 <= box.x <= WIDTH - wide / 2 and high / 2 <= box.y <= HEIGHT - high / 2):
                    continue
                covered = sum(box.overlap(o) for o in obstacles) + 10 * sum(box.overlap(b) for _, b in taken)
                cost = covered + 2 * gap
                if cost < least:
                    best, least = box, cost
        if best is not None:
            taken.append((text, best))
    return taken


def _ends(text: Text, box: Box, frame: Frame) -> dict[str, Any]:
    """Where the words go and, where they stand far off, the line that leads there from the dot."""
    across, down = text.x - box.x, text.y - box.y
    inside = min(
        box.wide / 2 / abs(across) if across else math.inf, box.high / 2 / abs(down) if down else math.inf, 1.0
    )
    edge = box.x + inside * across, box.y + inside * down
    x, y = frame.units(box.x, box.y)
    from_x, from_y = frame.units(text.x, text.y)
    to_x, to_y = frame.units(*edge)
    far = math.dist(edge, (text.x, text.y)) > 14
    return {"x": x, "y": y, "from_x": from_x, "from_y": from_y, "to_x": to_x, "to_y": to_y, "far": far}
