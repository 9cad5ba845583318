"""The best slate in hindsight, against every slate there is."""

import itertools

import numpy as np
import pytest
import torch

from spdd.decode.bounds import certificate
from spdd.decode.hindsight import moving_certificate, undominated
from spdd.decode.oracle import static_optimum

VALUES = {
    "0/1": lambda random, items: (random.random(items) < 0.4).astype(float),
    "whole": lambda random, items: random.integers(0, 4, items).astype(float),
    "real": lambda random, items: random.random(items),
}


def best_of_all(scores, value, floor):
    """The most relevant ordered slate with the floor, by trying all. scores: (K, M)"""
    slots, items = scores.shape
    totals = [
        sum(scores[k, j] for k, j in enumerate(slate))
        for slate in itertools.permutations(range(items), slots)
        if value[list(slate)].sum() >= floor - 1e-9
    ]
    return max(totals, default=-np.inf)


@pytest.mark.parametrize("kind", VALUES)
def test_no_slate_is_worth_more(kind):
    random = np.random.default_rng(0)
    gaps = []
    for _ in range(60):
        scores, value = random.random((1, 3, 8)), VALUES[kind](random, 8)
        floor = random.random() * np.sort(value)[-3:].sum() * 1.1
        floor = np.ceil(floor) if kind == "0/1" else floor
        best, bound = best_of_all(scores[0], value, floor), moving_certificate(scores, value, floor=floor)[0]
        if best == -np.inf:
            assert bound == -np.inf
            continue
        assert bound >= best - 1e-9
        gaps.append(bound - best)
    assert len(gaps) > 30
    assert np.median(gaps) < 0.02  # and it is not idle
    assert max(gaps) < 0.6


def test_still_scores_give_the_certificate():
    random = np.random.default_rng(1)
    scores, value = random.random((20, 1, 40)), random.random(40)
    eligible = random.random((20, 40)) < 0.7
    found = moving_certificate(scores.repeat(5, 1), value, floor=3.5, eligible=eligible)
    expected = certificate(scores[:, 0], value, slots=5, floor=3.5, eligible=torch.as_tensor(eligible))
    assert found == pytest.approx(expected.numpy(), abs=1e-9)


@pytest.mark.parametrize("kind", VALUES)
def test_what_is_dominated_is_not_needed(kind):
    random = np.random.default_rng(2)
    for _ in range(20):
        scores, value = random.random(60).round(1), VALUES[kind](random, 60)  # with ties
        floor = 0.8 * np.sort(value)[-4:].sum()
        items = undominated(scores, value, 4)
        some = static_optimum(scores[items], value[items], slots=4, floor=floor)
        assert some.relevance == pytest.approx(static_optimum(scores, value, slots=4, floor=floor).relevance)
        assert len(items) < 60
