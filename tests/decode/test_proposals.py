"""A model that proposes its best items is decoded as if all its scores were known, as far as it finds them."""

import numpy as np
import pytest
import torch
from test_contract import DECODERS, SHARED, new, some_excluded, world

import spdd
from spdd import IMPOSSIBLE, MET, SPDD, Objective

UNIT = ("probability", "relative")


class Scored:
    """A model whose log-probabilities depend on all that came before."""

    def __init__(self, w, seed=0):
        self.items = w.logits.shape[1]
        self.device = w.logits.device
        self.follows = torch.randn(self.items, self.items, generator=torch.Generator().manual_seed(seed)).double()
        self.base = w.logits.double()

    def start(self, histories):
        return torch.as_tensor(np.asarray(histories))

    def logits(self, state):
        known = (state >= 0)[:, :, None]
        return (self.base[: len(state)] + (self.follows[state] * known).sum(1)).log_softmax(1)

    def advance(self, state, items):
        return torch.cat([state, items[:, None]], 1)


class Proposing:
    """The same, offering its `width` best."""

    def __init__(self, model, width):
        self.model, self.width = model, min(width, model.items)
        self.items, self.device = model.items, model.device
        self.start, self.advance = model.start, model.advance
        self.asked = []

    def propose(self, state, open_, bonus):
        self.asked.append((open_, bonus))
        logits = self.model.logits(state)
        score = logits if bonus is None else logits + bonus
        best = score.masked_fill(~open_, -torch.inf).topk(self.width, 1)
        return best.indices.masked_fill(best.values == -torch.inf, -1), logits.gather(1, best.indices)


def both(name, slots=6, width=10**6, **options):
    w = world()
    model, histories = Scored(w), [[0, 1], [2, 3], [-1, 4], [5, 6], [7, 8]]
    return [DECODERS[name](w, slots).generate(m, histories, **options) for m in (model, Proposing(model, width))]


def same(slate, other):
    assert torch.equal(slate.items, other.items)
    torch.testing.assert_close(slate.gained, other.gained)
    torch.testing.assert_close(slate.dual, other.dual, rtol=1e-6, atol=1e-9)
    assert torch.equal(slate.status, other.status)
    torch.testing.assert_close(slate.reachable, other.reachable, equal_nan=True)


SPELLED = [
    name for name in DECODERS if name not in ("SPDD real values", "SPDD lifted")
]  # the sigmoid scale; all scores


@pytest.mark.parametrize("name", SPELLED)
def test_proposing_all_items_is_scoring_them(name):
    scored, proposed = both(name)
    same(scored, proposed)
    torch.testing.assert_close(scored.relevance, proposed.relevance, equal_nan=True)


@pytest.mark.parametrize("name", SPELLED)
def test_what_is_excluded_is_never_served(name):
    exclude = some_excluded(world())
    exclude[0] = True
    _, proposed = both(name, width=7, exclude=exclude)
    assert proposed.items[0].tolist() == [-1] * 6
    for row in range(1, 5):
        items = proposed.items[row]
        assert len(set(items.tolist())) == 6
        assert (items >= 0).all()
        assert not exclude[row][items].any()


# Log scales, where one search knows all there is to know; and one 0/1 objective, where two do.
EXACT = ["Greedy", "MustFill", "WA two", "SPDD", "SPDD as printed", "SPDD from a number", "MMR", "EPR", "DPP"]
WARM = ["SPDD cap", "SPDD warm"]  # the first price is read off a whole slate of proposals


@pytest.mark.parametrize(("name", "width"), [*((n, 1) for n in EXACT), *((n, 6) for n in EXACT + WARM)])
def test_a_few_of_the_best_are_enough(name, width):
    scored, proposed = both(name, width=width)
    same(scored, proposed)


@pytest.mark.parametrize("scale", spdd.SCALES)
@pytest.mark.parametrize("start", ["warm", 0.7])
def test_every_scale_finds_what_scoring_finds(scale, start):
    w = world()
    model = Scored(w)
    decoder = SPDD([new(w)], slots=6, scale=scale, start=start)
    if scale == "sigmoid":
        with pytest.raises(ValueError, match="'sigmoid' needs a score for each item"):
            decoder.generate(Proposing(model, 6), [[0]] * 5)
    else:
        same(decoder.generate(model, [[0]] * 5), decoder.generate(Proposing(model, 6), [[0]] * 5))


def test_real_values_are_served_within_their_promise():
    w = world()
    decoder = SPDD([Objective("worth", w.worth, at_least="70%")], slots=6, scale="relative", start="warm")
    scored, proposed = (decoder.generate(m, [[0]] * 5) for m in (Scored(w), Proposing(Scored(w), 8)))
    assert (proposed.status == MET).all()
    # What was found is nearly as relevant as what could have been: the search is the only thing that differs.
    assert proposed.relevance.sum() > 0.8 * scored.relevance.sum()


@pytest.mark.parametrize("name", ["MustFill", "SPDD", "SPDD two", "SPDD floor and cap", "SPDD warm"])
def test_the_guard_looks_at_all_items_not_at_those_found(name):
    w = world()
    unloved = w._replace(logits=w.logits - 50 * w.new)  # no search for the most likely finds an item of the objective
    decoder = DECODERS[name](unloved, 6)
    slate = decoder.generate(Proposing(Scored(unloved), 2), [[0]] * 5)
    assert (slate.status == MET).all()


def test_what_no_slate_can_have_is_known_before_the_search():
    w = world()
    rare = Objective("rare", (torch.arange(60) < 2).float(), at_least=3)
    slate = SPDD([rare], slots=6).generate(Proposing(Scored(w), 4), [[0]] * 5)
    assert (slate.status == IMPOSSIBLE).all()
    assert slate.reachable.tolist() == [[2.0]] * 5
    assert slate.gained.tolist() == [[2.0]] * 5


@pytest.mark.parametrize("name", [n for n in SPELLED if n not in SHARED and not n.startswith("EPR")])
def test_a_trace_tells_of_the_plain_winner_and_changes_no_slate(name):
    scored, proposed = both(name, trace=True)
    assert torch.equal(scored.trace.plain, proposed.trace.plain)
    torch.testing.assert_close(scored.trace.cost, proposed.trace.cost)
    (_, narrow), (_, told) = both(name, width=2), both(name, width=2, trace=True)
    assert torch.equal(narrow.items, told.items)


def test_drawing_from_all_items_is_drawing_from_their_scores():
    scored, proposed = both("SPDD", temperature=0.8, top_p=0.9, seed=3)
    assert torch.equal(scored.items, proposed.items)


@pytest.mark.parametrize(("name", "searches"), [("Greedy", 7), ("SPDD", 8), ("SPDD from a number", 2 * 6 + 2 + 7)])
def test_a_slot_costs_a_search(name, searches):
    w = world()
    model = Proposing(Scored(w), 4)
    DECODERS[name](w, 6).generate(model, [[0]] * 5)
    assert len(model.asked) == searches


def test_a_model_that_proposes_says_how_many_items_there_are():
    model = Proposing(Scored(world()), 4)
    model.items = None
    with pytest.raises(ValueError, match="must say how many items there are in `items`, got None"):
        spdd.Greedy(slots=2).generate(model, [[0]])


def test_a_search_that_returns_nonsense_is_refused():
    class Broken(Proposing):
        def propose(self, state, open_, bonus):
            items, logits = super().propose(state, open_, bonus)
            return items, logits * torch.nan

    with pytest.raises(ValueError, match=r"`model.propose` returned nan or infinite log-probabilities"):
        spdd.Greedy(slots=2).generate(Broken(Scored(world()), 4), [[0]] * 5)
