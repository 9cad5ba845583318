"""A search meets its target at no more cost than what one would have taken anyway, sees one part of the data, and can be killed."""

import functools
import sys
from pathlib import Path

import numpy as np
import pytest

from spdd.evaluate.control import steer
from spdd.evaluate.sweep import Point, read
from spdd.evaluate.tune import RIVALS, compare, miss, steps, target_of, tune

sys.path.insert(0, str(Path(__file__).parent))
import worlds

FEW = {"trials": 4, "batch": 20}
finds = functools.partial(tune, worlds.bench(), **FEW)


@pytest.fixture(scope="module", params=["slate", "average"])
def tuned(request, tmp_path_factory):
    return finds(tmp_path_factory.mktemp(request.param), view=request.param)


def rival(tuned, curve):
    return next(trial for trial in tuned.rivals if trial.point.curve == curve)


def test_the_chosen_meets_the_target_and_costs_no_more_than_any_rival_that_does(tuned):
    assert tuned.chosen.miss == 0
    if tuned.target.view == "slate":
        assert tuned.chosen.metrics["attained"] >= 0.95
    else:
        assert abs(tuned.chosen.metrics["share"] - 0.4) <= 0.01
    for trial in tuned.trials:
        if trial.miss == 0:
            assert tuned.chosen.metrics["ndcg"] >= 0.99 * trial.metrics["ndcg"]
    assert len(tuned.rivals) == RIVALS
    assert len(tuned.searched) == FEW["trials"]


def test_tuned_is_nearer_to_what_was_asked_than_the_default_on_users_it_never_saw(tuned, tmp_path):
    others = worlds.bench(seed=7)
    found = compare(tmp_path, tuned.chosen.point, [rival(tuned, "SPDD by default").point], others, 20)
    chosen, default = found
    assert (found[0].kept, len(found)) == (None, 2)
    if tuned.target.view == "slate":
        assert chosen.metrics["attained"].value == 1 == default.metrics["attained"].value
        assert default.metrics["ndcg"].value <= chosen.metrics["ndcg"].value
    else:
        assert abs(chosen.error.value) <= abs(default.error.value)
        assert chosen.error.low < chosen.error.value < chosen.error.high


def test_every_trial_is_kept_as_a_point_of_a_sweep(tuned):
    swept = read(tuned.folder)
    assert {r["key"] for r in swept.records} == {trial.key for trial in tuned.trials}
    for trial in tuned.trials:
        assert trial.record in swept.records


class PowerCutError(Exception):
    pass


def broken(after):
    """The small bench, whose policies fail after so many slate batches, and a list of all batches asked."""
    bench, asked = worlds.bench(), []

    def policy(point):
        plain = bench.policy(point)

        def counted(rows):
            asked.append((point.curve, dict(point.knob)))
            if len(asked) > after:
                raise PowerCutError
            return plain(rows)

        return counted

    return bench._replace(policy=policy), asked


@pytest.mark.parametrize("view", ["slate", "average"])
def test_a_broken_search_goes_on_as_if_unbroken_and_repeats_nothing(view, tmp_path):
    whole, all_asked = broken(10**9)
    unbroken = tune(whole, tmp_path / "unbroken", view=view, **FEW)
    cut, asked = broken(len(all_asked) - 3)
    with pytest.raises(PowerCutError):
        tune(cut, tmp_path / "broken", view=view, **FEW)
    rest, again = broken(10**9)
    resumed = tune(rest, tmp_path / "broken", view=view, **FEW)
    assert [t.key for t in resumed.trials] == [t.key for t in unbroken.trials]
    assert resumed.chosen.point == unbroken.chosen.point
    assert 0 < len(again) <= 5 < len(asked)  # the point that broke is two batches
    # More trials go on from there: the first ones are the same, and come from the disk.
    longer, more = broken(10**9)
    found = tune(longer, tmp_path / "broken", view=view, **FEW | {"trials": 5})
    assert [t.key for t in found.searched[:4]] == [t.key for t in unbroken.searched]
    assert 0 < len(more) <= 12


def test_another_seed_proposes_other_settings(tmp_path):
    some = [finds(tmp_path / str(seed), seed=seed, trials=6).searched[-1].point for seed in (0, 1)]
    assert some[0] != some[1]


def test_time_ends_a_search_and_progress_is_told(tmp_path):
    told = []
    found = finds(tmp_path, trials=50, seconds=0, progress=told.append)
    assert len(found.searched) == 1
    assert sum(told) == steps(1)


def test_an_average_the_model_gives_anyway_needs_no_search(tmp_path):
    found = tune(worlds.bench(1.0), tmp_path, view="average", **FEW)  # 0.2 of the slots; by itself it gives 0.22
    assert not found.searched
    assert found.chosen.metrics["ndcg"] >= rival(found, "greedy").metrics["ndcg"] * 0.99


def test_the_impossible_is_told_with_what_can_be_reached():
    bench = worlds.bench()
    few = bench._replace(domain=bench.domain._replace(reachable=np.where(np.arange(40) < 10, 1.0, 5.0)))
    with pytest.raises(ValueError, match=r"95% of slates should hold at least 2, and at most 75.0% can"):
        target_of(few, "slate")
    assert target_of(few, "slate", attained=0.7).floor == 2
    none = bench._replace(domain=bench.domain._replace(reachable=np.full(40, 1.5)))
    with pytest.raises(ValueError, match=r"should give 0.4 per slot on average, and at most 0.3"):
        target_of(none, "average")


def test_a_target_that_nothing_tried_meets_leaves_none_chosen(tmp_path):
    """Only even numbers of items fit these slates, so no average is within a thousandth of an odd one."""
    bench = worlds.bench(2.0)

    def policy(point):
        def slates(rows):
            plain = bench.policy(Point("greedy", {}, "greedy"))(rows)
            return plain if point.curve == "greedy" else bench.policy(Point("WA", {}, "wa", {"weight": 0.99}))(rows)

        return slates

    found = tune(bench._replace(policy=policy), tmp_path, view="average", trials=1)
    assert found.chosen is None
    assert found.nearest.miss == min(t.miss for t in found.trials) > 0


def test_slates_that_meet_the_floor_by_luck_are_not_enough():
    target = target_of(worlds.bench(), "slate")
    assert miss(target, {"attained": 38 / 40}, {}) > 0.05  # other 40 users may well be 35
    assert miss(target._replace(users=4000), {"attained": 0.96}, {}) == 0
    assert miss(target, {"attained": 1.0}, {}) == 0


def test_a_miss_upwards_counts_only_above_what_the_model_gives_anyway():
    target = target_of(worlds.bench(), "average", tolerance=0.02)
    for plain, share, far in ((0.2, 0.41, 0.0), (0.2, 0.5, 0.08), (0.5, 0.51, 0.0), (0.5, 0.3, 0.08), (0.5, 0.6, 0.08)):
        assert miss(target, {"share": share}, {"share": plain}) == pytest.approx(far)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"view": "traffic"}, "`view` must be one of slate, average"),
        ({"attained": 0}, "`attained` must be above 0"),
        ({"tolerance": -1.0}, "`tolerance` must be a number above 0"),
        ({"trials": 0}, "`trials` must be a number of at least 1"),
        ({"seconds": -1}, "`seconds` must be a number of at least 0"),
        ({"scales": ("log",)}, "`scales` must be some of logit, "),
    ],
)
def test_wrong_settings_are_refused(settings, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        tune(worlds.bench(), tmp_path, **settings)


# ---- steering ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [0.03, 0.3, 0.77])
def test_steering_finds_what_was_asked_within_its_looks(asked):
    found = steer(lambda x: 1 / (1 + np.exp(-x)), asked, first=0, low=-9, high=9, step=0.7, tolerance=0.005)
    assert abs(found.delivered - asked) <= 0.005
    assert len(found.tried) <= 9
    assert found.tried[found.knob] == found.delivered


def test_a_staircase_is_climbed_to_the_nearest_step():
    found = steer(lambda x: np.floor(10 * x) / 10, 0.36, first=0.1, low=0, high=1, step=0.2, tolerance=0.001)
    assert found.delivered == 0.4
    assert len(found.tried) == 12


def test_what_cannot_be_had_ends_at_the_end_of_the_range():
    found = steer(lambda x: 0.7 + x / 10, 0.3, first=0.5, low=0, high=1, step=0.1, tolerance=0.01)
    assert found.knob == 0
    assert len(found.tried) < 6
