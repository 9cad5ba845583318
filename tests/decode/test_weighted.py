"""WA and EPR against their definitions. That they make proper slates is in test_contract.py."""

import numpy as np
import pytest
import torch

import spdd
from spdd import IMPOSSIBLE, MET, SHORT, Objective


def world(rows=6, items=40, seed=0):
    random = np.random.default_rng(seed)
    return random.normal(size=(rows, items)), (random.random(items) < 0.2).astype(float), random.random(items)


def sorted_by(score, slots):
    """Python's sort is stable: of equal scores the earlier."""
    return sorted(range(len(score)), key=lambda j: -score[j])[:slots]


@pytest.mark.parametrize("weight", [0.0, 0.2, 0.7])
def test_wa_sorts_by_the_weighted_average(weight):
    logits, new, _ = world()
    slate = spdd.WA([Objective("new", new)], slots=7, weight=weight, scale="relative").rerank(logits)
    relevance = np.exp(logits - logits.max(1, keepdims=True))
    assert slate.items.tolist() == [sorted_by((1 - weight) * r + weight * new, 7) for r in relevance]


def test_weights_of_several_objectives():
    logits, new, worth = world()
    objectives = [Objective("new", new), Objective("worth", worth)]
    slate = spdd.WA(objectives, slots=7, weight=[0.3, 0.2]).rerank(logits)
    assert slate.items.tolist() == [sorted_by(0.5 * r + 0.3 * new + 0.2 * worth, 7) for r in logits]
    np.testing.assert_allclose(slate.dual, [[0.6, 0.4]] * 6)
    even, one = spdd.WA(objectives, slots=7, weight=[0.2, 0.2]), spdd.WA(objectives, slots=7, weight=0.4)
    assert np.array_equal(one.rerank(logits).items, even.rerank(logits).items)


@pytest.mark.parametrize("decoder", [spdd.WA, spdd.EPR])
def test_less_is_wanted_of_what_only_has_a_cap(decoder):
    logits, new, _ = world()
    logits = logits + new  # without a price there would be many
    plain = decoder([Objective("new", new, at_most=1)], slots=7, weight=0).rerank(logits)
    weighed = decoder([Objective("new", new, at_most=1)], slots=7, weight=0.5).rerank(logits)
    assert weighed.gained.sum() < plain.gained.sum()
    assert (weighed.dual == 1).all()


# ---- ex-post re-ranking ------------------------------------------------------------------------------------


def epr(relevance, value, pool, slots, weight):
    """The list the model made (items in order, relevance when chosen), re-ordered by weighted average and cut."""
    return [
        pool[i]
        for i in sorted_by([(1 - weight) * r + weight * value[j] for j, r in zip(pool, relevance, strict=True)], slots)
    ]


@pytest.mark.parametrize("pool", [7, 15, 40, 1000])
@pytest.mark.parametrize("ties", [False, True])
def test_epr_of_static_scores_reorders_the_most_relevant(pool, ties):
    logits, new, _ = world()
    if ties:
        logits = logits.round()
    slate = spdd.EPR([Objective("new", new)], slots=7, weight=0.5, pool=pool).rerank(logits)
    want = []
    for row in logits:
        best = sorted_by(row, pool)
        want.append(epr(row[best], new, best, 7, 0.5))
    assert slate.items.tolist() == want


def model_that_listens(logits):
    """Scores that fall for items like the last one, so that relevance is not what it was at the start."""
    near = -np.abs(np.subtract.outer(np.arange(40), np.arange(40))) / 10

    def scores(histories):
        last = histories[:, -1].numpy()
        return torch.from_numpy(logits - near[last] + 0.05 * (histories >= 0).sum(1, keepdim=True).numpy())

    return spdd.FromCallable(scores)


def test_epr_of_a_model_keeps_relevance_as_it_was_when_chosen():
    logits, new, _ = world()
    model, histories = model_that_listens(logits), [[0]] * 6
    decoder = spdd.EPR([Objective("new", new)], slots=7, weight=0.4, pool=20)
    slate = decoder.generate(model, histories, exclude="seen")
    for row in range(6):
        state, pool, relevance = model.start([[0]]), [], []
        for _ in range(20):
            score = model.function(state.expand(6, -1))[row].numpy()
            score[[0, *pool]] = -np.inf
            pool.append(int(score.argmax()))
            relevance.append(score[pool[-1]])
            state = model.advance(state, torch.tensor([pool[-1]]))
        items = epr(relevance, new, pool, 7, 0.4)
        assert slate.items[row].tolist() == items
        np.testing.assert_allclose(slate.relevance[row], [relevance[pool.index(j)] for j in items])


def test_of_equal_items_the_one_the_model_chose_first_comes_first():
    """Not the one with the lower number: the list is re-ordered, and order is all it has."""
    answers = iter([torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[0.0, 2.0, 0.0]])])
    slate = spdd.EPR([Objective("none", np.zeros(3))], slots=3, pool=3).generate(
        spdd.FromCallable(lambda histories: next(answers)), [[]]
    )
    assert slate.items.tolist() == [[2, 0, 1]]
    assert slate.relevance.tolist() == [[2.0, 2.0, 2.0]]


def test_epr_of_a_value_that_depends_on_the_slate():
    """Of each kind one first, then by relevance again; all within the pool."""
    kind = torch.tensor([0, 0, 0, 1, 1, 2, 2, 3])

    def fresh(chosen):
        taken = torch.zeros(len(chosen), 5).scatter(1, torch.where(chosen < 0, 4, kind[chosen]), 1.0)
        return 1 - taken[:, kind]

    logits = np.arange(8, 0, -1, dtype=float)[None]
    slate = spdd.EPR([Objective("fresh", fresh)], slots=5, weight=0.99, pool=7).rerank(logits)
    assert slate.items.tolist() == [[0, 3, 5, 1, 2]]  # item 7 is the only one of its kind, and outside
    assert slate.gained.tolist() == [[3.0]]


def test_what_the_pool_lacks_is_short_and_what_nobody_has_is_impossible():
    logits = np.array([[9.0, 8, 7, 6, 5, 4, 3, 2], [9.0, 8, 7, 6, 5, 4, 3, 2]])
    exclude = np.zeros((2, 8), dtype=bool)
    exclude[1, 7] = True
    new = [0, 0, 0, 1, 0, 0, 0, 1]
    decoder = spdd.EPR([Objective("new", new, at_least=2)], slots=3, weight=0.9, pool=5)
    slate = decoder.rerank(logits, exclude=exclude)
    assert slate.status.tolist() == [SHORT, IMPOSSIBLE]
    assert slate.reachable.tolist() == [[2.0], [1.0]]
    assert slate.gained.tolist() == [[1.0], [1.0]]
    wide = spdd.EPR([Objective("new", new, at_least=2)], slots=3, weight=0.9, pool=8)
    assert wide.rerank(logits).status.tolist() == [MET, MET]


@pytest.mark.parametrize("items", [30, 400])  # with 400 a short way through value groups is taken
def test_what_is_excluded_cannot_be_reached(items):
    logits, new, _ = world(items=items)
    exclude = np.tile(new > 0, (6, 1))
    exclude[:, new.nonzero()[0][:2]] = False
    slate = spdd.EPR([Objective("new", new, at_least=3)], slots=5, pool=10).rerank(logits, exclude=exclude)
    assert (slate.reachable == 2).all()
    assert (slate.status == IMPOSSIBLE).all()


def test_a_share_is_one_of_the_slots_not_of_the_pool():
    logits, new, _ = world()
    slate = spdd.EPR([Objective("new", new, at_least="50%", at_most=6)], slots=8, weight=0.9, pool=40).rerank(logits)
    assert np.array_equal(slate.status == MET, (slate.gained[:, 0] >= 4) & (slate.gained[:, 0] <= 6))
