"""The algorithm: as the paper prints it, its identity, and the five functions a host drives by itself."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import spdd
from spdd import SPDD, Objective
from spdd.decode import primal_dual
from spdd.decode.search import View
from spdd.relevance import normaliser, relevance

# ---- Algorithm 1, line by line -----------------------------------------------------------------------------


def algorithm_1(p, b, slots, target, rate):
    """Items, and the duals λ_0 to λ_K. Plain Python; of equal scores the first."""
    first, chosen, moved, duals = 1.0, [], 0.0, [1.0]
    for _ in range(slots):
        scores = {j: p[j] + duals[-1] * b[j] for j in range(len(p)) if j not in chosen}
        chosen.append(max(scores, key=lambda j: (scores[j], -j)))
        moved += b[chosen[-1]] - target / slots
        duals.append(first * math.exp(-rate * moved))
    return chosen, duals


def by_the_book(scale, logits):
    if scale == "identity":
        return logits
    if scale == "sigmoid":
        return [1 / (1 + math.exp(-x)) for x in logits]
    weight = [math.exp(x - max(logits)) for x in logits]
    return weight if scale == "relative" else [w / math.fsum(weight) for w in weight]


@pytest.mark.parametrize("scale", ["probability", "relative", "sigmoid", "identity"])
@pytest.mark.parametrize("values", ["0/1", "real"])
def test_paper_settings_are_algorithm_1_to_the_bit(scale, values):
    random = np.random.default_rng(len(scale) + len(values))
    for number in range(125):  # x 8: a thousand instances
        items = int(random.choice([3, 6, 12, 120]))  # with 120, few values and few slots the short way is taken
        slots = int(random.integers(1, min(items, 9)))
        target, rate = float(random.uniform(0, slots)), float(random.choice([0.05, 0.3, 1.0, 2.0]))
        logits = random.normal(size=items) * 2
        b = (random.random(items) < 0.3).astype(float) if values == "0/1" else random.random(items)
        if number % 2:  # ties
            logits, b = logits.round(), (b * 4).round() / 4
        slate = SPDD([Objective("b", b, at_least=target)], slots=slots, scale=scale, start=1.0, rate=rate, guard=False)
        slate = slate.rerank(logits[None], trace=True)
        chosen, duals = algorithm_1(by_the_book(scale, logits.tolist()), b.tolist(), slots, target, rate)
        assert slate.items[0].tolist() == chosen
        assert [*slate.trace.dual[0, :, 0], slate.dual[0, 0]] == duals


@given(st.floats(-740, 700))
def test_the_exponential_is_that_of_c(x):
    """The one torch uses for long vectors is off by one in the last place now and then."""
    assert primal_dual._exp(torch.full((9,), x, dtype=torch.float64)).tolist() == [math.exp(x)] * 9


# ---- the identity ------------------------------------------------------------------------------------------


def world(rows=8, items=30, seed=0):
    random = torch.Generator().manual_seed(seed)
    return (
        torch.randn(rows, items, generator=random, dtype=torch.float64),
        (torch.rand(items, generator=random) < 0.3).double(),
        torch.rand(rows, items, generator=random, dtype=torch.float64),
    )


@pytest.mark.parametrize("scale", ["probability", "logit"])
def test_the_last_dual_is_the_shortfall(scale):
    """ln dual_K - ln dual_0 = rate * (floor - gained); for a cap rate * (gained - cap)."""
    logits, new, worth = world()
    floors, rates = np.linspace(0, 4, 8), np.linspace(0.1, 2, 8)
    decoder = SPDD(
        [
            Objective("new", new, at_least=floors, rate=rates),
            Objective("worth", worth, at_most=1.5),
            Objective("both", 1 - new, at_least=2, at_most="90%"),
        ],
        slots=7,
        scale=scale,
        start=0.8,
        rate=0.4,
        guard=False,
    )
    slate = decoder.rerank(logits)
    moved = (slate.dual.log() - math.log(0.8)).numpy()
    gained = slate.gained.numpy()
    np.testing.assert_allclose(moved[:, 0], rates * (floors - gained[:, 0]), atol=1e-12)
    np.testing.assert_allclose(moved[:, 1], 0.4 * (gained[:, 1] - 1.5), atol=1e-12)
    np.testing.assert_allclose(moved[:, 2], 0.4 * (2 - gained[:, 2]), atol=1e-12)
    assert gained[:, 1].std() > 0  # a world in which this says something


def test_floor_and_cap_of_one_objective_have_a_price_each():
    """What moves a score is the floor's price less the cap's."""
    logits, new, _ = world()
    decoder = SPDD([Objective("new", new, at_least=2, at_most=4)], slots=6, start=0.5, rate=0.3, guard=False)
    problem, state = begun(decoder, logits)
    for _ in range(6):
        state = primal_dual.advance(problem, state, primal_dual.price(problem, state, logits).argmax(1))
    floor, cap = primal_dual.dual(problem, state).unbind(1)
    torch.testing.assert_close(floor.log() - math.log(0.5), 0.3 * (2 - state.gained[:, 0]))
    torch.testing.assert_close(cap.log() - math.log(0.5), 0.3 * (state.gained[:, 0] - 4))
    torch.testing.assert_close(primal_dual.net_price(problem, state)[:, 0], floor - cap)


def test_a_choice_is_compared_with_what_is_missing_per_slot_left():
    """pace="remaining": λ stands still while a floor is met in even steps, whatever came before."""
    decoder = SPDD([Objective("all", np.ones(9), at_least=4)], slots=4, start=1.0, rate=1.0, pace="remaining")
    assert torch.equal(
        decoder.rerank(torch.randn(3, 9), trace=True).trace.dual, torch.ones(3, 4, 1, dtype=torch.float64)
    )
    none = SPDD(
        [Objective("none", np.zeros(9), at_least=4)], slots=4, start=1.0, rate=1.0, pace="remaining", guard=False
    )
    steps = none.rerank(torch.randn(3, 9), trace=True).trace.dual[:, :, 0].log().diff(dim=1)
    torch.testing.assert_close(steps, torch.tensor([[4 / 4, 4 / 3, 4 / 2]], dtype=torch.float64).expand(3, 3))


def test_the_identity_holds_in_many_worlds():
    """Every scale, rates up to 10, up to 20 slots, one to three objectives, floors, caps and both, paces apart."""
    random = np.random.default_rng(6)
    for number in range(150):
        slots, items, rows = int(random.integers(1, 21)), int(random.integers(20, 60)), 6
        rate, first = float(random.choice([0.05, 0.3, 1.0, 10.0])), float(random.choice([1e-6, 0.3, 1.0, 50.0]))
        objectives = []
        for c in range(int(random.integers(1, 4))):
            value = random.random(items)
            value = (value < 0.3).astype(float) if random.random() < 0.5 else value
            low, high = np.sort(random.uniform(0, slots, (2, rows)), axis=0)
            sides = [{"at_least": low}, {"at_most": high}, {"at_least": low, "at_most": high}][int(random.integers(3))]
            objectives.append(Objective(f"o{c}", value, **sides))
        decoder = SPDD(
            objectives, slots=slots, scale=str(random.choice(spdd.SCALES)), start=first, rate=rate, guard=False
        )
        logits = random.normal(size=(rows, items))
        slate = decoder.rerank(logits) if number % 2 else decoder.generate(model(logits), np.zeros((rows, 1)))
        for c, o in enumerate(objectives):
            floor, cap = o.targets(slots)
            short = slate.gained[:, c] - cap if floor is None else floor - slate.gained[:, c]
            np.testing.assert_allclose(np.log(slate.dual[:, c]) - np.log(first), rate * short, atol=1e-9)


def model(logits):
    """One that never changes its mind."""
    return spdd.FromCallable(lambda histories: logits)


def test_prices_end_where_scores_would_become_nan():
    decoder = SPDD([Objective("none", np.zeros(40), at_least=1)], slots=30, start=1.0, rate=1e3, guard=False)
    slate = decoder.rerank(torch.randn(2, 40))
    assert (slate.dual == primal_dual.LARGEST).all()
    assert all(len(set(items)) == 30 for items in slate.items.tolist())


@pytest.mark.parametrize("guard", [False, True])
def test_no_start_and_no_rate_is_plain_decoding(guard):
    logits, new, _ = world()
    slate = SPDD([Objective("new", new, at_least=0)], slots=6, start=0, rate=0, guard=guard).rerank(logits)
    assert torch.equal(slate.items, logits.argsort(dim=1, descending=True, stable=True)[:, :6])


# ---- the five functions ------------------------------------------------------------------------------------


def begun(decoder, logits, exclude=None):
    """What a host gets from a decoder before its first slot: the problem and the state."""
    value, _ = decoder._values(logits)
    open_ = torch.ones_like(logits, dtype=torch.bool) if exclude is None else ~exclude
    worth = relevance(decoder.scale, logits, normaliser(decoder.scale, logits, open_))
    problem, _, state = decoder._begin(value, None if exclude is None else open_, View(worth, value, open_, None))
    return problem, state


def fresh(new):
    """A value that depends on the slate: 1 for one kind while the last item was of the other."""

    def value(chosen):
        last = chosen.gather(1, ((chosen >= 0).sum(1, keepdim=True) - 1).clamp_min(0))
        was_new = torch.where(last >= 0, new[last.clamp_min(0)], 0.0)
        return (new != was_new).double()

    return value


HOSTED = {
    "floor": lambda new, worth, **s: SPDD([Objective("new", new, at_least=3)], **s),
    "cap": lambda new, worth, **s: SPDD([Objective("new", new, at_most=1)], **s),
    "floor and cap": lambda new, worth, **s: SPDD([Objective("new", new, at_least=2, at_most=3)], **s),
    "several": lambda new, worth, **s: SPDD(
        [Objective("new", new, at_least=3), Objective("worth", worth, at_least=2, at_most=4)], **s
    ),
    "value of the slate": lambda new, worth, **s: SPDD(
        [Objective("new", new, at_least=2), Objective("turns", fresh(new), at_least=3)], **s
    ),
}
SETTINGS = {
    "defaults": {},
    "warm": {"start": "warm"},
    "printed": {"start": 1.0, "rate": 1.0, "scale": "probability", "guard": False},
    "guarded": {"start": 0.3, "rate": 0.5, "scale": "relative"},
    "remaining": {"start": 0.3, "rate": 0.5, "pace": "remaining"},
}

hosted = pytest.mark.parametrize("kind", HOSTED)
set_so = pytest.mark.parametrize("how", SETTINGS)


@hosted
@set_so
@pytest.mark.parametrize("items", [30, 400])  # with 400 the decoder takes its short way through value groups
def test_a_host_of_its_own_builds_the_decoders_slate(kind, how, items):
    """price, argmax, advance on dense scores, as an engine would."""
    logits, new, worth = world(items=items)
    exclude = torch.rand(8, items, generator=torch.Generator().manual_seed(1)) < 0.3
    exclude[3], exclude[3, :4] = True, False  # a row that runs out
    decoder = HOSTED[kind](new, worth, slots=6, **SETTINGS[how])
    problem, state = begun(decoder, logits, exclude)
    for _ in range(6):
        scores = primal_dual.price(problem, state, logits)
        assert scores.shape == logits.shape
        assert (scores[exclude] == -torch.inf).all()
        some = (scores > -torch.inf).any(1)
        state = primal_dual.advance(problem, state, torch.where(some, scores.argmax(1), -1))
    model = spdd.FromCallable(lambda histories: logits)
    slate = decoder.generate(model, [[]] * 8, exclude=exclude)
    assert torch.equal(state.chosen, slate.items)
    torch.testing.assert_close(state.gained, slate.gained)
    if how not in ("defaults", "warm"):  # those make better of scores that they know to stand still
        assert torch.equal(decoder.rerank(logits, exclude=exclude).items, slate.items)


@hosted
@set_so
def test_replay_equals_stepping(kind, how):
    """In one go, in two, and with slots in which a row took nothing; whoever chose the items."""
    logits, new, worth = world()
    problem, begin = begun(HOSTED[kind](new, worth, slots=6, **SETTINGS[how]), logits)
    random = torch.Generator().manual_seed(2)
    wild = torch.rand(8, 30, generator=random).argsort(1)[:, :6]
    wild[torch.rand(8, 6, generator=random) < 0.2] = -1
    best, stepped = [], begin
    for _ in range(6):
        item = primal_dual.price(problem, stepped, logits).argmax(1)
        value = primal_dual.value_now(problem, stepped).expand(-1, 8, -1)[:, range(8), item].T  # as the search hands it
        best.append(item)
        stepped = primal_dual.advance(problem, stepped, item, value)
    alike(primal_dual.replay(problem, begin, torch.stack(best, 1)), stepped)
    for items in (torch.stack(best, 1), wild):
        whole = primal_dual.replay(problem, begin, items)
        alike(primal_dual.replay(problem, primal_dual.replay(problem, begin, items[:, :2]), items[:, 2:]), whole)
        assert torch.equal(whole.count, (items >= 0).sum(1))


@hosted
@set_so
def test_rows_taken_go_on_as_they_were(kind, how):
    """Beams of one request: re-ordered, repeated and dropped rows go on like the rows they came from."""
    logits, new, worth = world()
    logits, worth = logits[:1].expand(8, -1), worth[:1].expand(8, -1)
    problem, begin = begun(HOSTED[kind](new, worth, slots=6, **SETTINGS[how]), logits)
    apart = torch.rand(8, 30, generator=torch.Generator().manual_seed(3)).argsort(1)[:, :2]
    state = primal_dual.replay(problem, begin, apart)
    order = torch.tensor([7, 0, 0, 3, 5, 5, 5, 2])
    taken = primal_dual.take(state, order)
    assert torch.equal(taken.chosen, state.chosen[order])
    for _ in range(4):
        scores = primal_dual.price(problem, state, logits)
        torch.testing.assert_close(primal_dual.price(problem, taken, logits), scores[order], rtol=0, atol=0)
        state = primal_dual.advance(problem, state, scores.argmax(1))
        taken = primal_dual.advance(problem, taken, scores.argmax(1)[order])
    alike(taken, primal_dual.take(state, order))


def test_nothing_taken_changes_nothing():
    logits, new, worth = world()
    problem, begin = begun(HOSTED["several"](new, worth, slots=6), logits)
    state = primal_dual.replay(problem, begin, torch.arange(16).view(8, 2))
    alike(primal_dual.advance(problem, state, torch.full((8,), -1)), state)


def test_states_are_not_changed_in_place():
    logits, new, worth = world()
    problem, begin = begun(HOSTED["several"](new, worth, slots=6), logits)
    before = [x.clone() for x in begin]
    primal_dual.replay(problem, begin, torch.arange(48).view(8, 6) % 30)
    assert all(torch.equal(x, y) for x, y in zip(begin, before, strict=True))


def alike(state, other):
    for field in state._fields:
        a, b = getattr(state, field), getattr(other, field)
        assert torch.equal(a, b), field
