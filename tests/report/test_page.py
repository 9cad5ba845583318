"""A page is one file that needs nothing, shows everything it was given at any width, and lays figures and tables beside it."""

import csv
import re
import sys
from pathlib import Path

import pytest

from spdd.evaluate.bootstrap import Known
from spdd.report import page as pages
from spdd.report.colophon import colophon
from spdd.report.looks import KNOWN, NIGHT, keys_for
from spdd.report.page import Bullets, Code, Column, Figure, Note, Page, Section, Table

sys.path.insert(0, str(Path(__file__).parent))
import browser

altair = pytest.importorskip("altair")

NAMES = ["Greedy", "WA", "SPDD by default"]


def lines():
    rows = [{"x": x / 5, "y": 1 - n * x / 20, "name": name} for n, name in enumerate(NAMES) for x in range(5)]
    domain, keys = altair.Scale(domain=NAMES, range=[k.color for k in keys_for(NAMES)]), None
    return (
        altair.Chart(altair.Data(values=rows))
        .mark_line()
        .encode(x=altair.X("x:Q", title="share"), y="y:Q", color=altair.Color("name:N", scale=domain, legend=keys))
    )


def bars():
    rows = [{"name": name, "y": n + 1} for n, name in enumerate(NAMES)]
    return altair.Chart(altair.Data(values=rows)).mark_bar().encode(x="y:Q", y="name:N", color="name:N")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    rows = [[name, Known(0.5, 0.25, 0.75, 0.1), 0.9999, n] for n, name in enumerate(NAMES)]
    table = Table("areas", "Areas", ["decoder", Column("area", ".2f"), Column("kept", ".0%"), "n"], rows, strong={2})
    page = Page(
        "What 3 < 4 costs & whom",
        ["A **lead** with `code`."],
        [
            Section("Fronts", [Figure("fronts", "Two", [lines(), lines()], "falling lines", keys=keys_for(NAMES)), table]),
            Section("Bars", [Figure("bars", "By name", [bars()], "bars"), Note("Beware."), Bullets(["one"]), Code("x <y>")]),
            Section("End", ["</script><script>alert(1)</script>"]),
        ],
        colophon(["spdd demo"], seeds="0"),
    )  # fmt: skip
    return pages.write(page, tmp_path_factory.mktemp("page") / "report.html")


def test_page_is_one_file_and_escapes_what_it_says(written):
    text = written.read_text("utf-8")
    assert 500_000 < len(text) < 2_000_000
    assert "3 &lt; 4 costs &amp; whom" in text
    assert "<strong>lead</strong> with <code>code</code>" in text
    assert "<script>alert" not in text
    assert "<code>x &lt;y&gt;</code>" in text
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.findall(r"(?:src|href)=.(?!#|data:)", outside)
    for word in ("spdd demo", "torch", "cores", "Python 3", "seeds"):
        assert word in outside


def test_figures_and_tables_lie_beside_it(written):
    for name in ("fronts", "bars"):
        assert (written.parent / "figures" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        svg = (written.parent / "figures" / f"{name}.svg").read_text("utf-8")
        assert all(label in svg for label in NAMES)
    rows = list(csv.DictReader((written.parent / "tables" / "areas.csv").read_text("utf-8").splitlines()))
    first = {
        "decoder": "Greedy",
        "area": "0.5",
        "area (low)": "0.25",
        "area (high)": "0.75",
        "kept": "0.9999",
        "n": "0",
    }
    assert rows[0] == first


def test_numbers_say_all_and_nothing_only_where_it_is_so():
    said = [pages._number(x, ".1%") for x in (0.0, 0.0001, 0.5, 0.99999, 1.0, -0.25)]
    assert said == ["0.0%", "<0.1%", "50.0%", ">99.9%", "100.0%", "−25.0%"]
    assert pages._cell(Known(float("nan"), 0, 0, 1), ".2f") == pages._cell(None, "") == "–"
    assert [pages._number(x, ".3f") for x in (0.0, 0.0001, 0.5)] == ["0.000", "<0.001", "0.500"]


def test_names_and_endings_are_checked(tmp_path):
    table = Table("t", "", ["a"], [["x"]])
    with pytest.raises(ValueError, match="names of their own, got 't' twice"):
        pages.write(Page("", [table, table], [], {}), tmp_path / "a.html")
    with pytest.raises(ValueError, match=r"ends in \.html"):
        pages.write(Page("", [], [], {}), tmp_path / "a.pdf")


def test_no_two_looks_are_the_same():
    looks = [tuple(key)[1:] for key in keys_for([*KNOWN, *(f"own {n}" for n in range(5))])]
    assert len(set(looks)) == len(looks)
    assert {color for color, _, _ in looks} <= set(NIGHT)
    assert {shape for _, shape, _ in looks} <= set(pages.MARKS)


@pytest.mark.browser
def test_page_is_whole_at_any_width_by_day_and_night(written, tmp_path):
    """Drawn, without a complaint or a question to the network, nothing cut off, no words on words."""
    wide = Figure("wide", "Too wide", [(lines().properties(width=600) | lines()).to_dict()], "lines")
    bad = pages.write(Page("Bad", [wide], [], {}), tmp_path / "bad.html")
    with browser.chromium(tmp_path / "profile") as window:
        for width, dark in ((1280, False), (390, False), (390, True)):
            window.open(written, width, dark=dark)
            assert window.ask("document.documentElement.dataset.figures") == "drawn"
            assert window.ask("document.querySelectorAll('.chart svg').length") == 3
            assert not window.complaints
            assert not window.ask(browser.CUT_OFF)
            assert not window.ask(browser.OVERLAPS)
        window.open(bad, 390)
        assert window.ask(browser.CUT_OFF)
