"""`lift`: the same items in another order, sorted by the model's first scores and so much for each unit of value."""

import numpy as np
import pytest
import torch

import spdd
from spdd import Objective
from spdd.decode import products

ROWS, ITEMS, SLOTS = 6, 40, 8


@pytest.fixture
def world():
    """Scores that move with every choice, whether or not they are written, and an objective of one item in five."""
    g = torch.Generator().manual_seed(3)
    table = torch.randn(ITEMS, 5, generator=g)
    return Mood(table), torch.randn(ROWS, 5, generator=g), (torch.arange(ITEMS) % 5 == 0).double()


class Mood:
    """Hidden states that lean toward what was chosen, and are written over in place, as a model may do."""

    def __init__(self, table):
        self.table = table

    def start(self, histories):
        return histories.clone()

    def hidden(self, state):
        return state

    def logits(self, state):
        return state @ self.table.T

    def advance(self, state, items):
        return state.add_(0.5 * self.table[items])


def decoded(world, **settings):
    model, users, value = world
    return spdd.SPDD([Objective("new", value, at_least=3)], slots=SLOTS, **settings).generate(model, users)


def test_the_same_items_sorted_by_first_score_and_lift(world):
    model, users, value = world
    plain, first = decoded(world), model.logits(users).double()
    for lift in (-2.0, 0.0, 0.7):
        slate = decoded(world, lift=lift)
        assert torch.equal(slate.items.sort(1).values, plain.items.sort(1).values)
        assert torch.equal(slate.gained, plain.gained)
        assert torch.equal(slate.status, plain.status)
        key = first.gather(1, slate.items) + lift * value[slate.items]
        assert (key[:, :-1] >= key[:, 1:]).all()


def test_far_up_is_first_and_far_down_is_last(world):
    value = world[2]
    up, down = decoded(world, lift=1e6), decoded(world, lift=-1e6)
    assert torch.equal(value[up.items], value[up.items].sort(1, descending=True).values)
    assert torch.equal(value[down.items], value[down.items].sort(1).values)


def test_of_a_mere_cap_up_is_down(world):
    model, users, value = world
    decoder = spdd.SPDD([Objective("loud", value, at_most=2)], slots=SLOTS, lift=1e6)
    found = value[decoder.generate(model, users).items]
    assert torch.equal(found, found.sort(1).values)


def test_scores_that_are_never_written_give_the_same_order(world, monkeypatch):
    written = decoded(world, lift=0.7)
    monkeypatch.setattr(products, "WORTH", 0)
    assert torch.equal(decoded(world, lift=0.7).items, written.items)


def test_relevance_and_story_go_with_their_items(world):
    plain, slate = (decoded(world, lift=lift, trace=True) for lift in (None, 0.7))
    where = (slate.items[:, :, None] == plain.items[:, None]).long().argmax(2)
    assert torch.equal(slate.relevance, plain.relevance.gather(1, where))
    assert torch.equal(slate.trace.cost, plain.trace.cost.gather(1, where))
    assert torch.equal(slate.trace.dual[:, :, 0], plain.trace.dual[:, :, 0].gather(1, where))


def test_static_scores_and_empty_slots():
    scores, new = np.array([[3.0, 2.0, 1.0, 0.5]]), np.array([0, 0, 1, 1])
    decoder = spdd.SPDD([Objective("new", new, at_least=1)], slots=4, lift=10.0)
    assert decoder.rerank(scores).items.tolist() == [[2, 3, 0, 1]]
    assert decoder.rerank(scores, exclude=[[0]]).items.tolist() == [[2, 3, 1, -1]]


@pytest.mark.parametrize("lift", ["up", True, float("nan"), float("inf"), 10**400, [1.0]])
def test_what_is_no_number_is_refused(lift):
    with pytest.raises(ValueError, match="`lift` must be None or a finite number"):
        spdd.SPDD(lift=lift)


def test_values_that_depend_on_the_slate_are_refused():
    apart = spdd.spacing("apart", [0, 0, 1, 1], 2)
    with pytest.raises(ValueError, match="'apart' depends on the slate"):
        spdd.SPDD([apart], slots=2, lift=1.0)
    late = spdd.SPDD([Objective("apart", "column", at_least=0)], slots=2, lift=1.0).bind({"apart": apart.value})
    with pytest.raises(ValueError, match="'apart' depends on the slate"):
        late.rerank(np.zeros((1, 4)))


def test_a_model_that_proposes_is_refused():
    class Proposing:
        def start(self, histories): ...
        def advance(self, state, items): ...
        def propose(self, state): ...

    with pytest.raises(ValueError, match="proposes items"):
        spdd.SPDD(slots=2, lift=1.0).generate(Proposing(), [[1]])
