"""Values that depend on the slate: they add up to what the slate as a whole is worth, and a guard can keep them."""

import copy
import itertools
import math
import pickle
import re
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import spdd
from spdd import MET, SHORT, Objective

ITEMS, TOPICS, SLOTS = 12, 5, 6
CURVES = {"sqrt": math.sqrt, "log": math.log1p, 1.5: lambda x: min(x, 1.5), 1: lambda x: min(x, 1)}


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def some_table(*shape, seed=0):
    """Weights, about half of them 0; the last item has nothing at all."""
    random = seeded(seed)
    table = torch.rand(*shape, generator=random) * (torch.rand(*shape, generator=random) < 0.5)
    table[..., -1, :] = 0
    return table


def some_chosen(rows=7, items=ITEMS, slots=SLOTS, seed=1):
    """Slates with 0, 1, 2, ... items placed."""
    chosen = torch.rand(rows, items, generator=seeded(seed)).argsort(1)[:, :slots]
    return chosen.masked_fill(torch.arange(slots) >= torch.arange(rows)[:, None] % (slots + 1), -1)


def some_groups(*shape, count=4, seed=2):
    """Odd labels on purpose: negative, far apart, and -1 for no group."""
    labels = torch.tensor([-7, 3, 10**12, 5, 6, 8, 9])[:count]
    groups = labels[torch.randint(count, shape, generator=seeded(seed))]
    groups[..., ::5] = -1
    return groups


def of_row(given, row):
    return given[row] if given.dim() == 3 else given


def check(value, chosen, worth):
    """`value` against f(S + j) - f(S), where worth(row, items) is f."""
    got = value(chosen)
    assert got.dtype == torch.float64
    assert got.shape == (len(chosen), ITEMS)
    for row, line in enumerate(chosen.tolist()):
        placed = [j for j in line if j >= 0]
        for item in range(ITEMS):
            want = worth(row, [*placed, item]) - worth(row, placed)
            assert got[row, item].item() == pytest.approx(want, abs=1e-11)


def total(value, items, slots=SLOTS):
    """The values of a slate's items, added up as it fills."""
    chosen, gained = torch.full((1, slots), -1), 0.0
    for slot, item in enumerate(items):
        gained += value(chosen)[0, item].item()
        chosen[0, slot] = item
    return gained


# ---- coverage ----------------------------------------------------------------------------------------------


def coverage_of(table, curve, items):
    return sum(curve(sum(float(table[j, t]) for j in items)) for t in range(table.shape[1]))


@pytest.mark.parametrize("concave", CURVES)
@pytest.mark.parametrize("shape", [(ITEMS, TOPICS), (7, ITEMS, TOPICS)])
def test_coverage_is_what_an_item_adds(concave, shape):
    table = some_table(*shape).double()
    value = spdd.coverage(table, concave)
    check(value, some_chosen(), lambda row, items: coverage_of(of_row(table, row), CURVES[concave], items))


def test_coverage_takes_a_function():
    table = some_table(ITEMS, TOPICS)
    own = spdd.coverage(table, lambda x: 1 - (-x).exp())
    check(own, some_chosen(), lambda row, items: coverage_of(table, lambda x: 1 - math.exp(-x), items))


@settings(max_examples=30)
@given(st.permutations(range(ITEMS)), st.sampled_from(list(CURVES)))
def test_coverage_adds_up_to_the_slates_in_any_order(order, concave):
    table = some_table(ITEMS, TOPICS)
    items = order[:SLOTS]
    assert total(spdd.coverage(table, concave), items) == pytest.approx(coverage_of(table, CURVES[concave], items))


def test_coverage_only_shrinks_as_a_slate_fills():
    value = spdd.coverage(some_table(ITEMS, TOPICS), "log")
    chosen, before = torch.full((1, SLOTS), -1), torch.full((1, ITEMS), torch.inf).double()
    for slot in range(SLOTS):
        now = value(chosen)
        assert (now >= 0).all()
        assert (now <= before + 1e-12).all()
        chosen[0, slot], before = 2 * slot, now


def test_a_coverage_floor_is_reached_where_plain_decoding_misses_it():
    genre = torch.arange(40) % 8
    table = torch.nn.functional.one_hot(genre)
    logits = 4.0 * (genre < 2) + torch.randn(20, 40, generator=seeded(0))
    six = Objective("genres", spdd.coverage(table, 1), at_least=6)
    assert (spdd.Greedy([six], slots=6).rerank(logits).status == SHORT).all()
    for decoder in (spdd.MustFill([six], slots=6), spdd.SPDD([six], slots=6)):
        slate = decoder.rerank(logits)
        assert (slate.status == MET).all()
        assert all(len(set(genre[row].tolist())) >= 6 for row in slate.items)
        assert (slate.gained == 6).all()


def test_items_alike_are_worth_exactly_the_same():
    # 0.1 + 0.2 is not 0.3, and a vector lane's logarithm is not always the scalar one: neither may break a tie.
    table = torch.tensor([[0.1, 0.2, 0.3]] * 37)
    for concave in CURVES:
        values = spdd.coverage(table, concave)(torch.tensor([[3, 4, -1]] * 3))
        assert (values == values[0, 0]).all()


# ---- calibration -------------------------------------------------------------------------------------------


def match_of(table, wanted, items, slots=SLOTS):
    """sum_t min(share_t, wanted_t), item by item."""
    share = [0.0] * len(wanted)
    for j in items:
        for t in range(len(wanted)):
            share[t] += float(table[j, t]) / max(float(sum(table[j])), 1e-300) / slots
    return sum(min(s, float(w) / float(sum(wanted))) for s, w in zip(share, wanted, strict=True))


@pytest.mark.parametrize("shape", [(ITEMS, TOPICS), (7, ITEMS, TOPICS)])
@pytest.mark.parametrize("tastes", [(TOPICS,), (7, TOPICS)])
def test_calibration_is_what_an_item_adds_to_the_match(shape, tastes):
    table, wanted = some_table(*shape).double(), torch.rand(tastes, generator=seeded(5)).double()
    taste = wanted.expand(7, -1)
    value = spdd.calibration(table, wanted)
    check(value, some_chosen(), lambda row, items: match_of(of_row(table, row), taste[row], items))
    assert value.shape == ((7, ITEMS) if len(shape) == 3 or len(tastes) == 2 else (ITEMS,))


def test_calibration_is_1_exactly_where_the_mix_is_the_wanted_one():
    genre = [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    value = spdd.calibration(np.eye(3)[genre], wanted=[3, 2, 1])
    for items in itertools.combinations(range(10), 6):
        mix = Counter(genre[j] for j in items)
        assert (total(value, items) > 1 - 1e-9) == (mix == {0: 3, 1: 2, 2: 1})


def test_an_item_of_two_categories_is_half_of_each():
    value = spdd.calibration([[1, 1], [1, 0], [0, 1]], wanted=[1, 1])
    assert total(value, [0], slots=2) == pytest.approx(0.5)
    assert total(value, [0, 1], slots=2) == pytest.approx(0.75)
    assert total(value, [1, 2], slots=2) == pytest.approx(1)


def test_every_row_gets_its_own_taste():
    genre = torch.arange(30) % 3
    logits = torch.randn(3, 30, generator=seeded(0)) + 3.0 * (genre == 0)
    taste = Objective(
        "taste", spdd.calibration(torch.nn.functional.one_hot(genre), [[1, 0, 0], [1, 1, 0], [1, 2, 3]]), at_least=1
    )
    slate = spdd.MustFill([taste], slots=6).rerank(logits)
    assert (slate.status == MET).all()
    mixes = [torch.bincount(genre[row], minlength=3).tolist() for row in slate.items]
    assert mixes == [[6, 0, 0], [3, 3, 0], [1, 2, 3]]


# ---- at most so many of a group ----------------------------------------------------------------------------


def beyond(groups, most, items):
    return sum(max(0, n - most) for g, n in Counter(int(groups[j]) for j in items).items() if g != -1)


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("shape", [(ITEMS,), (7, ITEMS)])
def test_group_limit_counts_the_items_beyond_it(most, shape):
    groups = some_groups(*shape)
    limit = spdd.at_most_per_group("artists", groups, most)
    lines = groups.expand(7, -1)
    check(limit.value, some_chosen(), lambda row, items: beyond(lines[row], most, items))
    assert (limit.name, limit.at_most, limit.at_least) == ("artists", 0, None)


@settings(max_examples=60)
@given(st.integers(0, 10**6))
def test_group_limit_is_kept_wherever_it_can_be(seed):
    random = np.random.default_rng(seed)
    items, slots, most = random.integers(2, 12), int(random.integers(1, 8)), int(random.integers(1, 3))
    groups, exclude = random.integers(-1, 4, items), random.random((4, items)) < 0.2
    limit = spdd.at_most_per_group("artists", groups, most)
    slate = spdd.SPDD([limit], slots=slots).rerank(random.normal(size=(4, items)), exclude=exclude)
    for row in range(4):
        stock = Counter(groups[~exclude[row]].tolist())
        room = stock.pop(-1, 0) + sum(min(most, n) for n in stock.values())
        possible = room >= min(slots, int((~exclude[row]).sum()))
        assert (slate.status[row] == MET) == possible
        placed = slate.items[row][slate.items[row] >= 0]
        assert slate.gained[row, 0] == beyond(groups, most, placed)


def test_group_limit_takes_the_best_of_every_group():
    groups, logits = some_groups(40, count=7), torch.randn(9, 40, generator=seeded(3))
    slate = spdd.MustFill([spdd.at_most_per_group("artists", groups, 1)], slots=5).rerank(logits)
    for row in range(9):
        want, used = [], set()
        for j in logits[row].argsort(descending=True).tolist():
            if int(groups[j]) not in used and len(want) < 5:
                want.append(j)
                used |= {int(groups[j])} - {-1}
        assert slate.items[row].tolist() == want


# ---- spacing -----------------------------------------------------------------------------------------------


def too_near(groups, distance, items):
    """Items of a group that is among the `distance` - 1 items before."""
    line = [int(groups[j]) for j in items]
    return sum(g != -1 and g in line[max(0, k - distance + 1) : k] for k, g in enumerate(line))


def can_go_on(line, stock, slots, distance):
    """Whether `slots` more can be filled in keeping. By trying."""
    if not slots:
        return True
    for g in stock:
        if stock[g] and (g == -1 or g not in line[max(0, len(line) - distance + 1) :]):
            stock[g] -= 1
            found = can_go_on([*line, g], stock, slots - 1, distance)
            stock[g] += 1
            if found:
                return True
    return False


def well_spaced(groups, exclude, slots, distance):
    stock = Counter(groups[~exclude].tolist())
    return can_go_on([], dict(stock), min(slots, sum(stock.values())), distance)


@pytest.mark.parametrize("shape", [(ITEMS,), (7, ITEMS)])
def test_spacing_bars_the_groups_of_the_last_slots(shape):
    groups = some_groups(*shape, count=7)
    # Many items of no group and few slots left: nothing to look ahead for.
    plenty = torch.cat([groups, torch.full((*shape[:-1], 9), -1)], -1)
    value = spdd.spacing("apart", plenty, 3).value
    chosen, lines = some_chosen(), groups.expand(7, -1)
    got = value(chosen)[:, :ITEMS]
    for row, line in enumerate(chosen.tolist()):
        placed = [j for j in line if j >= 0]
        before = too_near(lines[row], 3, placed)
        assert got[row].tolist() == [too_near(lines[row], 3, [*placed, j]) - before for j in range(ITEMS)]


@settings(max_examples=200)
@given(st.integers(0, 10**6))
def test_spacing_is_kept_wherever_it_can_be(seed):
    random = np.random.default_rng(seed)
    items, slots, distance = random.integers(3, 10), int(random.integers(2, 8)), int(random.integers(2, 5))
    groups = random.choice([-1, 0, 1, 2, 3], items, p=random.dirichlet(np.full(5, 0.5)))
    apart = spdd.spacing("apart", groups, distance)
    slots = min(slots, items)
    slate = spdd.MustFill([apart], slots=slots).rerank(random.normal(size=(3, items)))
    for row in range(3):
        assert (slate.status[row] == MET) == well_spaced(groups, np.zeros(items, bool), slots, distance)
        assert (slate.status[row] == MET) == (too_near(groups, distance, slate.items[row]) == 0)


@settings(max_examples=100)
@given(st.integers(0, 10**6))
def test_spacing_within_what_a_row_may_have_looks_ahead_with_that(seed):
    random = np.random.default_rng(seed)
    items, slots, distance = int(random.integers(4, 10)), int(random.integers(2, 6)), int(random.integers(2, 4))
    groups, exclude = random.integers(-1, 3, items), random.random((2, items)) < 0.4
    exclude[:, :slots] = False
    value = spdd.spacing("apart", groups, distance).value.within(torch.as_tensor(~exclude))
    slate = spdd.MustFill([Objective("apart", value, at_most=0)], slots=slots).rerank(
        random.normal(size=(2, items)), exclude=exclude
    )
    for row in range(2):
        assert (slate.status[row] == MET) == well_spaced(groups, exclude[row], slots, distance)


# ---- what all have in common -------------------------------------------------------------------------------

ALL = {
    "coverage": lambda: spdd.coverage(some_table(ITEMS, TOPICS), "log"),
    "coverage per row": lambda: spdd.coverage(some_table(7, ITEMS, TOPICS)),
    "calibration": lambda: spdd.calibration(some_table(ITEMS, TOPICS), torch.ones(TOPICS)),
    "calibration per row": lambda: spdd.calibration(some_table(ITEMS, TOPICS), some_table(8, 8, TOPICS)[0, :7] + 0.1),
    "group limit": lambda: spdd.at_most_per_group("x", some_groups(ITEMS), 1).value,
    "group limit per row": lambda: spdd.at_most_per_group("x", some_groups(7, ITEMS), 1).value,
    "spacing": lambda: spdd.spacing("x", some_groups(ITEMS), 3).value,
    "spacing per row": lambda: spdd.spacing("x", some_groups(7, ITEMS), 3).value,
}
every = pytest.mark.parametrize("name", ALL)


@every
def test_a_batch_is_its_rows_one_by_one(name):
    value, chosen = ALL[name](), some_chosen()
    together = value(chosen)
    if "per row" in name:
        with pytest.raises(ValueError, match=r"numbers for 7 rows, one line each, but 1 slates are being built"):
            value(chosen[:1])
    else:
        order = torch.randperm(7, generator=seeded(4))
        assert torch.equal(value(chosen[order]), together[order])
        for row in range(7):
            assert torch.equal(value(chosen[row : row + 1]), together[row : row + 1])


@every
def test_a_value_says_which_items_it_knows(name):
    assert ALL[name]().shape == ((7, ITEMS) if "per row" in name else (ITEMS,))


@every
def test_a_value_can_be_copied_and_kept(name):
    value, chosen = ALL[name](), some_chosen()
    for other in (copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert torch.equal(other(chosen), value(chosen))


@every
def test_arrays_and_lists_are_as_good_as_tensors(name):
    assert ALL[name]()(some_chosen()).shape == (7, ITEMS)
    chosen = some_chosen(rows=3)
    for kind in (np.asarray, list, lambda x: x.tolist()):
        table, groups = kind(some_table(ITEMS, TOPICS)), kind(some_groups(ITEMS))
        assert torch.equal(spdd.coverage(table)(chosen), spdd.coverage(some_table(ITEMS, TOPICS))(chosen))
        same = spdd.at_most_per_group("x", some_groups(ITEMS), 1).value(chosen)
        assert torch.equal(spdd.at_most_per_group("x", groups, 1).value(chosen), same)


@every
@pytest.mark.gpu
def test_a_value_is_the_same_on_a_gpu(name):
    value, chosen = ALL[name](), some_chosen()
    there = value(chosen.cuda())
    assert there.device.type == "cuda"
    torch.testing.assert_close(there.cpu(), value(chosen), rtol=0, atol=1e-11)


# ---- what is refused ---------------------------------------------------------------------------------------

TABLE, GROUPS = some_table(ITEMS, TOPICS), some_groups(ITEMS)

REFUSED = {
    "table below 0": (
        lambda: spdd.coverage([[1, 0], [0, -2]]),
        r"`table` must be finite and not negative, got -2.0 at \(1, 1\)",
    ),
    "table of nan": (lambda: spdd.coverage([[1, math.nan]]), r"got nan at \(0, 1\)"),
    "table of one line": (
        lambda: spdd.coverage([1, 0]),
        r"`table` must have shape \(items, categories\) or .*got \(2,\)",
    ),
    "table of words": (lambda: spdd.coverage([["rock"]]), "`table` must be numbers"),
    "uneven table": (lambda: spdd.coverage([[1, 0], [1]]), "`table` must be numbers"),
    "curve": (lambda: spdd.coverage(TABLE, "cube"), "`concave` must be one of 'sqrt', 'log', a number.*got 'cube'"),
    "cap of 0": (lambda: spdd.coverage(TABLE, 0), "`concave` as a number.*above 0, got 0"),
    "cap of True": (lambda: spdd.coverage(TABLE, True), "`concave` as a number.*got True"),
    "a curve that rises faster": (
        lambda: spdd.coverage(TABLE, torch.square),
        "must rise ever more slowly.*rises faster",
    ),
    "a curve that falls": (lambda: spdd.coverage(TABLE, lambda x: -x), "must rise ever more slowly.*falls"),
    "not elementwise": (lambda: spdd.coverage(TABLE, lambda x: x.softmax(0)), "must be elementwise"),
    "not a tensor": (lambda: spdd.coverage(TABLE, lambda x: 1.0), "must be elementwise"),
    "a mix of other categories": (lambda: spdd.calibration(TABLE, [1, 1]), "`table`, which has 5; got 2"),
    "a mix of nothing": (lambda: spdd.calibration(TABLE, [[1] * 5, [0] * 5]), "sum above 0, got only zeros in line 1"),
    "mixes of other rows": (
        lambda: spdd.calibration(some_table(3, ITEMS, TOPICS), np.ones((4, 5))),
        "one per row of `table`: 3 rows, got 4",
    ),
    "groups of fractions": (
        lambda: spdd.at_most_per_group("x", [0.5, 1], 1),
        "`groups` must be whole numbers.*list of torch.float64",
    ),
    "groups of words": (lambda: spdd.spacing("x", ["abba", "blur"], 2), "`groups` must be whole.*numpy.unique"),
    "groups of bools": (lambda: spdd.spacing("x", [True, False], 2), "`groups` must be whole numbers"),
    "groups of no items": (
        lambda: spdd.spacing("x", np.zeros((2, 0), int), 2),
        r"`groups` must have shape.*got \(2, 0\)",
    ),
    "none of a group": (
        lambda: spdd.at_most_per_group("x", GROUPS, 0),
        "`most` must be .* at least 1, got 0.*`exclude`",
    ),
    "half an item": (lambda: spdd.at_most_per_group("x", GROUPS, 1.5), "`most` .* got 1.5"),
    "no distance": (lambda: spdd.spacing("x", GROUPS, 1), "`distance` must be .* at least 2, got 1"),
    "no name": (lambda: spdd.spacing("", GROUPS, 2), "`name` of an objective"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_right_is_refused_with_the_way_out(what):
    wrong, complaint = REFUSED[what]
    with pytest.raises((TypeError, ValueError), match=re.compile(complaint, re.DOTALL)):
        wrong()
