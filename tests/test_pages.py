"""Tables on pages are what the result files say, and change with them."""

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


@pytest.mark.parametrize("of_ours", [0.5, 1.5])
def test_a_peer_that_is_faster_is_said_to_be(of_ours):
    """On made-up lines: what is true of the results at hand may change with them."""
    made_up = {"kernels": [{"variant": "logits: eager, logit, real", "peer": True, "cpu_over_ours": of_ours}]}
    said = pages.lost(lambda name: made_up.get(name, []))
    assert ("eager, logit, real: 0.50 times our processor time" in said) == (of_ours < 1)
    assert ("Nowhere" in said) == (of_ours > 1)
