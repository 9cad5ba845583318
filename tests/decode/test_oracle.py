"""The oracle against what is more plainly true: brute force over all sets, recursion over all orders."""

import itertools
import time
from typing import NamedTuple

import numpy as np
import pytest
import torch

from spdd.decode.oracle import autoregressive_optimum, enumerate_slates, reachable, static_optimum, take_rows


def brute_force(relevance, value, slots, floor, cap, eligible):
    """Best relevance over all sets of eligible items, -inf if none keeps the targets."""
    best = -np.inf
    for items in map(list, itertools.combinations(np.flatnonzero(eligible), min(slots, int(eligible.sum())))):
        gained = value[items].sum(0)
        if (gained >= floor - 1e-9).all() and (gained <= cap + 1e-9).all():
            best = max(best, relevance[items].sum())
    return best


@pytest.mark.parametrize("objectives", [1, 2, 3])
def test_static_optimum_equals_brute_force(objectives):
    rng = np.random.default_rng(objectives)
    outcomes = []
    for _ in range(40):
        relevance = rng.random(9) * 10 ** rng.uniform(-6, 2)  # probabilities of a large catalog are small
        value = rng.integers(0, 2, (9, objectives)) if rng.random() < 0.5 else rng.random((9, objectives)).round(2)
        floor = np.where(rng.random(objectives) < 0.7, rng.uniform(0, 2.5, objectives).round(1), -np.inf)
        cap = np.where(rng.random(objectives) < 0.5, np.maximum(floor, 0) + rng.uniform(0, 1.5), np.inf)
        eligible = rng.random(9) < 0.8
        found = static_optimum(relevance, value, slots=4, floor=floor, cap=cap, eligible=eligible)
        truth = brute_force(relevance, value, 4, floor, cap, eligible)
        assert found.relevance == pytest.approx(truth, rel=1e-9)
        assert found.feasible == np.isfinite(truth)
        outcomes.append(found.feasible)
        if found.feasible:
            items = found.items.numpy()
            assert eligible[items].all()
            assert len(set(items)) == len(items) == min(4, eligible.sum())
            assert (np.diff(relevance[items]) <= 0).all()
            np.testing.assert_allclose(found.gained, value[items].sum(0))
        else:
            assert len(found.items) == 0
    assert 0 < sum(outcomes) < len(outcomes)  # both kinds were met


def test_no_targets_is_plain_top_k():
    relevance = torch.rand(50, generator=torch.Generator().manual_seed(0))
    found = static_optimum(relevance, torch.ones(50), slots=7)
    assert torch.equal(found.items, relevance.topk(7).indices)


def test_fewer_items_than_slots():
    found = static_optimum([0.1, 0.2, 0.3], [1, 0, 0], slots=5, eligible=[True, False, True])
    assert found.items.tolist() == [2, 0]


@pytest.mark.parametrize("seed", range(5))
def test_reachable_equals_brute_force(seed):
    rng = np.random.default_rng(seed)
    value = rng.random((10, 6)).round(2)
    value[:, 5] = rng.integers(0, 2, 10)
    eligible = rng.random(10) < 0.8
    low, high = rng.uniform(0.2, 0.8, 6), rng.uniform(0.1, 2.5, 6)
    floor = np.where([1, 0, 1, 1, 0, 1], low, -np.inf)
    cap = np.where([0, 1, 1, 1, 0, 1], [0, high[1], low[2], high[3], 0, 1], np.inf)
    found = reachable(value, slots=3, floor=floor, cap=cap, eligible=eligible)
    for c in range(6):
        sums = np.array([value[list(s), c].sum() for s in itertools.combinations(np.flatnonzero(eligible), 3)])
        kept = sums[sums <= cap[c] + 1e-9]
        truth = sums.min() if np.isneginf(floor[c]) and np.isfinite(cap[c]) else kept.max(initial=-np.inf)
        assert found[c] == pytest.approx(truth if np.isfinite(truth) else sums.min())


class State(NamedTuple):
    last: torch.Tensor  # (R,)
    parts: tuple


class Chain:
    """Scores that depend on the last item and on how many came before; a state with all kinds of parts."""

    table = torch.rand(6, 5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def start(self, histories):
        return State(torch.as_tensor(histories), (torch.zeros(len(histories), 1, dtype=torch.long), "label", None))

    def logits(self, state):
        return self.table[state.parts[0][:, 0], state.last]

    def advance(self, state, items):
        return State(items, (state.parts[0] + 1, *state.parts[1:]))


def naive(model, history, slots, exclude=()):
    """All slates by plain recursion, one row at a time."""
    answer = []

    def visit(state, items, relevance):
        if len(items) == slots:
            answer.append((items, relevance))
            return
        scores = model.logits(state)[0]
        for item in sorted(set(range(len(scores))) - set(items) - set(exclude)):
            visit(model.advance(state, torch.tensor([item])), [*items, item], [*relevance, float(scores[item])])

    visit(model.start(history), [], [])
    return answer


@pytest.mark.parametrize("exclude", [(), (3,), (0, 4)])
def test_enumeration_equals_recursion(exclude):
    model, history = Chain(), torch.tensor([2])
    found = enumerate_slates(model, history, slots=3, exclude=exclude)
    truth = naive(model, history, 3, exclude)
    assert found.items.tolist() == [items for items, _ in truth]
    assert found.relevance.tolist() == [relevance for _, relevance in truth]


def test_relevance_is_taken_step_by_step():
    model, history = Chain(), torch.tensor([0])
    plain = enumerate_slates(model, history, slots=2)
    soft = enumerate_slates(model, history, slots=2, relevance=lambda logits: logits.softmax(1))
    torch.testing.assert_close(soft.relevance[:, 0], model.table[0, 0].softmax(0)[plain.items[:, 0]])
    assert torch.equal(soft.items, plain.items)


def test_twelve_items_four_slots_are_quick():
    class Still:
        def start(self, histories):
            return torch.zeros(len(histories), 1)

        def logits(self, state):
            return torch.zeros(len(state), 12)

        def advance(self, state, items):
            return state

    began = time.perf_counter()
    found = enumerate_slates(Still(), torch.zeros(1), slots=4)
    assert found.items.shape == (12 * 11 * 10 * 9, 4)
    assert time.perf_counter() - began < 2


def test_enumeration_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="2 rows"):
        enumerate_slates(Chain(), torch.tensor([0, 1]), slots=2)
    with pytest.raises(ValueError, match="`slots` is 5 but 4 items"):
        enumerate_slates(Chain(), torch.tensor([0]), slots=5, exclude=[1])


def test_autoregressive_optimum_is_the_best_allowed():
    model = Chain()
    everything = enumerate_slates(model, torch.tensor([1]), slots=3)
    value = torch.tensor([[0, 1], [1, 0], [1, 1], [0, 0], [0, 1.0]])
    found = autoregressive_optimum(everything, value, floor=[1, -torch.inf], cap=[torch.inf, 1])
    allowed = [
        (sum(relevance), items)
        for items, relevance in naive(model, torch.tensor([1]), 3)
        if value[items, 0].sum() >= 1 and value[items, 1].sum() <= 1
    ]
    assert (found.relevance, found.items.tolist()) == (pytest.approx(max(allowed)[0]), max(allowed)[1])
    assert torch.equal(found.gained, value[found.items].sum(0).double())
    impossible = autoregressive_optimum(everything, value[:, 0], floor=3)
    assert not impossible.feasible
    assert impossible.relevance == -torch.inf


def test_scores_that_do_not_move_make_both_optima_agree():
    class Still(Chain):
        def logits(self, state):
            return self.table[0, 0].expand(len(state.last), 5)

    value = torch.tensor([0, 1, 0, 1, 1.0])
    ordered = autoregressive_optimum(enumerate_slates(Still(), torch.tensor([0]), slots=3), value, floor=2)
    static = static_optimum(Chain.table[0, 0], value, slots=3, floor=2)
    assert ordered.relevance == pytest.approx(static.relevance, rel=1e-12)
    assert sorted(ordered.items.tolist()) == sorted(static.items.tolist())


def test_take_rows_reaches_every_tensor():
    state = State(torch.arange(3), (torch.arange(6).reshape(3, 2), "label", None, torch.tensor(7)))
    taken = take_rows(state, torch.tensor([2, 2, 0]))
    assert isinstance(taken, State)
    assert taken.last.tolist() == [2, 2, 0]
    assert taken.parts[0].tolist() == [[4, 5], [4, 5], [0, 1]]
    assert taken.parts[1:] == ("label", None, torch.tensor(7))
