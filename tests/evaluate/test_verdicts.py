"""What a sweep says equals what its points say, taken one by one."""

import numpy as np
import pytest
import worlds

from spdd.evaluate import grid
from spdd.evaluate.metrics import measure
from spdd.evaluate.pareto import hypervolume
from spdd.evaluate.sweep import read, sweep
from spdd.evaluate.verdicts import ATTAINED, RIVALS, family, nearest, verdict

ASKED = (0.2, 0.4, 0.8)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    points = [
        p
        for p in grid.points(2.0, worlds.SLOTS, seeds=(), asked=ASKED, prices=(0.1, 1.0, 4.0))
        if p.curve in ("greedy", "must-fill", "WA", "SPDD by default", "SPDD over traffic", "SPDD priced")
    ]
    folder = tmp_path_factory.mktemp("swept")
    sweep(worlds.bench, points, folder, batch=8)
    return read(folder)


@pytest.fixture(scope="module")
def said(swept):
    return verdict(swept, draws=200)


def test_areas_are_those_of_the_records(swept, said):
    for area in said.areas:
        x, y = {"both NDCGs": ("ndcg", "objective_ndcg"), "share and NDCG": ("share", "ndcg")}[area.plane]
        points = [(r["metrics"][x], r["metrics"][y]) for r in swept.records if r["curve"] == area.curve]
        assert area.area.value == pytest.approx(hypervolume(points, (0, 0)))
        assert area.area.low <= area.area.high
        assert (area.ahead is None) == (area.curve in RIVALS)


def test_keepers_hold_the_floor_and_keep_most(swept, said):
    for keeper in said.keepers:
        own = [r for r in swept.records if r["curve"] == keeper.curve and r["metrics"]["attained"] >= ATTAINED]
        found = keeper.metrics["ndcg"].value
        if keeper.curve in ("must-fill", "SPDD by default"):  # what is judged is what was asked: 2 of 5 slots
            assert dict(keeper.knob) == {"asked": 0.4}
        else:
            assert found == pytest.approx(max(r["metrics"]["ndcg"] for r in own))
        for other in said.keepers:
            if other.curve != keeper.curve:
                assert keeper.kept[other.curve].value == pytest.approx(found / other.metrics["ndcg"].value)
    there = {k.curve for k in said.keepers} | set(said.out_of_reach)
    assert there == set(swept.curves())
    assert "greedy" in said.out_of_reach


def test_what_came_less_what_was_asked(said):
    curves = {d.curve for d in said.delivered}
    assert curves == {"must-fill", "SPDD by default", "SPDD over traffic"}
    for d in said.delivered:
        assert d.error.value == pytest.approx(d.share.value - d.asked)
        assert d.error.low <= d.error.value <= d.error.high


def test_runs_that_differ_in_their_seed_are_one_point(tmp_path):
    points = grid.bandits((0, 1), squeezed=(0.3,))
    sweep(worlds.bench, points, tmp_path, batch=8)
    swept = read(tmp_path)
    results = swept.of("MB-TS")
    both = family(results, swept.truth, ("share", "ndcg"))
    each = [measure(r.outcome, swept.truth)["share"].value() for r in results]
    assert len(each) == 2
    assert both.points().shape == (1, 2)
    assert both.points()[0, 0] == pytest.approx(np.mean(each))


def test_the_nearest_point(swept):
    shares = [abs(r["metrics"]["share"] - 0.3) for r in swept.records if r["curve"] == "WA"]
    assert abs(nearest(swept, "WA", 0.3).record["metrics"]["share"] - 0.3) == min(shares)
