"""MMR, DPP and Calibrated against their formulas, item by item. That their slates are slates is in test_contract.py."""

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import spdd
from spdd.decode.diversity import Running

ITEMS, SLOTS, TOPICS = 14, 5, 4


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def logits_of(rows=4, items=ITEMS, seed=0):
    return torch.randn(rows, items, generator=seeded(seed))


def vectors(items=ITEMS, width=6, seed=1):
    return torch.randn(items, width, generator=seeded(seed))


def cosines(embeddings):
    unit = np.asarray(embeddings, dtype=np.float64)
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    return unit @ unit.T


def topics(items=ITEMS, seed=2):
    """Each item in one, two or three topics."""
    table = (torch.rand(items, TOPICS, generator=seeded(seed)) < 0.4).double()
    table[torch.arange(items), torch.arange(items) % TOPICS] = 1
    return table


TASTE = [4, 3, 2, 1]

# name -> a decoder with this weight
DECODERS = {
    "MMR": lambda weight, **more: spdd.MMR(vectors(), weight=weight, slots=SLOTS, **more),
    "DPP": lambda weight, **more: spdd.DPP(vectors(), weight=weight, slots=SLOTS, **more),
    "Calibrated": lambda weight, **more: spdd.Calibrated(topics(), TASTE, weight=weight, slots=SLOTS, **more),
}
every = pytest.mark.parametrize("name", DECODERS)


def greedily(row, worth, slots=SLOTS, barred=()):
    """Items taken one by one: each time the open one with the largest worth(placed, item); ties to the lowest."""
    placed = []
    for _ in range(slots):
        open_ = [j for j in range(len(row)) if j not in placed and j not in barred]
        if not open_:
            break
        placed.append(max(open_, key=lambda j: worth(placed, j)))
    return placed


def mmr(row, alike, weight):
    def worth(placed, j):
        return (1 - weight) * row[j] - weight * max((alike[j, i] for i in placed), default=0.0)

    return worth


def dpp(row, alike, weight):
    """log det of the whole kernel quality · similarity · quality, from scratch."""
    quality = np.exp(np.array(row) * (1 - weight) / (2 * weight))
    kernel = quality[:, None] * alike * quality
    return lambda placed, j: np.linalg.slogdet(kernel[np.ix_([*placed, j], [*placed, j])])[1]


def calibrated(row, table, wanted, weight, smooth=0.01):
    parts = np.asarray(table) / np.asarray(table).sum(1, keepdims=True)
    want = np.asarray(wanted) / np.sum(wanted)

    def worth(placed, j):
        mix = (1 - smooth) * parts[[*placed, j]].mean(0) + smooth * want
        distance = sum(w * math.log(w / m) for w, m in zip(want, mix, strict=True) if w > 0)
        return (1 - weight) * sum(row[i] for i in [*placed, j]) - weight * distance

    return worth


NAIVE = {
    "MMR": lambda row, weight: mmr(row, cosines(vectors()), weight),
    "DPP": lambda row, weight: dpp(row, cosines(vectors()), weight),
    "Calibrated": lambda row, weight: calibrated(row, topics(), TASTE, weight),
}


# ---- the formulas ------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("weight", [0.1, 0.5, 0.9])
def test_slots_go_to_the_best_by_the_book(name, weight):
    logits = logits_of(rows=25)
    slate = DECODERS[name](weight).rerank(logits)
    for row in range(25):
        line = logits[row].double().tolist()
        assert slate.items[row].tolist() == greedily(line, NAIVE[name](line, weight))


@every
@settings(max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_exclusions_and_short_rows_by_the_book(name, seed):
    random = np.random.default_rng(seed)
    logits, exclude = random.normal(size=(3, ITEMS)), random.random((3, ITEMS)) < [[0.2], [0.6], [0.9]]
    slate = DECODERS[name](0.6).rerank(logits, exclude=exclude)
    for row in range(3):
        want = greedily(logits[row], NAIVE[name](logits[row], 0.6), barred=set(np.flatnonzero(exclude[row])))
        assert slate.items[row].tolist() == want + [-1] * (SLOTS - len(want))


@every
def test_a_model_that_changes_its_mind_is_asked_in_every_slot(name):
    first, then = logits_of(seed=3), logits_of(seed=4)
    model = spdd.FromCallable(lambda sequences: first if sequences.shape[1] < 3 else then)
    slate = DECODERS[name](0.5).generate(model, torch.zeros(4, 1, dtype=torch.int64))
    for row in range(4):
        before, after = (NAIVE[name](x[row].double().tolist(), 0.5) for x in (first, then))
        worth = [before, before, after, after, after]
        want = greedily([0] * ITEMS, lambda placed, j, worth=worth: worth[len(placed)](placed, j))
        assert slate.items[row].tolist() == want


@every
def test_weight_0_is_greedy(name):
    logits = logits_of(rows=20)
    slate = DECODERS[name](0).rerank(logits)
    plain = spdd.Greedy(slots=SLOTS).rerank(logits)
    assert torch.equal(slate.items, plain.items)
    assert torch.equal(slate.relevance, plain.relevance)


def test_mmr_takes_the_farthest_when_relevance_hardly_counts():
    logits, alike = logits_of(rows=9), cosines(vectors())
    for line, items in zip(logits, spdd.MMR(vectors(), slots=SLOTS, weight=1 - 1e-9).rerank(logits).items, strict=True):
        assert items[0] == line.argmax()  # nothing to be like yet
        for slot, item in enumerate(items.tolist()[1:], 1):
            placed = items[:slot].tolist()
            near = alike[:, placed].max(1)
            near[placed] = np.inf
            assert item == near.argmin()


def test_dpp_spans_the_space_before_it_repeats_itself():
    # Three directions, many copies of each: the first three items are one of each, then relevance alone decides.
    direction = torch.arange(12) % 3
    logits = torch.linspace(3, 0, 12).expand(2, -1) + 5.0 * (direction == 1)
    slate = spdd.DPP(torch.eye(3)[direction], slots=6, weight=0.9).rerank(logits)
    assert slate.items.tolist() == [[1, 0, 2, 4, 7, 10]] * 2


def test_calibrated_ends_at_the_wanted_mix_when_it_alone_counts():
    genre = torch.arange(40) % 4
    decoder = spdd.Calibrated(torch.nn.functional.one_hot(genre), TASTE, slots=10, weight=1 - 1e-9)
    for items in decoder.rerank(logits_of(rows=6, items=40)).items:
        assert torch.bincount(genre[items]).tolist() == TASTE


def test_calibrated_gives_every_row_its_own_taste():
    genre = torch.arange(40) % 2
    table = torch.nn.functional.one_hot(genre)
    slate = spdd.Calibrated(table, [[1, 0], [0, 1], [1, 1]], slots=6, weight=0.999).rerank(logits_of(3, 40))
    assert [int(genre[row].sum()) for row in slate.items] == [0, 6, 3]
    own = torch.stack([table, table.flip(1), table])
    slate = spdd.Calibrated(own, [1, 0], slots=6, weight=0.999).rerank(logits_of(3, 40))
    assert [int(genre[row].sum()) for row in slate.items] == [0, 6, 0]


# ---- similarity --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decoder", [spdd.MMR, spdd.DPP])
def test_given_similarity_is_as_good_as_embeddings(decoder):
    logits, given = logits_of(rows=20), torch.as_tensor(cosines(vectors()))
    by_vector = decoder(vectors(), slots=SLOTS, weight=0.6).rerank(logits)
    assert torch.equal(decoder(similarity=given, slots=SLOTS, weight=0.6).rerank(logits).items, by_vector.items)
    assert torch.equal(decoder(7 * vectors(), slots=SLOTS, weight=0.6).rerank(logits).items, by_vector.items)


@pytest.mark.parametrize("decoder", [spdd.MMR, spdd.DPP])
def test_rows_may_have_embeddings_of_their_own(decoder):
    logits, own = logits_of(), torch.stack([vectors(seed=row) for row in range(4)])
    slate = decoder(own, slots=SLOTS, weight=0.6).rerank(logits)
    for row in range(4):
        alone = decoder(own[row], slots=SLOTS, weight=0.6).rerank(logits[row : row + 1])
        assert torch.equal(slate.items[row : row + 1], alone.items)


@pytest.mark.parametrize("decoder", [spdd.MMR, spdd.DPP])
def test_copies_are_taken_lowest_number_first_in_any_batch(decoder):
    # Items 0, 20, 40, ... are copies of each other: a matrix product rounds differently at the edge of a tile.
    embeddings = vectors(20, 16).repeat(7, 1)[:133]
    logits = logits_of(1, 20).repeat(1, 7)[:, :133]
    decoder = decoder(embeddings, slots=30, weight=0.5)
    alone = decoder.rerank(logits).items[0].tolist()
    for rows in (2, 7, 64):
        assert decoder.rerank(logits.expand(rows, -1)).items.tolist() == [alone] * rows
    for item in alone:
        assert item < 20 or item - 20 in alone[: alone.index(item)]


@pytest.mark.parametrize("decoder", [spdd.MMR, spdd.DPP])
def test_an_item_without_a_vector_is_like_no_other(decoder):
    embeddings = torch.cat([torch.ones(5, 3), torch.zeros(2, 3)])
    logits = torch.tensor([[2.0, 1.9, 1.8, 1.7, 1.6, 0.2, 0.1]])
    assert decoder(embeddings, slots=3, weight=0.9).rerank(logits).items.tolist() == [[0, 5, 6]]


# ---- the bonus as a function of what is chosen ---------------------------------------------------------------


@every
def test_the_bonus_depends_on_the_slate_alone(name):
    """Grown, cut short, re-ordered or asked for out of the blue: hosts do all of that."""
    decoder = DECODERS[name](0.6)
    chosen = torch.rand(8, ITEMS, generator=seeded(6)).argsort(1)[:, :SLOTS]
    chosen[3, 2:] = -1  # ran out of items
    grown = decoder._bonus()
    for filled in range(SLOTS + 1):
        now = chosen.masked_fill(torch.arange(SLOTS) >= filled, -1)
        fresh = decoder._bonus()(now)
        torch.testing.assert_close(grown(now, filled), fresh, rtol=0, atol=0)
        torch.testing.assert_close(grown(now), fresh, rtol=0, atol=0)  # a host that does not say
    order = torch.tensor([5, 5, 0, 3])
    torch.testing.assert_close(grown(chosen[order]), decoder._bonus()(chosen)[order], rtol=0, atol=1e-9)
    cut = chosen.masked_fill(torch.arange(SLOTS) >= 2, -1)
    torch.testing.assert_close(grown(cut), decoder._bonus()(cut), rtol=0, atol=1e-9)
    other = cut.roll(1, 0)
    torch.testing.assert_close(grown(other), decoder._bonus()(other), rtol=0, atol=1e-9)


def test_a_bonus_one_item_longer_costs_one_step():
    steps = []

    def add(memory, items):
        steps.append(items.tolist())
        return memory + items

    running = Running(lambda chosen: torch.zeros(1), add, lambda memory: memory)
    for _ in range(2):  # a second slate begins anew
        for filled in range(4):
            running(torch.tensor([[7, 8, 9]]).masked_fill(torch.arange(3) >= filled, -1), filled)
    assert steps == [[7], [8], [9]] * 2


@pytest.mark.parametrize("decoder", [spdd.MMR, spdd.DPP])
def test_no_slot_waits_for_the_device(decoder, monkeypatch):
    """Nothing on the way of a slot turns a tensor into a number: on a GPU each of these would stall it."""
    asked = []
    for name in ("__int__", "__bool__", "__float__", "item", "tolist", "nonzero"):
        plain = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda self, plain=plain, name=name: asked.append(name) or plain(self))
    monkeypatch.setattr(torch, "equal", lambda a, b: asked.append("equal") or bool((a == b).all()))

    def waits(slots):
        asked.clear()
        decoder(vectors(), slots=slots, weight=0.5).rerank(logits_of())
        return len(asked)

    assert waits(3) == waits(8)


@every
def test_objectives_are_counted_and_not_chased(name):
    new = spdd.Objective("new", torch.arange(ITEMS) % 2, at_least=5)
    logits = logits_of()
    slate = DECODERS[name](0.5, objectives=[new]).rerank(logits)
    assert torch.equal(slate.items, DECODERS[name](0.5).rerank(logits).items)
    assert slate.gained[:, 0].tolist() == (slate.items % 2).sum(1).tolist()


# ---- what is refused ---------------------------------------------------------------------------------------

REFUSED = {
    "weight": (lambda: spdd.MMR(vectors(), weight=1), r"`weight` must be a number in \[0, 1\), .* got 1"),
    "weight of a word": (lambda: spdd.DPP(vectors(), weight="much"), "`weight` .* got 'much'"),
    "neither": (lambda: spdd.MMR(), "give either `embeddings` .* got neither"),
    "both": (lambda: spdd.DPP(vectors(), similarity=np.eye(ITEMS)), "got both"),
    "flat embeddings": (lambda: spdd.MMR([1.0, 2.0]), r"`embeddings` must be a matrix.*got shape \(2,\)"),
    "embeddings of words": (lambda: spdd.MMR([["a"]]), "`embeddings` must be a matrix of numbers"),
    "embeddings of nan": (lambda: spdd.DPP([[1.0], [math.nan]]), "`embeddings` must be finite, got .*nan.* for item 1"),
    "similarity that is not": (lambda: spdd.DPP(similarity=[[1, 0.5], [0, 1]]), "must be symmetric.*but not symmetric"),
    "similarity not square": (
        lambda: spdd.MMR(similarity=vectors()),
        r"`similarity` must be symmetric.*\(14, 6\).*`embeddings`",
    ),
    "smooth": (lambda: spdd.Calibrated(topics(), TASTE, smooth=0), "`smooth` must be a number above 0"),
    "taste": (lambda: spdd.Calibrated(topics(), [1, 2]), "`wanted` must have one number per category.* 4; got 2"),
    "other items": (
        lambda: spdd.MMR(vectors(9)).rerank(logits_of()),
        "MMR was given 9 items, but the scores have 14 items",
    ),
    "other rows": (
        lambda: spdd.Calibrated(topics(), np.ones((3, 4))).rerank(logits_of()),
        "Calibrated was given 14 items in 3 rows, but the scores have 14 items in 4 rows",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_right_is_refused_with_the_way_out(what):
    wrong, complaint = REFUSED[what]
    with pytest.raises((TypeError, ValueError), match=re.compile(complaint, re.DOTALL)):
        wrong()
