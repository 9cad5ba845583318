"""The rank of a held-out item among all unseen ones, counted by hand."""

import math

import pytest
import torch

from spdd.models import ranking


class Fixed:
    """The same scores for everyone."""

    def __init__(self, scores):
        self.scores = torch.tensor(scores)

    def start(self, histories):
        return self.scores.expand(len(histories), -1)

    def logits(self, state):
        return state


MODEL = Fixed([5.0, 4.0, 4.0, 3.0, 1.0])


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_rank_counts_the_unseen_items_before(batch):
    histories = [[], [0], [0, 1], [4, -1]]
    found = ranking.ranks(MODEL, histories, [3, 3, 3, 0], batch=batch)
    assert found.tolist() == [3, 2, 1, 0]


def test_equal_scores_stand_in_order_of_items():
    assert ranking.ranks(MODEL, [[], []], [1, 2]).tolist() == [1, 2]


def test_unknown_and_seen_targets_stand_behind_all():
    assert ranking.ranks(MODEL, [[], [2]], [-1, 2]).tolist() == [5, 5]


@pytest.mark.parametrize("lost", [float("nan"), float("inf")])
def test_scores_that_are_no_numbers_stand_behind_all(lost):
    """A model that has diverged must not look perfect."""
    assert ranking.ranks(Fixed([lost] * 4), [[], [], [2]], [0, 3, 1]).tolist() == [4, 4, 4]
    assert ranking.ranks(Fixed([1.0, lost, 3.0, lost]), [[], [], []], [0, 1, 2]).tolist() == [1, 4, 0]


def test_metrics_by_hand():
    rank = torch.tensor([0, 2, 9, 10])
    assert ranking.recall(rank).tolist() == [1, 1, 1, 0]
    assert ranking.ndcg(rank).tolist() == pytest.approx([1, 0.5, 1 / math.log2(11), 0])
    assert ranking.recall(rank, 1).tolist() == [1, 0, 0, 0]


def test_nobody_to_rank():
    assert ranking.ranks(MODEL, [], []).tolist() == []
