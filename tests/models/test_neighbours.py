"""Popularity and item-kNN against counting by hand; both decode like any other model."""

import itertools

import numpy as np
import pytest
import torch

import spdd
from spdd.data.interactions import Sequences
from spdd.models.neighbours import Popularity, item_knn

ITEMS = 15


def sequences(lists):
    start = np.concatenate([[0], np.cumsum([len(x) for x in lists])])
    item = np.concatenate(lists).astype(np.int64)
    return Sequences(np.array([f"{i:03d}" for i in range(len(lists))]), start, item, np.arange(len(item)), {})


@pytest.fixture
def lists():
    rng = np.random.default_rng(0)
    return [rng.integers(0, ITEMS, size) for size in rng.integers(1, 8, 40)]


def test_popularity_is_the_order():
    model = Popularity(torch.tensor([1, 5, 3]))
    assert spdd.Greedy(slots=2).generate(model, [[], [1]], exclude="seen").items.tolist() == [[1, 2], [2, 0]]


@pytest.mark.parametrize("window", [1, 3, 100])
def test_likeness_by_hand(lists, window):
    model = item_knn(sequences(lists), ITEMS, neighbours=ITEMS, window=window, shrink=0.5)
    together = np.zeros((ITEMS, ITEMS))
    count = np.bincount(np.concatenate(lists), minlength=ITEMS)
    for row in lists:
        pairs = itertools.combinations(range(len(row)), 2)
        near = {frozenset((row[i], row[j])) for i, j in pairs if j - i <= window and row[i] != row[j]}
        for a, b in map(tuple, near):
            together[a, b] += 1
            together[b, a] += 1
    alike = together / (np.sqrt(np.outer(count, count)) + 0.5)
    history = [[2], [3, 7, -1], []]
    expected = np.stack([alike[2], alike[3] + alike[7], np.zeros(ITEMS)])
    np.testing.assert_allclose(model.logits(model.start(history)), expected, atol=3e-6)


def test_only_the_most_alike_count(lists):
    many, few = (item_knn(sequences(lists), ITEMS, neighbours=n) for n in (ITEMS, 2))
    first, second = (m.logits(m.start([[i] for i in range(ITEMS)])) for m in (many, few))
    kept = second > 1e-3
    assert kept.sum(1).max() == 2
    torch.testing.assert_close(first[kept], second[kept])


def test_advancing_equals_starting_with_more(lists):
    model = item_knn(sequences(lists), ITEMS, neighbours=4)
    before = model.start([[1], [2, 3]])
    after = model.advance(before, torch.tensor([5, -1]))
    torch.testing.assert_close(after, model.start([[1, 5], [2, 3]]))
    torch.testing.assert_close(before, model.start([[1], [2, 3]]))


def test_without_any_pair_popularity_decides():
    model = item_knn(sequences([[0], [1], [1]]), 3)
    assert spdd.Greedy(slots=3).generate(model, [[2]]).items.tolist() == [[1, 0, 2]]
