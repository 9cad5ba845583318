"""One HTML file that tells a story and needs nothing else: no network, no folder beside it.

A `Page` is plain data: sections of prose, figures, tables, notes and commands. `write` makes the file, and lays every
figure beside it as SVG and PNG and every table as CSV. The libraries that draw are put in once, and all figures share
them. Figures are as wide as the window lets them be, and follow it into the dark; their colours are those of `looks.py`.

What is measured, and what is said about it, is decided elsewhere. Needs the extra `report`.
"""

from __future__ import annotations

import csv
import html
import io
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from ..evaluate.bootstrap import Known
from ..files import write_atomically
from .looks import INK, NIGHT, Key, themed

PANEL, ACROSS = 440, 2  # width of a panel in the files beside the page, in pixels, and how many stand side by side


class Figure(NamedTuple):
    """One or more charts under one title, told apart by one legend.

    name:   of its files: NAME.svg, NAME.png
    title:  what one sees
    panels: altair charts without a width of their own (or their specs as dicts), side by side where there is room
    alt:    what it shows, for those who cannot see it
    text:   what is drawn, below it
    keys:   the legend, where the charts have none of their own
    """

    name: str
    title: str
    panels: Sequence[Any]
    alt: str
    text: str = ""
    keys: Sequence[Key] = ()


class Column(NamedTuple):
    """A heading, and how its numbers are written: a format such as ".3f", ".1%" or "+.1%"."""

    title: str
    form: str = ".4g"


class Table(NamedTuple):
    """A table. Cells are text, numbers, None, or `Known`, which is written with its interval and is three columns of the CSV.

    name:   of its file: NAME.csv
    strong: numbers of the rows to read first
    """

    name: str
    title: str
    columns: Sequence[Column | str]
    rows: Sequence[Sequence[Any]]
    text: str = ""
    strong: Collection[int] = ()


class Note(NamedTuple):
    """A paragraph set apart: what to beware of."""

    text: str


class Bullets(NamedTuple):
    """Points, one under the other."""

    lines: Sequence[str]


class Code(NamedTuple):
    """A command, as typed."""

    text: str


Part = str | Figure | Table | Note | Bullets | Code  # a plain text is a paragraph: `code` and **bold** are understood


class Section(NamedTuple):
    heading: str
    parts: Sequence[Part]


class Page(NamedTuple):
    """lead: the first lines, under the title.  colophon: how it was made, a line or several lines each"""

    title: str
    lead: Sequence[Part]
    sections: Sequence[Section]
    colophon: Mapping[str, str | Sequence[str]]


def write(page: Page, path: str | Path) -> Path:
    """Write the page to `path`, an .html file, and its figures and tables to folders beside it. Gives the path."""
    path = Path(path)
    if path.suffix != ".html":
        raise ValueError(f"a page must be written to a file that ends in .html, got '{path}'.")
    need_drawing()
    parts = [*page.lead, *(part for section in page.sections for part in section.parts)]
    named = [part for part in parts if isinstance(part, Figure | Table)]
    for kind in (Figure, Table):
        names = [part.name for part in named if isinstance(part, kind)]
        if twice := {n for n in names if names.count(n) > 1}:
            raise ValueError(
                f"{kind.__name__.lower()}s of a page must have names of their own, got '{min(twice)}' twice."
            )
        if names:
            (path.parent / f"{kind.__name__.lower()}s").mkdir(parents=True, exist_ok=True)
    for part in named:
        save_figure(part, path.parent / "figures") if isinstance(part, Figure) else save_table(
            part, path.parent / "tables"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, as_html(page))
    return path


def as_html(page: Page) -> str:
    """The page as one text."""
    import vl_convert

    drawing = any(isinstance(p, Figure) for s in (page.lead, *(s.parts for s in page.sections)) for p in s)
    library = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;") if drawing else ""
    scripts = (
        f"<script>{_in_script(library)}</script>"
        f'<script type="application/json" id="night">{_json(NIGHT)}</script>'
        f"<script>{_own('page.js')}</script>"
    )
    contents = "".join(f'<li><a href="#{_slug(s.heading)}">{_text(s.heading)}</a></li>' for s in page.sections)
    sections = "".join(
        f'<section id="{_slug(s.heading)}"><h2>{_text(s.heading)}</h2>{"".join(map(_part, s.parts))}</section>'
        for s in page.sections
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{_text(page.title)}</title><link rel="icon" href="data:,"><style>{_own("page.css")}</style></head><body>'
        f"<header><h1>{_text(page.title)}</h1>{''.join(map(_part, page.lead))}</header>"
        + (f'<nav aria-label="Contents"><ol>{contents}</ol></nav>' if len(page.sections) > 2 else "")
        + f"<main>{sections}</main>{_colophon(page.colophon)}{scripts}</body></html>\n"
    )


# ---- files beside the page ------------------------------------------------------------------------------------------


def save_figure(figure: Figure, folder: Path) -> None:
    """NAME.svg and NAME.png: the panels side by side under the title, the legend below."""
    import vl_convert

    specs = [_spec(panel) for panel in figure.panels]
    data = {}
    for spec in specs:
        data |= spec.pop("datasets", {})
        if _single(spec):
            spec.setdefault("width", PANEL)
        spec.pop("config", None)
    across = [specs[n : n + ACROSS] for n in range(0, len(specs), ACROSS)]
    rows: list[dict[str, Any]] = [{"hconcat": some, "spacing": 40} for some in across]
    if figure.keys:
        rows.append(_legend(figure.keys, PANEL * len(across[0]) + 40 * (len(across[0]) - 1)))
    whole = themed(
        {
            "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
            "title": {"text": figure.title, "anchor": "start", "fontSize": 17, "offset": 16},
            "vconcat": rows,
            "spacing": 24,
            "datasets": data,
            "background": "white",
            "padding": 16,
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    svg = vl_convert.vegalite_to_svg(whole)
    write_atomically(folder / f"{figure.name}.svg", svg)
    (folder / f"{figure.name}.png").write_bytes(vl_convert.svg_to_png(svg, scale=2))


def save_table(table: Table, folder: Path) -> None:
    """NAME.csv, with all digits."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = [_column(c) for c in table.columns]
    wide = [any(isinstance(row[i], Known) for row in table.rows) for i in range(len(columns))]
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    heads = [
        [c.title, f"{c.title} (low)", f"{c.title} (high)"] if w else [c.title]
        for c, w in zip(columns, wide, strict=True)
    ]
    lines.writerow(_plain(name) for head in heads for name in head)
    for row in table.rows:
        cells: list[Any] = []
        for cell, w in zip(row, wide, strict=True):
            known = [cell.value, cell.low, cell.high] if isinstance(cell, Known) else [cell, *[None] * (2 * w)]
            cells += ["" if x is None or (isinstance(x, float) and math.isnan(x)) else x for x in known]
        lines.writerow(_plain(x) if isinstance(x, str) else x for x in cells)
    write_atomically(folder / f"{table.name}.csv", out.getvalue())


def _legend(keys: Sequence[Key], width: int) -> dict[str, Any]:
    """The legend as a small chart of its own: rows of lines with their marks, and names."""
    each = 34 + 7.2 * max(len(key.label) for key in keys)
    columns = max(1, min(len(keys), int(width // each)))
    step, layers = width / columns, []
    for i, key in enumerate(keys):
        x, y = step * (i % columns), 20 * (i // columns) + 8
        at = lambda **values: {"values": [values]}  # noqa: E731
        place = {"y": {"field": "y", "type": "quantitative", "scale": None, "axis": None}}
        across = {"x": {"field": "x", "type": "quantitative", "scale": None, "axis": None}}
        layers += [
            {"data": at(x=x, y=y, end=x + 26), "mark": {"type": "rule", "color": key.color, "strokeWidth": 2, "strokeDash": list(key.dash)},
             "encoding": across | place | {"x2": {"field": "end"}}},
            {"data": at(x=x + 13, y=y), "mark": {"type": "point", "filled": True, "opacity": 1, "size": 60, "color": key.color, "shape": key.shape},
             "encoding": across | place},
            {"data": at(x=x + 33, y=y), "mark": {"type": "text", "align": "left", "text": key.label, "fontSize": 12, "color": INK},
             "encoding": across | place},
        ]  # fmt: skip
    return {"layer": layers, "width": width, "height": 20 * math.ceil(len(keys) / columns), "view": {"stroke": None}}


# ---- the parts as HTML ----------------------------------------------------------------------------------------------


def _part(part: Part) -> str:
    if isinstance(part, Figure):
        return _figure(part)
    if isinstance(part, Table):
        return _table(part)
    if isinstance(part, Note):
        return f'<p class="note" role="note">{_text(part.text)}</p>'
    if isinstance(part, Bullets):
        return f"<ul>{''.join(f'<li>{_text(line)}</li>' for line in part.lines)}</ul>"
    if isinstance(part, Code):
        return f'<pre tabindex="0"><code>{html.escape(part.text)}</code></pre>'
    return f"<p>{_text(part)}</p>"


def _figure(figure: Figure) -> str:
    import vl_convert

    charts = []
    for number, panel in enumerate(figure.panels):
        spec = themed(_spec(panel))
        fluid = _single(spec)
        if fluid:
            spec["width"] = "container"
        name = f"{_slug(figure.name)}-{number}"
        charts.append(
            f'<div class="chart{"" if fluid else " fixed"}" id="{name}" data-spec="{name}-spec"></div>'
            f'<script type="application/json" id="{name}-spec">{_json(vl_convert.vegalite_to_vega(spec))}</script>'
        )
    keys = f'<ul class="keys" aria-label="Legend">{"".join(map(_key, figure.keys))}</ul>' if figure.keys else ""
    many = " several" if len(charts) > 1 else ""
    return (
        f'<figure id="figure-{_slug(figure.name)}"><h3>{_text(figure.title)}</h3>'
        f'<div class="panels{many}" role="img" aria-label="{html.escape(figure.alt)}">{"".join(charts)}</div>{keys}'
        f"<figcaption>{_text(figure.text)} <small>{figure.name}.svg, {figure.name}.png</small></figcaption></figure>"
    )


def _key(key: Key) -> str:
    """A line of the legend: a swatch with the line's dashes and its mark, and the name."""
    dash = " ".join(map(str, key.dash)) or "none"
    swatch = (
        f'<line x1="0" x2="28" y1="7" y2="7" stroke="currentColor" stroke-width="2" stroke-dasharray="{dash}"/>'
        f'<path transform="translate(14 7)" fill="currentColor" d="{MARKS[key.shape]}"/>'
    )
    colors = f"--day:{key.color};--night:{NIGHT.get(key.color, key.color)}"
    return f'<li><svg width="28" height="14" aria-hidden="true" style="{colors}">{swatch}</svg>{_text(key.label)}</li>'


# The shapes that vega knows by these names, about as large.
MARKS = {
    "circle": "M-4.5,0a4.5,4.5 0 1 0 9,0a4.5,4.5 0 1 0 -9,0Z",
    "square": "M-4,-4h8v8h-8Z",
    "diamond": "M0,-5.5L5.5,0L0,5.5L-5.5,0Z",
    "cross": "M-5,-1.8h3.2v-3.2h3.6v3.2h3.2v3.6h-3.2v3.2h-3.6v-3.2h-3.2Z",
    "triangle-up": "M0,-5L5,4.4H-5Z",
    "triangle-down": "M0,5L5,-4.4H-5Z",
    "triangle-right": "M5,0L-4.4,-5V5Z",
    "triangle-left": "M-5,0L4.4,-5V5Z",
    "stroke": "M-5,-0.7h10v1.4h-10Z",
}


def _table(table: Table) -> str:
    columns = [_column(c) for c in table.columns]
    numeric = [any(isinstance(row[i], int | float | Known) for row in table.rows) for i in range(len(columns))]
    # Roles are said aloud because the narrow layout takes the table apart, and browsers forget them with it.
    head = "".join(
        f'<th scope="col" role="columnheader"{" class=number" * n}>{_text(c.title)}</th>'
        for c, n in zip(columns, numeric, strict=True)
    )
    body = []
    for number, row in enumerate(table.rows):
        cells = [f'<th scope="row" role="rowheader">{_cell(row[0], columns[0].form)}</th>']
        cells += [
            f'<td role="cell" data-label="{html.escape(_plain(c.title))}"{" class=number" * n}>{_cell(x, c.form)}</td>'
            for x, c, n in zip(row[1:], columns[1:], numeric[1:], strict=True)
        ]
        body.append(f'<tr role="row"{" class=strong" * (number in table.strong)}>{"".join(cells)}</tr>')
    return (
        f'<figure class="table"><table role="table"><caption>{_text(table.title)}</caption>'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead><tbody role="rowgroup">{"".join(body)}</tbody></table>'
        f"<figcaption>{_text(table.text)} <small>{table.name}.csv</small></figcaption></figure>"
    )


def _cell(cell: Any, form: str) -> str:
    if isinstance(cell, Known):
        if math.isnan(cell.value):
            return "–"
        low, high = (_number(x, form) for x in (cell.low, cell.high))
        span = "" if math.isnan(cell.low) else f' <span class="span">{low} to {high}</span>'
        return f"<span>{_number(cell.value, form)}{span}</span>"
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return "–"
    return _text(cell) if isinstance(cell, str) else _number(cell, form)


def _number(number: Any, form: str) -> str:
    if isinstance(number, bool):
        return "yes" if number else "no"
    if isinstance(number, int):
        return f"{number:,}"
    shown = format(number, form)
    if form.endswith("%") and 0 < abs(number) < 1:  # 0 % and 100 % are said only where it is so
        step = 10.0 ** -(int(re.sub(r"\D", "", form) or 0) + 2)
        if float(shown[:-1]) == 0:
            shown = "<" + format(step, form)
        elif abs(float(shown[:-1])) == 100:
            shown = ">" + format(1 - step, form)
    if form.endswith("f") and number > 0 and float(shown) == 0 and "+" not in form:  # and neither is 0.000
        shown = "<" + format(10.0 ** -int(re.sub(r"\D", "", form)), form)
    return shown.replace("-", "\N{MINUS SIGN}")


def _colophon(made: Mapping[str, str | Sequence[str]]) -> str:
    def said(value: str | Sequence[str]) -> str:
        if isinstance(value, str):
            return f"<dd>{_text(value)}</dd>"
        return "".join(f'<dd><pre tabindex="0"><code>{html.escape(line)}</code></pre></dd>' for line in value)

    lines = "".join(f"<dt>{_text(name)}</dt>{said(value)}" for name, value in made.items())
    return f'<footer id="colophon"><h2>How this page was made</h2><dl>{lines}</dl></footer>' if made else ""


# ---- small things ---------------------------------------------------------------------------------------------------


def need_drawing() -> None:
    """A complaint, before any work, where the libraries that draw are not installed."""
    try:
        import altair  # noqa: F401
        import vl_convert  # noqa: F401
    except ModuleNotFoundError:
        raise ModuleNotFoundError("reports need altair and vl-convert: pip install 'spdd[report]'") from None


def _spec(panel: Any) -> dict[str, Any]:
    return json.loads(json.dumps(panel)) if isinstance(panel, dict) else panel.to_dict()


def _single(spec: Mapping[str, Any]) -> bool:
    """Whether it is one view, which can be as wide as there is room. Charts of charts cannot."""
    return not spec.keys() & {"hconcat", "vconcat", "concat", "facet", "repeat"}


def _column(column: Column | str) -> Column:
    return Column(column) if isinstance(column, str) else column


def _text(text: str) -> str:
    """Escaped, with `code` and **bold**."""
    text = html.escape(text, quote=False)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    return re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", text)


def _plain(text: str) -> str:
    return text.replace("`", "").replace("**", "")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _json(value: Any) -> str:
    """JSON that cannot end the element it stands in."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _in_script(code: str) -> str:
    return code.replace("</script", "<\\/script")


def _own(name: str) -> str:
    return resources.files("spdd.report").joinpath(name).read_text("utf-8").strip()
