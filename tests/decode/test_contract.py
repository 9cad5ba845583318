"""What every decoder promises, whatever its settings. A new decoder gets a line in DECODERS, not tests of its own.

That the algorithm itself is right is in test_primal_dual.py; here a decoder is a black box.
"""

import functools
import itertools
import re
import time
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import spdd
from spdd import IMPOSSIBLE, MET, SHORT, SPDD, Objective
from spdd.decode.decoder import Settings

FIELDS = ("items", "relevance", "gained", "dual", "status", "reachable")


class World(NamedTuple):
    """R rows of scores for M items, and what the items are like."""

    logits: torch.Tensor  # (R, M)
    new: torch.Tensor  # (M,) 0/1
    loud: torch.Tensor  # (M,) 0/1
    worth: torch.Tensor  # (M,) in [0, 1]
    genre: torch.Tensor  # (M,) 0..3
    vector: torch.Tensor  # (M, 3)


def world(rows=5, items=60, seed=0):
    random = torch.Generator().manual_seed(seed)
    return World(
        torch.randn(rows, items, generator=random),
        (torch.rand(items, generator=random) < 0.2).float(),
        (torch.rand(items, generator=random) < 0.4).float(),
        torch.rand(items, generator=random),
        torch.randint(0, 4, (items,), generator=random),
        torch.randn(items, 3, generator=random),
    )


def new(w, **targets):
    return Objective("new", w.new, **(targets or {"at_least": 3}))


def fresh_genre(w):
    """1 for items of genres that are not on the slate yet."""

    def value(chosen):
        has = torch.zeros(len(chosen), 5).scatter(1, torch.where(chosen < 0, 4, w.genre[chosen]), 1.0)
        return 1 - has[:, w.genre]

    return Objective("genres", value, at_least=3)


# name -> a new decoder for a world and a number of slots
DECODERS = {
    "Greedy": lambda w, k: spdd.Greedy([new(w)], slots=k),
    "Greedy alone": lambda w, k: spdd.Greedy(slots=k),
    "MustFill": lambda w, k: spdd.MustFill([new(w)], slots=k),
    "WA": lambda w, k: spdd.WA([new(w)], slots=k),
    "WA two": lambda w, k: spdd.WA([new(w), Objective("worth", w.worth)], slots=k, weight=[0.3, 0.2]),
    "EPR": lambda w, k: spdd.EPR([new(w)], slots=k, pool=25),
    "SPDD": lambda w, k: SPDD([new(w)], slots=k),
    "SPDD as printed": lambda w, k: SPDD([new(w)], slots=k, scale="probability", start=1.0, rate=1.0, guard=False),
    "SPDD from a number": lambda w, k: SPDD([new(w)], slots=k, scale="relative", start=0.3, rate=0.3),
    "SPDD warm": lambda w, k: SPDD([new(w)], slots=k, start="warm", scale="log_probability"),
    "SPDD toward what is missing": lambda w, k: SPDD([new(w)], slots=k, start="warm", rate=0.5, pace="remaining"),
    "SPDD cap": lambda w, k: SPDD([new(w, at_most=1)], slots=k, start="warm"),
    "SPDD floor and cap": lambda w, k: SPDD([new(w, at_least=2, at_most=3)], slots=k),
    "SPDD two": lambda w, k: SPDD([new(w), Objective("loud", w.loud, at_most="30%")], slots=k),
    "SPDD real values": lambda w, k: SPDD([Objective("worth", w.worth, at_least="60%")], slots=k, scale="sigmoid"),
    "SPDD values of the slate": lambda w, k: SPDD([new(w), fresh_genre(w)], slots=k, start="warm"),
    "SPDD over traffic": lambda w, k: SPDD([new(w, at_least=2, per="traffic")], slots=k, start="warm"),
    "SPDD lifted": lambda w, k: SPDD([new(w)], slots=k, lift=0.5),
    "BanditUCB": lambda w, k: spdd.BanditUCB([new(w), Objective("worth", w.worth)], slots=k),
    "BanditTS": lambda w, k: spdd.BanditTS([new(w), Objective("worth", w.worth)], slots=k),
    "MMR": lambda w, k: spdd.MMR(w.vector, slots=k, objectives=[new(w)]),
    "DPP": lambda w, k: spdd.DPP(w.vector, slots=k, weight=0.5),
    "Calibrated": lambda w, k: spdd.Calibrated(
        torch.eye(4)[w.genre], [1, 2, 3, 4], slots=k, weight=0.8, objectives=[new(w)]
    ),
    "ProviderMaxMin": lambda w, k: spdd.ProviderMaxMin(w.genre, slots=k, objectives=[new(w)]),
    "Bandit of one arm": lambda w, k: spdd.BanditUCB([Objective("worth", w.worth)], slots=k, arms=[[0.8, 0.2]]),
}

# What these give a row depends on the batches before it, or on the other rows of its batch.
SHARED = {"SPDD over traffic", "BanditUCB", "BanditTS", "ProviderMaxMin"}

# What these make of scores that stand still, they make better in `rerank`, which knows that they will.
BETTER_STATIC = {"SPDD", "SPDD lifted", "SPDD floor and cap", "SPDD two", "SPDD real values"}

every = pytest.mark.parametrize("name", DECODERS)
alone = pytest.mark.parametrize("name", [name for name in DECODERS if name not in SHARED])
as_chosen = pytest.mark.parametrize("name", [name for name in DECODERS if name != "SPDD lifted"])  # slots in that order


def some_excluded(w, seed=1):
    """About a third of the items of every row."""
    return torch.rand(w.logits.shape, generator=torch.Generator().manual_seed(seed)) < 0.3


def same(slate, other, rows=slice(None), exact=True):
    """Asserts that `slate` is `other`'s `rows`."""
    for field in FIELDS:
        a, b = (torch.as_tensor(getattr(s, field)) for s in (slate, other))
        if exact or not a.is_floating_point():
            assert torch.equal(a.nan_to_num(-7.0), b[rows].nan_to_num(-7.0)), field
        else:
            torch.testing.assert_close(a, b[rows], equal_nan=True, rtol=1e-9, atol=1e-12, msg=field)


def static(w):
    """A model whose scores never change."""
    return spdd.FromCallable(lambda histories: w.logits)


# ---- what is on a slate ----------------------------------------------------------------------------------


@every
@pytest.mark.parametrize(
    ("items", "slots"), [(60, 10), (60, 1), (1, 1), (1, 4), (2, 1), (2, 3), (3, 3), (3, 10), (8, 8)]
)
def test_items_are_distinct_open_and_as_many_as_there_are(name, items, slots):
    w = world(items=items)
    exclude = some_excluded(w)
    exclude[0] = True  # a row with nothing to serve
    exclude[1] = False
    slate = DECODERS[name](w, slots).rerank(w.logits, exclude=exclude)
    assert slate.items.shape == slate.relevance.shape == (5, slots)
    for row, chosen in enumerate(slate.items.tolist()):
        open_ = (~exclude[row]).nonzero()[:, 0].tolist()
        filled = min(slots, len(open_))
        assert len(set(chosen[:filled])) == filled
        assert set(chosen[:filled]) <= set(open_)
        assert chosen[filled:] == [-1] * (slots - filled)
        assert slate.relevance[row].isnan().tolist() == [item < 0 for item in chosen]


@every
def test_no_rows_make_no_slates(name):
    w = world(rows=0)
    slate = DECODERS[name](w, 4).rerank(w.logits)
    assert len(slate) == 0
    assert slate.items.shape == (0, 4)


@every
@pytest.mark.parametrize("trace", [False, True])
def test_arrays_come_back_as_they_came(name, trace):
    w = world()
    theirs, ours = (DECODERS[name](w, 4).rerank(x, trace=trace) for x in (w.logits, w.logits.numpy()))
    count = len(DECODERS[name](w, 4).objectives)
    shapes = {"items": (5, 4), "relevance": (5, 4), "status": (5,)}
    kinds = {"items": torch.int64, "status": torch.int8}
    for field in FIELDS:
        a, b = getattr(theirs, field), getattr(ours, field)
        assert isinstance(a, torch.Tensor)
        assert isinstance(b, np.ndarray)
        assert a.shape == b.shape == shapes.get(field, (5, count))
        assert a.dtype == kinds.get(field, torch.float64)
        np.testing.assert_array_equal(a, b)
    assert (theirs.trace is not None) == trace
    if trace:
        for field, shape in {"dual": (5, 4, count), "slack": (5, 4, count), "plain": (5, 4), "cost": (5, 4)}.items():
            assert getattr(theirs.trace, field).shape == shape
            np.testing.assert_array_equal(getattr(theirs.trace, field), getattr(ours.trace, field))


@every
def test_gained_is_the_value_of_the_items(name):
    w = world()
    decoder = DECODERS[name](w, 6)
    slate = decoder.rerank(w.logits, exclude=some_excluded(w))
    for c, objective in enumerate(decoder.objectives):
        so_far, want = torch.full((5, 6), -1), torch.zeros(5, dtype=torch.float64)
        for slot, items in enumerate(slate.items.T):
            now = objective.value(so_far) if objective.depends_on_slate else objective.value.expand(5, -1)
            want += now.double().gather(1, items[:, None])[:, 0]
            so_far[:, slot] = items
        torch.testing.assert_close(slate.gained[:, c], want)


def on_scale(scale, logits, exclude):
    """Relevance by the book. (R, M) float64"""
    logits = logits.double().numpy()
    shifted = np.where(exclude.numpy(), -np.inf, logits) - np.where(exclude.numpy(), -np.inf, logits).max(
        1, keepdims=True
    )
    if scale == "relative":
        return np.exp(shifted)
    if scale == "sigmoid":
        return 1 / (1 + np.exp(-logits))
    if scale in ("logit", "identity"):
        return logits
    share = np.exp(shifted) / np.exp(shifted).sum(1, keepdims=True)
    return np.log(share, where=share > 0, out=np.full_like(share, -np.inf)) if scale == "log_probability" else share


@every
def test_relevance_is_that_of_the_items(name):
    w = world()
    decoder, exclude = DECODERS[name](w, 6), some_excluded(w)
    slate = decoder.rerank(w.logits, exclude=exclude)
    want = np.take_along_axis(on_scale(decoder.scale, w.logits, exclude), slate.items.numpy(), 1)
    np.testing.assert_allclose(slate.relevance, want, rtol=2e-6)


@pytest.mark.parametrize("scale", spdd.SCALES)
def test_every_scale_orders_a_plain_slate_alike(scale):
    w = world()
    exclude = some_excluded(w)
    slate = spdd.Greedy(slots=5, scale=scale).rerank(w.logits.double(), exclude=exclude)
    assert torch.equal(slate.items, w.logits.masked_fill(exclude, -torch.inf).argsort(descending=True)[:, :5])
    want = np.take_along_axis(on_scale(scale, w.logits, exclude), slate.items.numpy(), 1)
    np.testing.assert_allclose(slate.relevance, want, rtol=1e-12)


# ---- rows do not know each other -------------------------------------------------------------------------


@alone
def test_shuffling_rows_shuffles_answers(name):
    w = world(rows=12)
    exclude, order = some_excluded(w), torch.randperm(12, generator=torch.Generator().manual_seed(4))
    slate = DECODERS[name](w, 6).rerank(w.logits, exclude=exclude)
    same(DECODERS[name](w, 6).rerank(w.logits[order], exclude=exclude[order]), slate, order, exact=False)


@alone
def test_a_batch_is_its_rows_one_by_one(name):
    w = world(rows=64, items=24)
    exclude, decoder = some_excluded(w), DECODERS[name](w, 4)
    slate = decoder.rerank(w.logits, exclude=exclude)
    for row in range(64):
        one = slice(row, row + 1)
        same(decoder.rerank(w.logits[one], exclude=exclude[one]), slate, one, exact=False)


@alone
def test_a_row_in_trouble_leaves_the_others_alone(name):
    w = world()
    exclude = torch.zeros_like(w.logits, dtype=torch.bool)
    slate = DECODERS[name](w, 6).rerank(w.logits, exclude=exclude)
    exclude[2] = True
    troubled = DECODERS[name](w, 6).rerank(w.logits, exclude=exclude)
    rest = torch.tensor([0, 1, 3, 4])
    for field in FIELDS:
        torch.testing.assert_close(getattr(troubled, field)[rest], getattr(slate, field)[rest], equal_nan=True)


@every
def test_columns_nobody_may_have_change_nothing(name):
    w = world()
    padded = World(
        torch.cat([w.logits, torch.full((5, 9), 50.0)], 1),
        *(torch.cat([x, x[:9]]) for x in (w.new, w.loud, w.worth, w.genre, w.vector)),
    )
    exclude = torch.arange(69) >= 60
    slate = DECODERS[name](w, 6).rerank(w.logits)
    same(DECODERS[name](padded, 6).rerank(padded.logits, exclude=exclude), slate, exact=False)


@every
def test_exclusions_can_be_said_in_every_way(name):
    w = world()
    shared = torch.arange(60) % 3 == 0
    slate = DECODERS[name](w, 6).rerank(w.logits, exclude=shared)
    as_lists = [shared.nonzero()[:, 0].tolist()] * 5
    padded = torch.full((5, 30), -1)
    padded[:, 10:] = shared.nonzero()[:, 0]
    for exclude in (
        shared.expand(5, 60),
        shared.numpy(),
        shared.tolist(),
        shared.expand(5, 60).tolist(),
        as_lists,
        padded,
        padded.numpy(),
    ):
        same(DECODERS[name](w, 6).rerank(w.logits, exclude=exclude), slate)


# ---- numbers ---------------------------------------------------------------------------------------------


@every
def test_precision_of_the_scores_does_not_matter_where_they_are_the_same(name):
    w = world()
    coarse = w.logits.bfloat16()
    slate = DECODERS[name](w, 6).rerank(coarse.float())
    same(DECODERS[name](w, 6).rerank(coarse), slate)
    double = DECODERS[name](w, 6).rerank(coarse.double())
    assert torch.equal(double.items, slate.items)
    torch.testing.assert_close(double.relevance, slate.relevance, rtol=1e-6, atol=1e-6)
    half = w.logits.half()
    assert torch.equal(DECODERS[name](w, 6).rerank(half).items, DECODERS[name](w, 6).rerank(half.float()).items)


@every
def test_whole_numbers_are_scores_too(name):
    w = world()
    whole = (w.logits * 3).round()
    slate = DECODERS[name](w, 6).rerank(whole.double())
    same(DECODERS[name](w, 6).rerank(whole.long()), slate)
    same(DECODERS[name](w, 6).rerank(whole.long().tolist()), slate)


@every
def test_equal_items_come_in_order_of_their_number(name):
    """Two items with one score and the same values: the lower number is served first."""
    w = world()
    whole = w._replace(logits=w.logits.round(), worth=w.worth.round(), vector=torch.ones(60, 3))
    slate = DECODERS[name](whole, 10).rerank(whole.logits)
    kind = torch.stack([w.new, w.loud, whole.worth, w.genre], 1).tolist()
    for row, items in enumerate(slate.items.tolist()):
        for slot, item in enumerate(items):
            for rival in set(range(item)) - set(items[:slot]):
                assert (float(whole.logits[row, rival]), kind[rival]) != (float(whole.logits[row, item]), kind[item])


@every
def test_scores_all_equal(name):
    w = world()
    slate = DECODERS[name](w, 6).rerank(torch.full((5, 60), -0.0))
    assert all(len(set(items)) == 6 for items in slate.items.tolist())
    assert torch.equal(slate.items, DECODERS[name](w, 6).rerank(torch.zeros(5, 60)).items)
    if name.startswith("Greedy"):
        assert slate.items.tolist() == [[0, 1, 2, 3, 4, 5]] * 5


@every
@pytest.mark.parametrize("size", [1e-30, 1e8, 1e30])
def test_scores_far_apart_still_make_slates(name, size):
    w = world()
    spread = w.logits * size
    spread[0, 0], spread[1, 1] = 3e38, -3e38
    decoder = DECODERS[name](w, 6)
    slate = decoder.rerank(spread)
    assert all(len(set(items)) == 6 and min(items) >= 0 for items in slate.items.tolist())
    assert not slate.relevance.isnan().any()
    assert torch.isfinite(slate.dual).all()
    if name in ("MustFill", "SPDD", "SPDD from a number", "SPDD cap", "SPDD floor and cap", "SPDD real values"):
        assert (slate.status == MET).all()


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_plain_decoding_is_a_stable_sort(size):
    w = world(rows=20)
    logits = (w.logits * 3).round() * size
    logits[:, ::7] = -0.0  # equal to 0.0
    want = [sorted(range(60), key=lambda j: -row[j])[:9] for row in logits.tolist()]  # Python's sort is stable
    objective = [new(w)]
    for decoder in (
        spdd.Greedy(slots=9),
        spdd.Greedy(objective, slots=9),
        spdd.WA(objective, slots=9, weight=0),
        spdd.EPR(objective, slots=9, weight=0, pool=20),
        SPDD(objective, slots=9, start=0, rate=0, guard=False),
        SPDD(objective, slots=9, start=0, rate=5, guard=False),
        SPDD([new(w, at_most=0)], slots=9, start=0, rate=0, guard=False),
        SPDD([new(w, at_least=0)], slots=9, rate=0),
        spdd.MustFill([new(w, at_least=0)], slots=9),
    ):
        assert decoder.rerank(logits).items.tolist() == want


# ---- two doors, two paths, one answer --------------------------------------------------------------------


@every
def test_a_model_that_never_changes_its_mind_is_reranked(name):
    w = world()
    exclude, histories = some_excluded(w), [[1, 2]] * 5
    slate = DECODERS[name](w, 6).rerank(w.logits, exclude=exclude, trace=True)
    made = DECODERS[name](w, 6).generate(static(w), histories, exclude=exclude, trace=True)
    if name in BETTER_STATIC:
        assert torch.equal(made.status, slate.status)
        assert (made.relevance.sum(1) <= slate.relevance.sum(1) + 1e-9).all()
        return
    same(made, slate, exact=False)
    for field in ("dual", "slack", "plain", "cost"):
        torch.testing.assert_close(getattr(made.trace, field), getattr(slate.trace, field), equal_nan=True)


@every
def test_generate_keeps_to_the_kind_of_the_histories(name):
    w = world()
    slate = DECODERS[name](w, 3).generate(static(w), np.zeros((5, 2), dtype=np.int64), exclude="seen")
    assert isinstance(slate.items, np.ndarray)
    assert not (slate.items == 0).any()
    made = DECODERS[name](w, 3).generate(static(w), [[], [3], [4, 5], [], []], exclude="seen")
    assert isinstance(made.items, torch.Tensor)
    assert not set(made.items[2].tolist()) & {4, 5}


@as_chosen
def test_the_model_hears_of_every_choice_once(name):
    """It is asked for scores once a slot, after being told what the slot before was filled with."""
    w, told = world(), []

    class Model:
        def start(self, histories):
            return ()

        def logits(self, state):
            told.append(state)
            return w.logits

        def advance(self, state, items):
            return (*state, items.tolist())

    slate = DECODERS[name](w, 4).generate(Model(), [[]] * 5)
    long = 25 if name == "EPR" else 4  # EPR generates its whole pool
    assert [len(state) for state in told] == list(range(long))
    if name != "EPR":
        assert told[-1] == tuple(slate.items.T.tolist()[:3])


GROUPED = {
    "Greedy": lambda o, k: spdd.Greedy(o, slots=k),
    "MustFill": lambda o, k: spdd.MustFill(o, slots=k),
    "WA": lambda o, k: spdd.WA(o, slots=k, weight=0.4),
    "EPR": lambda o, k: spdd.EPR(o, slots=k, weight=0.4, pool=50),
    "SPDD": lambda o, k: SPDD(o, slots=k),
    "SPDD as printed": lambda o, k: SPDD(o, slots=k, scale="probability", start=1.0, rate=1.0, guard=False),
    "SPDD from a number": lambda o, k: SPDD(o, slots=k, scale="relative", start=0.5, rate=0.3),
    "SPDD toward what is missing": lambda o, k: SPDD(o, slots=k, scale="log_probability", pace="remaining"),
    "BanditUCB": lambda o, k: spdd.BanditUCB(o, slots=k),
    "BanditTS": lambda o, k: spdd.BanditTS(o, slots=k),
}


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("door", ["rerank", "generate"])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("targets", ["floor", "cap", "both", "two"])
def test_few_distinct_values_and_many_items_take_a_short_way_to_the_same_slate(name, door, ties, targets):
    """Values that rows share make groups; the same values written out for every row do not."""
    w = world(rows=7, items=300)
    logits = (w.logits * 4).round() if ties else w.logits
    exclude = some_excluded(w)
    stars = (w.worth * 4).round() / 4
    wanted = {
        "floor": [("stars", stars, {"at_least": 6})],
        "cap": [("new", w.new, {"at_most": 1})],
        "both": [("new", w.new, {"at_least": 3, "at_most": 4})],
        "two": [("new", w.new, {"at_least": 3}), ("loud", w.loud, {"at_most": 2})],
    }[targets]

    def slate(rows):
        objectives = [Objective(n, v.expand(rows, -1).clone() if rows else v, **t) for n, v, t in wanted]
        decoder = GROUPED[name](objectives, 8)
        if door == "rerank":
            return decoder.rerank(logits, exclude=exclude, trace=True)
        return decoder.generate(static(w._replace(logits=logits)), [[]] * 7, exclude=exclude, trace=True)

    short, long = slate(0), slate(7)
    same(short, long, exact=False)
    assert torch.equal(short.trace.plain, long.trace.plain)
    torch.testing.assert_close(short.trace.cost, long.trace.cost)


# ---- the trace -------------------------------------------------------------------------------------------


@as_chosen
def test_trace_tells_what_each_slot_gave_up(name):
    w = world()
    exclude, decoder = some_excluded(w), DECODERS[name](w, 6)
    slate = decoder.rerank(w.logits, exclude=exclude, trace=True)
    relevance = on_scale(decoder.scale, w.logits, exclude)
    open_ = ~exclude.numpy()
    gained = np.zeros((5, len(decoder.objectives)))
    for slot in range(6):
        plain = np.where(open_, w.logits, -np.inf).argmax(1)
        np.testing.assert_array_equal(slate.trace.plain[:, slot], plain)
        items = slate.items[:, slot].numpy()
        cost = relevance[range(5), plain] - relevance[range(5), items]
        np.testing.assert_allclose(slate.trace.cost[:, slot], cost, atol=1e-6)
        for c, objective in enumerate(decoder.objectives):
            target = [t for t in objective.targets(6) if t is not None]
            if target and objective.in_slate and not objective.depends_on_slate:
                np.testing.assert_allclose(slate.trace.slack[:, slot, c], target[0] - gained[:, c], atol=1e-6)
            if not objective.depends_on_slate:
                gained[:, c] += objective.value.numpy()[items]
        open_[range(5), items] = False
    assert (slate.trace.cost >= 0).all()
    assert (slate.trace.dual >= 0).all()


def test_trace_begins_with_the_start():
    w = world()
    slate = SPDD([new(w), Objective("loud", w.loud, at_most=2)], slots=6, start=0.7, rate=0.4, trace=True).rerank(
        w.logits
    )
    assert (slate.trace.dual[:, 0] == 0.7).all()
    assert not torch.equal(slate.trace.dual[:, 1], slate.trace.dual[:, 0])
    assert SPDD([new(w)], trace=True).rerank(w.logits, trace=False).trace is None


@pytest.mark.parametrize("name", ["WA", "WA two", "EPR", "Bandit of one arm"])
def test_fixed_prices_stay(name):
    w = world()
    slate = DECODERS[name](w, 6).rerank(w.logits, trace=True)
    assert torch.equal(slate.trace.dual, slate.dual[:, None].expand(-1, 6, -1))


# ---- drawing ---------------------------------------------------------------------------------------------


@every
def test_same_seed_same_slate(name):
    w = world(rows=12)
    slates = [DECODERS[name](w, 3).rerank(w.logits, temperature=1.0, seed=seed) for seed in (3, 3, 4)]
    same(slates[0], slates[1])
    assert not torch.equal(slates[0].items, slates[2].items)
    assert all(len(set(items)) == 3 for items in slates[0].items.tolist())


@alone
def test_a_row_with_its_own_seed_draws_alike_anywhere(name):
    """In any batch, order or padding."""
    w = world(rows=8)
    seeds = torch.arange(8) * 11 + 5
    slate = DECODERS[name](w, 3).rerank(w.logits, temperature=0.7, top_p=0.9, seed=seeds)
    order = torch.tensor([6, 1, 3])
    some = DECODERS[name](w, 3).rerank(w.logits[order], temperature=0.7, top_p=0.9, seed=seeds[order].tolist())
    same(some, slate, order, exact=False)
    padded = World(
        torch.cat([w.logits, torch.zeros(8, 4)], 1),
        *(torch.cat([x, x[:4]]) for x in (w.new, w.loud, w.worth, w.genre, w.vector)),
    )
    more = DECODERS[name](padded, 3).rerank(
        padded.logits, exclude=torch.arange(64) >= 60, temperature=0.7, top_p=0.9, seed=seeds
    )
    same(more, slate, exact=False)


@pytest.mark.parametrize("name", [name for name in DECODERS if not name.startswith("SPDD")] + ["SPDD from a number"])
def test_a_low_temperature_is_the_best_slate(name):
    """Not so for a warm start: its price puts two items level, and level items are drawn alike."""
    w = world()
    best = DECODERS[name](w, 5).rerank(w.logits)
    assert torch.equal(DECODERS[name](w, 5).rerank(w.logits, temperature=1e-6, seed=0).items, best.items)


@pytest.mark.parametrize("scale", ["logit", "probability"])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_draws_follow_the_scores(scale, temperature):
    """The first slot is softmax(logits / temperature), the second the same among what is left."""
    logits = torch.tensor([1.0, 0.0, -1.0, 0.5])
    slate = spdd.Greedy(slots=2, scale=scale).rerank(logits.expand(40_000, 4), temperature=temperature, seed=0)
    share = (logits.double() / temperature).softmax(0)
    pair = torch.zeros(4, 4, dtype=torch.float64).index_put(
        (slate.items[:, 0], slate.items[:, 1]), torch.ones(1).double(), True
    )
    want = share[:, None] * share / (1 - share[:, None])
    want = want.fill_diagonal_(0) * 40_000
    far = ((pair - want) ** 2 / want.clamp_min(1e-9)).fill_diagonal_(0).sum()
    assert far < 32  # chi-square of 11 degrees, chance below 1 in 1000


def test_top_p_draws_from_the_fewest_items_that_make_it_up():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    drawn = {
        p: set(
            spdd.Greedy(slots=1).rerank(logits.expand(2000, 4), temperature=1.0, top_p=p, seed=1).items[:, 0].tolist()
        )
        for p in (0.4, 0.6, 0.9, 1.0)
    }
    assert drawn == {0.4: {0}, 0.6: {0, 1}, 0.9: {0, 1, 2}, 1.0: {0, 1, 2, 3}}


@pytest.mark.parametrize("name", ["MustFill", "SPDD", "SPDD floor and cap", "SPDD real values"])
def test_what_is_promised_holds_for_drawn_slates_too(name):
    w = world(rows=40)
    assert (DECODERS[name](w, 6).rerank(w.logits, temperature=3.0, seed=2).status == MET).all()


# ---- the status ------------------------------------------------------------------------------------------


def slates_of(open_, slots):
    """Every set of items a slate can hold. A slate is filled while there are items."""
    return itertools.combinations(open_, min(slots, len(open_)))


def keeps(objectives, items, slots):
    for objective in objectives:
        total = sum(float(objective.value[j]) for j in items)
        floor, cap = objective.targets(slots)
        if (floor is not None and total < floor - 1e-5) or (cap is not None and total > cap + 1e-5):
            return False
    return True


@st.composite
def tiny(draw):
    """A few items, one or two objectives with small whole or odd values, targets that may be out of reach."""
    items, slots = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    number = st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.0, 2.0])
    objectives = []
    for name in ["a", "b"][: draw(st.integers(1, 2))]:
        value = draw(st.lists(number, min_size=items, max_size=items))
        floor = draw(st.one_of(st.none(), st.sampled_from([0.5, 1.0, 2.0, 3.0])))
        cap = draw(st.one_of(st.none(), st.sampled_from([0.0, 0.75, 1.0, 2.0])))
        if floor is not None and cap is not None and floor > cap:
            floor, cap = cap, floor
        objectives.append(Objective(name, value, at_least=floor, at_most=cap))
    logits = draw(st.lists(st.sampled_from([-1.0, -0.0, 0.0, 0.5, 2.0]), min_size=items, max_size=items))
    exclude = draw(st.lists(st.booleans(), min_size=items, max_size=items))
    return logits, exclude, objectives, slots


JUDGED = {
    "Greedy": lambda o, k: spdd.Greedy(o, slots=k),
    "WA": lambda o, k: spdd.WA(o, slots=k),
    "EPR": lambda o, k: spdd.EPR(o, slots=k, pool=max(k, 4)),
    "BanditTS": lambda o, k: spdd.BanditTS(o, slots=k),
    "MustFill": lambda o, k: spdd.MustFill(o, slots=k),
    "SPDD": lambda o, k: SPDD(o, slots=k),
    "SPDD without guard": lambda o, k: SPDD(o, slots=k, guard=False),
    "SPDD from a number": lambda o, k: SPDD(o, slots=k, start=1.0, rate=1.0, scale="relative"),
}


@pytest.mark.parametrize("name", JUDGED)
@settings(max_examples=80)
@given(tiny())
def test_status_is_what_trying_every_slate_says(name, case):
    logits, exclude, objectives, slots = case
    slate = JUDGED[name](objectives, slots).rerank([logits], exclude=[exclude])
    open_ = [j for j, barred in enumerate(exclude) if not barred]
    every_slate = list(slates_of(open_, slots))
    possible = any(keeps(objectives, items, slots) for items in every_slate)
    met = keeps(objectives, [j for j in slate.items[0].tolist() if j >= 0], slots)
    want = MET if met else SHORT if possible else IMPOSSIBLE
    assert slate.status[0] == want
    if name in ("MustFill", "SPDD", "SPDD from a number"):
        assert want != SHORT
    for c, objective in enumerate(objectives):
        floor, cap = objective.targets(slots)
        sums = [sum(float(objective.value[j]) for j in items) for items in every_slate]
        if floor is None and cap is None:
            assert np.isnan(slate.reachable[0, c])
        elif floor is None:
            assert slate.reachable[0, c] == min(sums)
        elif cap is None:
            assert slate.reachable[0, c] == max(sums)
        elif min(sums) <= cap:
            known = set(objective.value.tolist()) <= {0.0, 1.0} or (want == IMPOSSIBLE and len(objectives) == 1)
            most = max(s for s in sums if s <= cap + 1e-5)
            assert slate.reachable[0, c] == most or (np.isnan(slate.reachable[0, c]) and not known)


def test_an_impossible_row_comes_as_near_as_it_can():
    w = world(rows=3)
    exclude = torch.zeros_like(w.logits, dtype=torch.bool)
    exclude[1] = w.new > 0
    exclude[1, w.new.nonzero()[:2, 0]] = False  # two items of three
    slate = SPDD([new(w)], slots=5).rerank(w.logits, exclude=exclude)
    assert slate.status.tolist() == [MET, IMPOSSIBLE, MET]
    assert slate.gained[1] == slate.reachable[1] == 2


@pytest.mark.parametrize("unit", [1e-9, 1.0, 100.0, 1e9])
@pytest.mark.parametrize("targets", [{"at_least": 25.0}, {"at_most": 12.0}, {"at_least": 15.0, "at_most": 25.0}])
def test_the_unit_of_a_value_changes_no_slate(unit, targets):
    """Prices in cents, say: they run far, and fill every slot all the same."""
    worth = np.random.default_rng(3).lognormal(0, 1, 200)
    logits = np.random.default_rng(4).normal(size=(50, 200))

    def slates(unit):
        asked = {word: target * unit for word, target in targets.items()}
        decoder = SPDD([Objective("price", worth * unit, **asked)], slots=10)
        return decoder.rerank(logits), decoder.generate(static(world()._replace(logits=logits)), np.zeros((50, 1)))

    for made, plain in zip(slates(unit), slates(1.0), strict=True):
        assert (made.items >= 0).all()
        assert np.isfinite(made.dual).all()
        np.testing.assert_array_equal(made.status, plain.status)
    if len(targets) == 1:  # in a window many slates are nearly as good
        np.testing.assert_array_equal(np.sort(slates(unit)[0].items), np.sort(slates(1.0)[0].items))


@pytest.mark.parametrize("targets", [{"at_least": 9000}, {"at_most": 40000}])
@pytest.mark.parametrize("start", ["warm", 0, 1.0])
@pytest.mark.parametrize("items", [30, 300])
def test_a_price_of_nothing_stays_nothing(targets, start, items):
    """0 times an exponential without end is no number: it emptied slates which then said MET. 300 take the short way."""
    cents = np.full(items, 100.0)
    cents[:3] = 9000
    decoder = SPDD([Objective("cents", cents, **targets)], slots=10, start=start)
    scores = np.arange(items, 0, -1.0)[None]
    for slate in (decoder.rerank(scores), decoder.generate(static(world()._replace(logits=scores)), np.zeros((1, 1)))):
        assert (slate.items >= 0).all()
        assert start == 1.0 or slate.items.tolist() == [list(range(10))]
        assert slate.status.tolist() == [MET]
        assert np.isfinite(slate.dual).all()


def test_a_slate_with_holes_is_never_met():
    """However it came about: here a bonus bars every item."""

    class Broken(spdd.Greedy):
        def settings(self, rows):
            return Settings(bonus=lambda chosen, filled=None: torch.full((len(chosen), 60), -torch.inf))

        def _values(self, logits):
            return super()._values(logits)[0], None

    w = world()
    slate = Broken([new(w, at_most=4)], slots=5).rerank(w.logits)
    assert (slate.items == -1).all()
    assert (slate.status == SHORT).all()


# ---- more slots than items ----


@every
@pytest.mark.parametrize("door", ["rerank", "generate"])
def test_slots_beyond_the_items_cost_nothing(name, door):
    """A slate of 100,000 slots for 8 items took minutes; it is one of 8 with empty slots behind."""
    w = world(items=8)
    if name == "SPDD values of the slate":
        return  # the caller's own function is shown every slot there is
    long = DECODERS[name](w, 100_000) if name != "EPR" else spdd.EPR([new(w)], slots=100_000, pool=100_000)
    began = time.process_time()
    slate = long.rerank(w.logits, trace=True) if door == "rerank" else long.generate(static(w), [[]] * 5, trace=True)
    assert time.process_time() - began < 2
    assert slate.items.shape == slate.relevance.shape == slate.trace.plain.shape == (5, 100_000)
    assert slate.trace.dual.shape == (5, 100_000, len(long.objectives))
    assert (slate.items[:, :8].sort(1).values == torch.arange(8)).all()
    assert (slate.items[:, 8:] == -1).all()
    assert slate.relevance[:, 8:].isnan().all()


def test_a_value_function_is_shown_every_slot():
    shapes = set()

    def value(chosen):
        shapes.add(tuple(chosen.shape))
        return torch.ones(5, 8)

    SPDD([Objective("x", value, at_least=3)], slots=20).rerank(world(items=8).logits)
    assert shapes == {(5, 20)}


def test_calibration_counts_the_empty_slots_too():
    w = world(items=8)
    table = torch.eye(4)[w.genre]
    decoder = SPDD([Objective("taste", spdd.calibration(table, [1, 1, 1, 1]), at_least=0.5)], slots=16)
    slate = decoder.rerank(w.logits)
    have = torch.bincount(w.genre, minlength=4) / 16
    torch.testing.assert_close(slate.gained[:, 0], have.clamp_max(0.25).sum().double().expand(5))


def test_a_long_slate_has_no_holes():
    """Longer than the pool in which exchanges are tried."""
    w = world(items=400)
    for slots in (64, 65, 150, 399):
        floor = 0.55 * slots
        slate = SPDD([Objective("worth", w.worth, at_least=floor)], slots=slots).rerank(w.logits)
        assert (slate.items >= 0).all()
        assert (slate.status == (MET if w.worth.topk(slots).values.sum() >= floor else IMPOSSIBLE)).all()


# ---- anything at all -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=10)
@given(
    st.integers(1, 9),
    st.integers(1, 7),
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=18, max_size=18),
    st.integers(0, 1000),
)
def test_anything_makes_a_slate(name, items, slots, numbers, seed):
    w = world(rows=2, items=items, seed=seed)
    logits = torch.tensor(numbers)[: 2 * items].reshape(2, items)
    exclude = some_excluded(w, seed)
    slate = DECODERS[name](w, slots).rerank(logits, exclude=exclude)
    for row, chosen in enumerate(slate.items.tolist()):
        open_ = set((~exclude[row]).nonzero()[:, 0].tolist())
        real = [j for j in chosen if j >= 0]
        assert len(set(real)) == len(real) == min(slots, len(open_))
        assert set(real) <= open_
    assert torch.isfinite(slate.gained).all()
    assert torch.isfinite(slate.dual).all()


# ---- what is refused -------------------------------------------------------------------------------------


def ask(**given):
    """`rerank` with one thing wrong."""
    w = world()
    decoder = {
        k: given.pop(k) for k in list(given) if k in ("objectives", "slots", "scale", "start", "rate", "pace", "guard")
    }
    logits = given.pop("logits", w.logits)
    return SPDD(**{"objectives": [new(w)], "slots": 4, **decoder}).rerank(logits, **given)


def spoilt(value, place=(1, 7)):
    logits = world().logits
    logits[place] = value
    return logits


def moving(function):
    """A slate-dependent objective; its function gets the number of slots filled, (R, 1)."""
    value = lambda chosen: function((chosen >= 0).sum(1, keepdim=True).float())  # noqa: E731
    return ask(objectives=[Objective("x", value, at_least=1)])


def later(change):
    """A model whose scores are no longer what they were after the first slot."""
    w = world()
    answers = itertools.chain([w.logits], itertools.repeat(change(w.logits)))
    return SPDD([new(w)], slots=4).generate(spdd.FromCallable(lambda h: next(answers)), [[]] * 5)


MASK = torch.zeros(5, 60, dtype=torch.bool)
ONES = np.ones(60)

REFUSED = {
    # scores
    "nan": (lambda: ask(logits=spoilt(torch.nan)), r"finite, got nan for row 1, item 7 \(1 such entries\).*`exclude`"),
    "infinite": (lambda: ask(logits=spoilt(-torch.inf)), r"got -inf for row 1, item 7"),
    "infinities that cancel": (
        lambda: ask(logits=spoilt(torch.tensor([torch.inf, -torch.inf]), (0, slice(2)))),
        r"got inf for row 0, item 0 \(2 such",
    ),
    "one row alone": (lambda: ask(logits=torch.zeros(60)), r"shape \(rows, items\), got shape \(60,\).*logits\[None\]"),
    "three dimensions": (lambda: ask(logits=torch.zeros(2, 3, 60)), r"got shape \(2, 3, 60\)"),
    "no items": (lambda: ask(logits=torch.zeros(2, 0), objectives=[]), "at least one item"),
    "bools for scores": (lambda: ask(logits=MASK), "torch.bool"),
    "complex scores": (lambda: ask(logits=torch.zeros(5, 60, dtype=torch.complex64)), "complex64"),
    "words for scores": (lambda: ask(logits=[["a"] * 60]), "`logits` must be numbers"),
    # settings
    "scale": (lambda: ask(scale="softmax"), r"`scale` must be one of probability, .*got 'softmax'"),
    "no slots": (lambda: ask(slots=0), "`slots` must be a whole number of at least 1, got 0"),
    "half a slot": (lambda: ask(slots=2.5), "`slots` .* got 2.5"),
    "slots of True": (lambda: ask(slots=True), "`slots` .* got True"),
    "start": (lambda: ask(start="hot"), '`start` must be a number, "warm" or "auto".* got \'hot\''),
    "negative start": (lambda: ask(start=-1), "`start` .* got -1"),
    "rate": (lambda: ask(rate=np.nan), "`rate` must be a number, finite and not negative, got nan"),
    "rate of None": (lambda: ask(rate=None), "`rate` .* got None"),
    "pace": (lambda: ask(pace="slow"), "`pace` must be 'even' or 'remaining', got 'slow'"),
    "guard": (lambda: ask(guard="yes"), "`guard` must be True or False, got 'yes'"),
    "weight": (lambda: spdd.WA([new(world())], weight=1.0), r"`weight` must be one number in \[0, 1\)"),
    "weights": (lambda: spdd.WA([new(world())], weight=[0.1, 0.1]), r"one per objective \(1\)"),
    "weight of a word": (lambda: spdd.WA([new(world())], weight="much"), "`weight` must be .*got 'much'"),
    "pool": (lambda: spdd.EPR([new(world())], slots=10, pool=9), r"`pool` .* at least `slots` \(10\), got 9"),
    # objectives
    "no name": (lambda: Objective("", ONES), "`name` of an objective must be a non-empty string, got ''"),
    "two of a name": (
        lambda: ask(objectives=[Objective("x", ONES), Objective("x", ONES)]),
        "names must differ, got 'x' 2 times",
    ),
    "not an objective": (lambda: ask(objectives=["new"]), r"must hold spdd\.Objective, got str.*spdd\.Objective\("),
    "values too few": (
        lambda: ask(objectives=[Objective("x", ONES[:50])]),
        r"`value` of objective 'x' must have shape \(60,\) or \(5, 60\).*got \(50,\)",
    ),
    "values for other rows": (
        lambda: ask(objectives=[Objective("x", np.ones((4, 60)))]),
        r"objective 'x' .* got \(4, 60\)",
    ),
    "values of nan": (lambda: Objective("x", [1.0, np.nan]), "`value` of objective 'x' must be finite.*got nan"),
    "values below 0": (lambda: Objective("x", [1.0, -2.0]), "not negative, got -2.0.*`at_most`"),
    "values in words": (lambda: Objective("x", ["a", "b"]), "objective 'x' must be numbers"),
    "values of no shape": (lambda: Objective("x", 1.0), r"got shape \(\)"),
    "a column without a table": (lambda: ask(objectives=[Objective("x", "is_new")]), "is the column 'is_new'"),
    "floor below 0": (
        lambda: Objective("x", ONES, at_least=-1),
        "`at_least` of objective 'x' must be finite, not negative",
    ),
    "floor of nan": (lambda: Objective("x", ONES, at_least=np.nan), "`at_least` of objective 'x'.*got nan"),
    "floor in words": (lambda: Objective("x", ONES, at_least="three"), "between '0%' and '100%', got 'three'"),
    "percentage": (lambda: Objective("x", ONES, at_most="130%"), "`at_most` of objective 'x'.*got '130%'"),
    "floor above cap": (
        lambda: Objective("x", ONES, at_least=3, at_most=2),
        "must not exceed its `at_most`.*at_least=3",
    ),
    "share above cap": (
        lambda: ask(objectives=[Objective("x", ONES, at_least="50%", at_most=1)]),
        "floor of objective 'x' must not exceed its cap.*with 4 slots",
    ),
    "floors of other rows": (
        lambda: ask(objectives=[Objective("x", ONES, at_least=[1, 2])]),
        "`at_least` of objective 'x' must be one number or one per row: 5 rows, got 2",
    ),
    "rates of other rows": (
        lambda: ask(objectives=[Objective("x", ONES, at_least=1, rate=[1, 2])]),
        "`rate` of objective 'x' must be one number or one per row: 5 rows",
    ),
    "one row's floor above its cap": (
        lambda: ask(objectives=[Objective("x", ONES, at_least=[1, 1, 3, 1, 1], at_most="50%")]),
        "floor of objective 'x' must not exceed its cap",
    ),
    "percentages of other rows": (
        lambda: ask(objectives=[Objective("x", ONES, at_least=["10%", "20%"])]),
        "`at_least` of objective 'x' must be one number or one per row: 5 rows, got 2",
    ),
    "a percentage of one row": (
        lambda: Objective("x", ONES, at_least=["10%", "130%"]),
        "`at_least` of objective 'x'.*got '130%'",
    ),
    "percentages of traffic": (
        lambda: Objective("x", ONES, at_least=["10%", "20%"], per="traffic"),
        "must be one number when per='traffic'",
    ),
    "per": (
        lambda: Objective("x", ONES, per="user"),
        "`per` of objective 'x' must be 'slate', 'traffic' or 'both', got 'user'",
    ),
    "personal targets of traffic": (
        lambda: Objective("x", ONES, at_least=[1, 2], per="traffic"),
        "must be one number when per='traffic'",
    ),
    # exclusions
    "unknown word": (lambda: ask(exclude="bought"), "must be 'seen', a bool mask or lists.*got 'bought'"),
    "seen without histories": (lambda: ask(exclude="seen"), "needs histories"),
    "mask of another shape": (
        lambda: ask(exclude=MASK[:3]),
        r"`exclude` must have shape \(60,\) or \(5, 60\), got \(3, 60\)",
    ),
    "lists of other rows": (lambda: ask(exclude=[[1], [2]]), "one list of items per row: 5 rows, got 2"),
    "items there are not": (lambda: ask(exclude=[[1], [2], [60], [], []]), "items from 0 to 59.*got -1 to 60"),
    "items below -1": (lambda: ask(exclude=[[-2], [2], [0], [], []]), "got -2 to 2"),
    "a number": (lambda: ask(exclude=3), "`exclude` must be a bool mask, or one list"),
    "fractions": (lambda: ask(exclude=np.full((5, 2), 1.5)), "`exclude` must"),
    # drawing
    "temperature": (lambda: ask(temperature=0, seed=1), "`temperature` must be a positive number, got 0"),
    "temperature of True": (lambda: ask(temperature=True, seed=1), "`temperature` must be a positive number, got True"),
    "top_p": (lambda: ask(temperature=1.0, top_p=0, seed=1), r"`top_p` must lie in \(0, 1\], got 0"),
    "no seed": (lambda: ask(temperature=1.0), "needs a `seed`"),
    "seed alone": (lambda: ask(seed=1), "belong to sampling"),
    "seed of half": (
        lambda: ask(temperature=1.0, seed=0.5),
        "`seed` must be one whole number or one per row, .* got 0.5",
    ),
    "seed beyond 64 bits": (lambda: ask(temperature=1.0, seed=2**70), "of at most 64 bits, got 1180591620717411303424"),
    "seeds of other rows": (lambda: ask(temperature=1.0, seed=[1, 2]), "5 rows, got 2 seeds"),
    # models
    "no model": (
        lambda: SPDD([new(world())]).generate(len, []),
        "must have a function 'start'; builtin_function.*FromCallable",
    ),
    "scores of a model": (
        lambda: SPDD([new(world())]).generate(spdd.FromCallable(lambda h: spoilt(torch.nan)), [[]] * 5),
        r"what `model\.logits` returned must be finite, got nan for row 1",
    ),
    "histories of text": (
        lambda: SPDD([new(world())]).generate(static(world()), "ab"),
        "histories must be lists of item numbers, one per row, got 'ab'",
    ),
    "scores that lose rows": (lambda: later(lambda logits: logits[:3]), r"\(5, 60\) at first, then got \(3, 60\)"),
    "scores that lose items": (lambda: later(lambda logits: logits[:, :9]), r"then got \(5, 9\).*`advance`"),
    "scores that end": (lambda: later(lambda logits: None), "`model.logits` returned must be numbers .* got NoneType"),
    "scores that turn to bools": (lambda: later(lambda logits: logits > 0), "torch.bool"),
    # values that depend on the slate
    "a value of nan": (lambda: moving(lambda n: torch.full((5, 60), torch.nan)), "objective 'x' .* it gave nan"),
    "a value below 0": (lambda: moving(lambda n: torch.full((5, 60), -1.0)), "objective 'x' .* it gave -1 to -1"),
    "a value without end": (lambda: moving(lambda n: n / torch.zeros(5, 60)), "objective 'x' must give numbers"),
    "a value that goes below 0": (lambda: moving(lambda n: 1.0 - n.expand(5, 60)), "it gave -2 to 1"),
    "a value of another shape": (
        lambda: moving(lambda n: torch.ones(60, 5)),
        r"shape \(5, 60\), it gave shape \(60, 5\)",
    ),
    "a value per row alone": (lambda: moving(lambda n: torch.ones(5)), r"objective 'x' .*it gave shape \(5,\)"),
    "no value": (lambda: moving(lambda n: None), "objective 'x' must give one number per item, .* it gave NoneType"),
    "bound to nothing": (lambda: SPDD([new(world())]).bind({"old": ONES}), "objective 'old', which is none of: new"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_right_is_refused_with_the_way_out(what):
    wrong, complaint = REFUSED[what]
    with pytest.raises((TypeError, ValueError), match=re.compile(complaint, re.DOTALL)):
        wrong()


def test_a_model_gone_wrong_half_way_is_named():
    w = world()
    answers = itertools.chain([w.logits, w.logits, spoilt(torch.nan)], itertools.repeat(w.logits))
    with pytest.raises(ValueError, match="after its first step"):
        SPDD([new(w)], slots=5).generate(spdd.FromCallable(lambda h: next(answers)), [[]] * 5)


@pytest.mark.parametrize("count", [40, 4000])
@pytest.mark.parametrize(
    "change",
    [
        torch.Tensor.half,
        torch.Tensor.bfloat16,
        torch.Tensor.long,
        torch.Tensor.double,
        torch.Tensor.numpy,
        torch.Tensor.tolist,
    ],
)
def test_scores_may_change_their_type_on_the_way(change, count):
    """All of these hold small whole numbers exactly, so the slates are the same. 4000 items take the short way."""
    w = world(items=count)
    logits = (w.logits * 3).round()
    want = SPDD([new(w)], slots=6).generate(static(w._replace(logits=logits)), [[]] * 5)
    for first in (logits, change(logits) if change is not torch.Tensor.tolist else logits):
        answers = itertools.chain([first], itertools.repeat(change(logits)))
        slate = SPDD([new(w)], slots=6).generate(spdd.FromCallable(lambda h: next(answers)), [[]] * 5)  # noqa: B023
        assert torch.equal(slate.items, want.items)


def test_scores_at_the_end_of_their_type_are_finite():
    """Their sum is not."""
    w = world()
    logits = torch.where(w.logits > 0, w.logits, torch.finfo(torch.float32).min)
    slate = SPDD([new(w)], slots=4).generate(static(w._replace(logits=logits)), [[]] * 5)
    assert (slate.items >= 0).all()


@pytest.mark.parametrize("shape", [(60,), (1, 60), (5, 60)])
@pytest.mark.parametrize("kind", [np.float32, np.int64, bool])
def test_a_value_function_may_give_numpy_and_what_all_rows_share(shape, kind):
    w = world()
    fixed = SPDD([new(w)], slots=6, start=0.5).generate(static(w), [[]] * 5)
    values = np.broadcast_to(w.new.numpy().astype(kind), shape)
    made = SPDD([Objective("new", lambda chosen: values, at_least=3)], slots=6, start=0.5).generate(static(w), [[]] * 5)
    assert torch.equal(made.gained, fixed.gained)
    assert (made.status == MET).all()


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_an_objective_keeps_its_own_values(kind):
    w = world()
    values = kind(w.new.clone())
    decoder = SPDD([Objective("new", values, at_least=3)], slots=6)
    values[:] = 0
    same(decoder.rerank(w.logits), SPDD([new(w)], slots=6).rerank(w.logits))


@pytest.mark.parametrize("kind", [list, tuple, np.array, functools.partial(np.array, dtype=object)])
def test_percentages_may_differ_from_row_to_row(kind):
    w = world()
    said = ["10%", "50%", " 0% ", "33.3%", "100%"]
    made = SPDD([new(w, at_least=kind(said))], slots=6).rerank(w.logits)
    same(made, SPDD([new(w, at_least=[0.6, 3, 0, 1.998, 6])], slots=6).rerank(w.logits))
    if kind is not np.array:  # which makes text of numbers
        same(made, SPDD([new(w, at_least=kind(["10%", 3, 0, 1.998, "100%"]))], slots=6).rerank(w.logits))


def test_a_decoder_is_printed_in_a_line():
    w = world()
    values = Objective("new", w.new, at_least=np.arange(5), per="slate")
    printed = repr(SPDD([values, fresh_genre(w), Objective("x", "a column", at_most="30%", per="traffic")], slots=6))
    assert "Objective('new', value=<60 float32>, at_least=<one for each of 5 rows>)" in printed
    assert "Objective('genres', value=<value>, at_least=3)" in printed
    assert "Objective('x', value=a column, at_most='30%', per='traffic')" in printed
    assert len(printed) < 500


@pytest.mark.parametrize("name", ["SPDD over traffic", "BanditTS", "ProviderMaxMin"])
def test_what_is_learnt_is_not_saved_where_there_is_no_folder(name, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"folder of .*a\.json' does not exist\. Make it first"):
        DECODERS[name](world(), 4).save(tmp_path / "no" / "a.json")
    assert not (tmp_path / "no").exists()
    with pytest.raises(IsADirectoryError, match="is a folder"):
        DECODERS[name](world(), 4).save(tmp_path)


def test_values_can_be_bound_later():
    w = world()
    decoder = SPDD([Objective("new", "is_new", at_least=3)], slots=6)
    same(decoder.bind({"new": w.new}).rerank(w.logits), SPDD([new(w)], slots=6).rerank(w.logits))
    other = 1 - w.new
    same(decoder.bind({"new": other}).rerank(w.logits), SPDD([new(w._replace(new=other))], slots=6).rerank(w.logits))


def test_a_policy_is_a_decoder_with_a_model():
    w = world()
    policy = functools.partial(SPDD([new(w)], slots=6).generate, static(w), exclude="seen")
    assert policy([[3], [4], [], [], []]).items.shape == (5, 6)
