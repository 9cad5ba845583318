"""The ideas that `benchmarks/attainment.py` tries are decoders: whole slates of distinct items nobody has seen, which keep the floor."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import attainment
from spdd.domains import bench
from spdd.evaluate.sweep import sweep
from spdd.trained import Opened, by_history
from test_slates import ITEMS, USERS, model, split  # noqa: F401

VALUES = (np.arange(ITEMS) % 3 == 0).astype(float)


@pytest.fixture
def made(split):  # noqa: F811
    one = bench(Opened(model(), by_history, "d"), split, values=VALUES, floor=attainment.FLOOR, slots=attainment.SLOTS)
    return attainment.with_ideas(one)


@pytest.mark.parametrize("idea", attainment.IDEAS)
def test_an_idea_fills_slates_that_keep_the_floor(made, idea):
    for point in (p for p in attainment.points() if p.decoder == idea):
        batch = made.domain.asked(slice(0, USERS))
        for items, seen in zip(np.asarray(made.policy(point)(batch).items), batch.histories, strict=True):
            assert len(set(items.tolist()) - {-1}) == attainment.SLOTS
            assert not set(items.tolist()) & set(np.asarray(seen).tolist())
            assert VALUES[items].sum() >= attainment.FLOOR


def test_looking_no_further_is_the_default_with_its_price(made):
    """With no part for the successor the best of four is the best: the default's slate, whose price moves in the same way."""
    ahead = next(p for p in attainment.points() if p.decoder == "looking ahead")
    default = next(p for p in attainment.points() if p.curve == attainment.DEFAULT)
    batch = made.domain.asked(slice(0, USERS))
    same = made.policy(ahead._replace(knob={"part": 0.0}))(batch).items == made.policy(default)(batch).items
    assert same.all()


def test_lines_tell_each_point_beside_the_default(made, tmp_path):
    sweep(lambda: made, attainment.points(), tmp_path)
    told = attainment.lines(tmp_path)
    default = next(x for x in told if x.get("curve") == attainment.DEFAULT)
    assert default["keeper"]
    assert attainment.DEFAULT not in default["kept"]
    assert all(attainment.DEFAULT in x["kept"] for x in told if x.get("curve") in ("rate 0", "order, by relevance"))
    text = attainment.page([{"domain": "sports", "commit": "0" * 40, **x} for x in told])
    assert "## What helped" in text
