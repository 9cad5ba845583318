"""Fronts and areas against their definitions, intervals against how often they hold the truth."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from spdd.evaluate import bootstrap, pareto
from spdd.evaluate.metrics import Outcome, Ratio
from spdd.evaluate.positions import by_position

SMALL = st.integers(0, 4)


def covered(points, corner=5):
    """How many unit cells the points cover, counted one by one."""
    cells = np.stack(np.meshgrid(*[np.arange(corner)] * points.shape[1], indexing="ij"), -1).reshape(
        -1, points.shape[1]
    )
    return int((points[:, None] > cells).all(2).any(0).sum())


@pytest.mark.parametrize("metrics", [1, 2, 3])
@given(data=st.data())
def test_hypervolume_counts_cells(metrics, data):
    points = data.draw(arrays(np.int64, st.tuples(st.integers(1, 6), st.just(metrics)), elements=SMALL))
    assert pareto.hypervolume(points, np.zeros(metrics)) == covered(points)
    assert pareto.hypervolume(points[pareto.front(points)], np.zeros(metrics)) == covered(points)


@given(arrays(np.int64, st.tuples(st.integers(1, 8), st.just(2)), elements=SMALL))
def test_front_holds_what_nothing_beats(points):
    for i, kept in enumerate(pareto.front(points)):
        beaten = any((p >= points[i]).all() and (p > points[i]).any() for p in points)
        assert kept != beaten


def test_areas_of_many_draws_are_each_as_alone():
    points = np.random.default_rng(0).random((50, 6, 2))
    together = pareto.hypervolume(points, [0.2, 0.1])
    assert together == pytest.approx([pareto.hypervolume(p, [0.2, 0.1]) for p in points])


def mean_of(numbers):
    return Ratio(np.asarray(numbers, dtype=float), np.ones_like(numbers, dtype=float))


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    random, held = np.random.default_rng(0), 0
    draws = bootstrap.draw_users(200, draws=400)
    for _ in range(300):
        # A ratio of sums whose truth is 0.5 / 1.5, both parts noisy and dependent.
        bottom = random.integers(1, 3, 200).astype(float)
        found = bootstrap.known(Ratio(bottom * (random.random(200) < 1 / 3), bottom), draws)
        held += found.low <= 1 / 3 <= found.high
    assert 270 <= held <= 297  # 95 % of 300 is 285


def test_pairing_sees_what_two_intervals_cannot():
    random = np.random.default_rng(1)
    easy = random.random(500)
    one, other = mean_of(easy + 0.01 + 0.02 * random.standard_normal(500)), mean_of(easy)
    draws = bootstrap.draw_users(500)
    a, b, apart = bootstrap.known(one, draws), bootstrap.known(other, draws), bootstrap.difference(one, other, draws)
    assert a.low < b.high  # the intervals overlap
    assert apart.low > 0
    assert apart.p_value < 0.01
    assert apart.value == pytest.approx(a.value - b.value)
    assert bootstrap.quotient(one, other, draws).low > 1


def test_nothing_different_is_rarely_called_so():
    random, called = np.random.default_rng(2), 0
    draws = bootstrap.draw_users(150, draws=300)
    for _ in range(300):
        both = random.random((2, 150))
        called += bootstrap.difference(mean_of(both[0]), mean_of(both[1]), draws).p_value < 0.05
    assert 4 <= called <= 30  # 5 % of 300 is 15


def test_draws_are_the_same_for_the_same_seed():
    assert (bootstrap.draw_users(30, 5, seed=3) == bootstrap.draw_users(30, 5, seed=3)).all()
    assert (bootstrap.draw_users(30, 5, seed=3) != bootstrap.draw_users(30, 5, seed=4)).any()


def family(firsts, seconds, noise, users=400, seed=0):
    """Points around these means, every user with a bit of noise that all points share."""
    shared = noise * np.random.default_rng(seed).standard_normal((2, users))
    first, second = (np.asarray(m)[:, None] + s for m, s in zip((firsts, seconds), shared, strict=True))
    return pareto.Family(mean_of(first), mean_of(second))


def test_a_family_above_another_is_ahead_and_beats_its_front():
    low = family([0.1, 0.2, 0.15], [0.2, 0.1, 0.05], 0.3)
    high = family([0.12, 0.22], [0.22, 0.12], 0.3)
    draws = bootstrap.draw_users(400, 300)
    assert pareto.ahead(high, low, draws).low > 0
    part, sure = pareto.dominated(high, low, draws)
    assert part.value == part.low == 1
    assert sure[:2].tolist() == [1, 1]
    assert np.isnan(sure[2])  # no part of the front
    assert pareto.dominated(low, high, draws)[0].high == 0
    areas = pareto.hypervolumes({"low": low, "high": high}, draws)
    assert areas["low"].value == pytest.approx(pareto.hypervolume(low.points(), [0, 0]))
    assert areas["high"].low < areas["high"].value < areas["high"].high


def test_positions_are_column_means_with_intervals():
    random = np.random.default_rng(0)
    hit, value = random.random((300, 4)) < [0.4, 0.3, 0.2, 0.1], (random.random((300, 4)) < 0.5).astype(float)
    found = by_position(Outcome(hit, value, hit | True), bootstrap.draw_users(300, 200))
    assert found["share"]["value"] == pytest.approx(value.mean(0))
    assert found["consumption"]["value"] == pytest.approx(hit.mean(0))
    assert found["objective_consumption"]["value"] == pytest.approx((hit * value).mean(0))
    for name, parts in found.items():
        assert (np.array(parts["low"]) < parts["value"]).all(), name
        assert (np.array(parts["high"]) > parts["value"]).all(), name
