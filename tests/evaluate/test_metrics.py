"""NDCG and Precision as ir-measures has them, on random slates; the rest by definitions that can be seen by eye."""

import ir_measures
import numpy as np
import pytest
from ir_measures import P, nDCG

from spdd.evaluate.metrics import measure, outcome_of, shortfall, truth_of

USERS, ITEMS, SLOTS = 60, 40, 7


def world(seed):
    """Slates (some with empty slots), targets (some users have none), 0/1 values."""
    random = np.random.default_rng(seed)
    slates = np.argsort(random.random((USERS, ITEMS)), 1)[:, :SLOTS]
    slates[:5, 4:] = -1
    slates[5] = -1
    targets = np.argsort(random.random((USERS, ITEMS)), 1)[:, :9]
    targets[random.random(targets.shape) < 0.6] = -1
    return slates, targets, random.random(ITEMS) < 0.3


def theirs(metric, slates, targets):
    """(U,) by ir-measures; nan where there is nothing to find, which it does not rank."""
    relevance = [ir_measures.Qrel(str(u), str(i), 1) for u, row in enumerate(targets) for i in row if i >= 0]
    run = [
        ir_measures.ScoredDoc(str(u), str(i), -float(k))
        for u, row in enumerate(slates)
        for k, i in enumerate(row)
        if i >= 0
    ]
    found = np.full(len(slates), np.nan)
    for user in {int(q.query_id) for q in relevance}:
        found[user] = 0.0  # asked, and given nothing
    for one in ir_measures.iter_calc([metric], relevance, run):
        found[int(one.query_id)] = one.value
    return found


@pytest.mark.parametrize("seed", [0, 1])
def test_ndcg_and_precision_are_those_of_ir_measures(seed):
    slates, targets, own = world(seed)
    found = measure(outcome_of(slates, targets, own), truth_of(targets, own))
    wanted = np.where((targets >= 0) & own[targets], targets, -1)
    for name, metric, of in (
        ("ndcg", nDCG @ SLOTS, targets),
        ("objective_ndcg", nDCG @ SLOTS, wanted),
        ("precision", P @ SLOTS, targets),
        ("objective_precision", P @ SLOTS, wanted),
    ):
        expected = theirs(metric, slates, of)
        asked = ~np.isnan(expected)
        assert 5 < asked.sum() < USERS + 1
        top, bottom = found[name]
        np.testing.assert_allclose(top[asked], expected[asked], atol=1e-9, err_msg=name)
        if "ndcg" in name:
            assert (bottom == asked).all(), name
            assert found[name].value() == pytest.approx(np.nanmean(expected))


def test_many_policies_at_once_are_each_as_alone():
    slates, targets, own = world(0)
    truth = truth_of(targets, own)
    each = [outcome_of(s, targets, own) for s in (slates, slates[:, ::-1], np.roll(slates, 1, 0))]
    together = measure(type(each[0])(*(np.stack(x) for x in zip(*each, strict=True))), truth, floor=2)
    for p, one in enumerate(each):
        for name, alone in measure(one, truth, floor=2).items():
            assert together[name].value()[p] == alone.value(), name


def test_stream_share_is_a_ratio_of_all_users_and_share_counts_what_is_shown():
    targets = np.array([[0, 1, 2], [3, -1, -1]])
    own = np.array([0, 1, 0, 1, 1])
    found = measure(outcome_of(np.array([[0, 1], [4, 3]]), targets, own), truth_of(targets, own), floor=2)
    assert found["stream_share"].value() == pytest.approx(2 / 3)  # consumed 0, 1 and 3; of these 1 and 3 are own
    assert found["share"].value() == pytest.approx(3 / 4)
    assert found["attained"].value() == pytest.approx(1 / 2)
    assert found["shortfall"].value() == pytest.approx(1 / 2)


def test_values_may_differ_by_user_and_be_graded():
    value = np.array([[0.5, 0.0], [0.0, 2.0]])
    outcome = outcome_of(np.array([[0, 1], [0, 1]]), np.array([[0], [0]]), value)
    assert outcome.value.tolist() == [[0.5, 0.0], [0.0, 2.0]]
    assert truth_of(np.array([[0], [0]]), value).wanted.tolist() == [1, 0]


def test_a_hair_below_the_floor_is_no_shortfall():
    assert shortfall(np.array([3 * np.float32(0.7), 2.0]), 2.1).tolist() == [0.0, pytest.approx(0.1)]


def test_nobody_has_anything_to_find():
    found = measure(outcome_of(np.array([[0]]), np.array([[-1]]), np.ones(1)), truth_of(np.array([[-1]]), np.ones(1)))
    assert np.isnan(found["ndcg"].value())
    assert np.isnan(found["stream_share"].value())
    assert found["precision"].value() == 0
