"""Tables on pages are what the result files say, and change with them."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import pages


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
def test_tables_are_what_the_results_say(page):
    text = page.read_text("utf-8")
    assert pages.PLACE.search(text)
    assert pages.filled(text) == text, "run: python benchmarks/pages.py"


def test_every_table_is_on_a_page():
    there = {found[2] for page in pages.PAGES for found in pages.PLACE.finditer(page.read_text("utf-8"))}
    assert there == set(pages.TABLES)


def test_a_peer_that_is_faster_is_said_to_be():
    def other(name):
        lines = json.loads(json.dumps(pages._lines(name)))
        for line in lines:
            if line.get("variant") == "logits: eager, logit, 0/1":
                line["cpu_over_ours"] = 0.5
        return lines

    assert "eager, logit, 0/1: 0.50 times our processor time" in pages.lost(other)
    assert "eager" not in pages.lost(pages._lines)
