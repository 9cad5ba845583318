"""The page of claims is what the results say, and verdicts follow the numbers."""

import copy
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import claims


@pytest.fixture(scope="module")
def found():
    return claims.Results(claims._lines("evaluation"), claims._lines("experiment"))


def test_the_page_is_what_the_results_say(found):
    assert claims.PAGE.read_text("utf-8") == claims.page(found), "run: python benchmarks/claims.py"


def test_all_three_domains_are_there(found):
    assert found.domains() == list(claims.DOMAINS)


def test_verdicts_follow_the_numbers(found):
    """Were the printed algorithm above every rival, the page would say so; were ours below, it would say that."""
    other = claims.Results(copy.deepcopy(found.evaluation), found.experiment)
    for line in other.evaluation:
        if line["part"] == "area" and line["curve"] == claims.PRINTED:
            line["ahead"] = [0.1, 0.05, 0.2, 0.01]
        if line["part"] == "area" and line["curve"] == claims.TRAFFIC:
            line["ahead"] = [-0.2, -0.3, -0.1, 0.01]
        if line["part"] == "keeper" and line["curve"] == claims.DEFAULT:
            line["kept"]["WA"] = [0.5, 0.4, 0.6, 0.01]
    assert claims.better_on_average(found).verdict != "holds"
    assert claims.better_on_average(other).verdict == "holds"
    assert claims.ours_on_average(other).verdict == "does not hold here"
    assert claims.in_every_slate(other).verdict == "does not hold here"
