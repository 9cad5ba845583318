"""The page of claims is what the results say, and verdicts follow the numbers."""

import copy
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import attainment
import claims


@pytest.fixture(scope="module")
def found():
    return claims.results()


def test_the_page_is_what_the_results_say(found):
    assert claims.PAGE.read_text("utf-8") == claims.page(found), "run: python benchmarks/claims.py"


def test_the_readme_is_what_the_results_say(found):
    text = claims.README.read_text("utf-8")
    assert text == claims.with_evidence(text, found), "run: python benchmarks/claims.py"


def test_the_page_of_what_was_tried_is_what_the_results_say(found):
    assert attainment.PAGE.read_text("utf-8") == attainment.page(found.attainment), (
        "run: python benchmarks/attainment.py --page"
    )


def test_all_three_domains_are_there(found):
    assert found.domains() == list(claims.DOMAINS)


def test_verdicts_follow_the_numbers(found):
    """Were the printed algorithm above every rival, the page would say so; were ours below, it would say that."""
    other = copy.deepcopy(found)
    for line in other.evaluation:
        if line["part"] == "area" and line["curve"] == claims.PRINTED:
            line["ahead"] = [0.1, 0.05, 0.2, 0.01]
        if line["part"] == "area" and line["curve"] == claims.TRAFFIC:
            line["ahead"] = [-0.2, -0.3, -0.1, 0.01]
    for line in other.attainment:
        if line["part"] == "tried" and line["curve"] == claims.DEFAULT:
            line["kept"]["WA"] = [0.5, 0.4, 0.6, 0.01]
    for line in other.bounds:
        line["exceeded"] = 0
    for line in other.audits:
        line["holds"] = True
    for line in other.control:
        line["error"] = [0.2, 0.19, 0.21]
    assert claims.better_on_average(found).verdict != "holds"
    assert claims.better_on_average(other).verdict == "holds"
    assert claims.ours_on_average(other).verdict == "does not hold here"
    assert claims.in_every_slate(other).verdict == "does not hold here"
    assert claims.violation(found).verdict != claims.violation(other).verdict == "holds"
    assert claims.assumption(found).verdict != claims.assumption(other).verdict == "holds"
    assert claims.delivers(other).verdict == "does not hold here"


def test_no_claim_has_a_number_of_its_own(found):
    """Were every result a third larger, no line with a measured number would read as it does: none is typed by hand."""
    typed = {"0", "3", "10", "95", "5", "30", "1"}  # what was asked, not what was measured
    lines = [line for claim in claims.CLAIMS for line in claim(found).measured]
    others = {line for claim in claims.CLAIMS for line in claim(claims.Results(*map(_enlarged, found))).measured}
    same = [line for line in lines if line in others]
    digits = {line: set(re.findall(r"\d+(?:[,.]\d+)*", re.sub(r"`[^`]*`|\([^)]*\.md\)", "", line))) for line in same}
    typed_by_hand = {line: numbers - typed for line, numbers in digits.items() if numbers - typed}
    assert not typed_by_hand


def _enlarged(lines):
    def larger(x):
        if isinstance(x, dict):
            return {
                key: larger(y) if key not in ("asked", "knob", "rate", "items", "slots", "kind", "part") else y
                for key, y in x.items()
            }
        if isinstance(x, list):
            return x[:-1] if x and isinstance(x[0], str) else [larger(y) for y in x]  # names are counted
        return 1.3 * x if isinstance(x, int | float) and not isinstance(x, bool) else x

    return [larger(line) for line in lines]
