"""Provider max-min: what it does to the worst-off over a stream of traffic, the step it takes, and keeping its state."""

import json
import re

import numpy as np
import pytest
import torch

import spdd
from spdd.decode.providers import SHARED, Exposure

PROVIDERS, ITEMS, SLOTS = 8, 160, 5
OWNER = torch.randint(PROVIDERS, (ITEMS,), generator=torch.Generator().manual_seed(0))


def stream(batches, rows=32, seed=1):
    """Scores of traffic: the higher a provider's number, the less its items are wanted."""
    random = torch.Generator().manual_seed(seed)
    wanted = torch.linspace(1.5, -1.5, PROVIDERS)[OWNER]
    for _ in range(batches):
        yield wanted + torch.randn(rows, ITEMS, generator=random)


def served(decoder, batches=60, **more):
    """Least exposure of a provider over a fair share, and mean relevance, over the later half of a stream."""
    shown, relevance = torch.zeros(PROVIDERS), []
    for batch, logits in enumerate(stream(batches, **more)):
        slate = decoder.rerank(logits)
        if 2 * batch >= batches:
            shown += OWNER[slate.items].flatten().bincount(minlength=PROVIDERS)
            relevance.append(slate.relevance.mean().item())
    return (shown.min() / shown.mean()).item(), np.mean(relevance)


# ---- what it does ------------------------------------------------------------------------------------------


def test_the_worst_off_provider_rises_and_relevance_pays():
    least, relevance = served(spdd.Greedy(slots=SLOTS))
    assert least < 0.02
    assert relevance > 3
    before = least, relevance
    for weight, at_least, keeps in [(0.3, 0.05, 0.99), (0.5, 0.6, 0.85), (0.8, 0.95, 0.7)]:
        now = served(spdd.ProviderMaxMin(OWNER, weight=weight, slots=SLOTS))
        assert now[0] > at_least
        assert now[1] > keeps * relevance
        assert now[0] > before[0]  # more weight, more for the worst-off ...
        assert now[1] < before[1]  # ... and less relevance
        before = now


def test_exposure_can_be_due_in_other_parts():
    due = torch.arange(1, PROVIDERS + 1).float()
    decoder = spdd.ProviderMaxMin(OWNER, weights=due, weight=0.9, slots=SLOTS)
    served(decoder, batches=200)
    assert min(decoder.exposure.share) > 0.85
    shown = np.array(decoder.exposure.shown)
    assert shown[-1] > 5 * shown[0]  # the least wanted is due eight times as much


def test_weight_0_and_the_first_batch_are_greedy():
    first, second = stream(2)
    plain = spdd.Greedy(slots=SLOTS)
    idle, keen = (spdd.ProviderMaxMin(OWNER, weight=weight, slots=SLOTS) for weight in (0, 0.8))
    assert torch.equal(keen.rerank(first).items, plain.rerank(first).items)
    assert torch.equal(idle.rerank(first).items, plain.rerank(first).items)
    assert torch.equal(idle.rerank(second).items, plain.rerank(second).items)
    assert not torch.equal(keen.rerank(second).items, plain.rerank(second).items)


def test_slots_go_to_the_best_relevance_and_price():
    decoder = spdd.ProviderMaxMin(OWNER, weight=0.5, slots=SLOTS)
    for logits in stream(4):
        price = torch.tensor(decoder.exposure.price)[OWNER]
        want = (logits.double() + price).argsort(1, descending=True)[:, :SLOTS]
        slate = decoder.rerank(logits)
        assert torch.equal(slate.items, want)
        torch.testing.assert_close(slate.relevance, logits.double().gather(1, want))  # the model's own


def test_rows_of_a_batch_share_the_prices():
    first, second = stream(2)
    order = torch.randperm(32, generator=torch.Generator().manual_seed(2))
    one, other = (spdd.ProviderMaxMin(OWNER, slots=SLOTS) for _ in range(2))
    assert torch.equal(one.rerank(first).items[order], other.rerank(first[order]).items)
    assert torch.equal(one.rerank(second).items[order], other.rerank(second[order]).items)
    assert one.exposure == other.exposure


def test_what_a_model_generates_is_exposure_too():
    logits = next(stream(1))
    one, other = (spdd.ProviderMaxMin(OWNER, slots=SLOTS) for _ in range(2))
    one.rerank(logits)
    other.generate(spdd.FromCallable(lambda sequences: logits), torch.zeros(32, 1, dtype=torch.int64))
    assert one.exposure == other.exposure


def test_items_of_no_provider_have_no_price_and_no_exposure():
    owner = torch.tensor([-1, -1, 5, 5, 9, 9])
    decoder = spdd.ProviderMaxMin(owner, weight=0.9, rate=1.0, slots=3)
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0, -1.0, -2.0]])
    assert decoder.rerank(logits).items.tolist() == [[0, 1, 2]]
    assert (decoder.exposure.provider, decoder.exposure.shown) == ((5, 9), (1, 0))
    assert decoder.rerank(logits).items[0, 0] == 4  # 9's best, over both that are nobody's
    assert decoder._bonus()(torch.full((1, 3), -1))[0, :2].tolist() == [0, 0]


def test_empty_slots_and_empty_batches_are_no_exposure():
    decoder = spdd.ProviderMaxMin([0, 0, 1], slots=3)
    decoder.rerank(np.zeros((2, 3)), exclude=[[0, 1, 2], [1, 2]])
    assert decoder.exposure.shown == (1, 0)
    before = decoder.exposure
    decoder.rerank(np.zeros((0, 3)))
    assert decoder.exposure == before


def test_rows_may_have_items_of_their_own():
    """Every row is served as it would be if its items were everybody's."""
    first, second = stream(2)
    random = torch.Generator().manual_seed(3)
    orders = torch.stack([torch.randperm(ITEMS, generator=random) for _ in range(32)])
    shared, own = (spdd.ProviderMaxMin(given, weight=0.8, slots=SLOTS) for given in (OWNER, OWNER[orders]))
    for logits in (first, second):
        want = shared.rerank(logits).items
        assert torch.equal(orders.gather(1, own.rerank(logits.gather(1, orders)).items), want)
    assert own.exposure == shared.exposure


def test_other_items_of_known_providers_may_be_bound():
    decoder = spdd.ProviderMaxMin([3, 5, 9], weight=0.9, rate=1.0, slots=1)
    decoder.rerank([[2.0, 1.0, 0.0]])
    learnt = decoder.exposure
    assert decoder.bind({}, providers=[[9, 3], [-1, 9]]) is decoder
    assert decoder.exposure == learnt  # what it has learnt stays
    assert decoder.rerank([[0.0, 0.5], [0.0, 0.0]]).items.tolist() == [[0], [1]]  # 3 has had its turn; 9 has not
    assert decoder.exposure.shown == (1, 0, 2)
    with pytest.raises(ValueError, match=r"one of the 3 numbers the decoder began with, got 4.*Begin with all"):
        decoder.bind({}, providers=[3, 4])
    assert decoder.rerank([[0.0, 0.5], [0.0, 0.0]]).items.shape == (2, 1)  # and nothing has changed


def test_several_calls_may_be_one_batch():
    logits = next(stream(1))
    one, other = (spdd.ProviderMaxMin(OWNER, slots=SLOTS) for _ in range(2))
    one.rerank(logits)
    with other.one_batch():
        other.rerank(logits[:20])
        assert other.exposure.batches == 0
        other.rerank(logits[20:])
    assert other.exposure == one.exposure
    with other.one_batch():
        pass
    assert other.exposure == one.exposure

    def half_way():
        with other.one_batch():
            other.rerank(logits[:20])
            other.rerank(logits[20:, :2])

    with pytest.raises(ValueError, match="2 items"):
        half_way()
    assert other.exposure == one.exposure  # a batch that failed half way was never served
    one.rerank(logits)
    other.rerank(logits)
    assert other.exposure == one.exposure


# ---- the step ----------------------------------------------------------------------------------------------


def test_the_step_is_a_mirror_step_on_the_simplex():
    begun = Exposure.begun([3, 4, 8], [1, 1, 2])
    assert begun.weight == begun.dual == (0.25, 0.25, 0.5)
    assert begun.price == [0, 0, 0]
    moved = begun.moved([6, 0, 2], rows=4, rate=0.5, momentum=0.0)
    relative = np.array([6, 0, 2]) / 8 / begun.weight
    want = np.array(begun.dual) * np.exp(-0.5 * relative)
    want = (1 - SHARED) * want / want.sum() + SHARED * np.array(begun.weight)
    np.testing.assert_allclose(moved.dual, want)
    assert sum(moved.dual) == pytest.approx(1)
    assert moved.share == pytest.approx([3, 0, 0.5])
    assert moved.price[1] > moved.price[2] > 0 > moved.price[0]
    assert (moved.shown, moved.slates, moved.batches) == ((6, 0, 2), 4, 1)


def test_momentum_carries_part_of_the_last_step_on():
    begun = Exposure.begun([0, 1], None)
    once = begun.moved([4, 0], rows=1, rate=0.5, momentum=0.5)
    np.testing.assert_allclose(once.pull, [1.5, 0.5])  # half of the neutral 1, 1; half of 2, 0
    twice = once.moved([2, 2], rows=1, rate=0.5, momentum=0.5)
    np.testing.assert_allclose(twice.pull, [1.25, 0.75])
    assert twice.dual[1] > once.dual[1]


def test_one_provider_is_always_served_fairly():
    begun = Exposure.begun([0], None)
    assert begun.moved([9], rows=1, rate=0.5, momentum=0.5).price == [0]


def test_a_provider_long_well_off_is_helped_soon_after_its_luck_turns():
    exposure = Exposure.begun([0, 1], None)
    for _ in range(5000):
        exposure = exposure.moved([10, 0], rows=1, rate=0.3, momentum=0.5)
    assert exposure.price[0] > -1 + SHARED / 2
    batches = 0
    while exposure.price[0] < 0:
        exposure = exposure.moved([0, 10], rows=1, rate=0.3, momentum=0.5)
        batches += 1
    assert batches < 20


# ---- keeping what was learnt -------------------------------------------------------------------------------


def test_a_saved_state_continues_as_if_nothing_had_happened(tmp_path):
    first, *rest = stream(6)
    here = spdd.ProviderMaxMin(OWNER, slots=SLOTS)
    here.rerank(first)
    here.save(tmp_path / "providers.json")
    there = spdd.ProviderMaxMin(OWNER, slots=SLOTS)
    assert there.load(tmp_path / "providers.json") is there
    assert there.exposure == here.exposure
    for logits in rest:
        assert torch.equal(there.rerank(logits).items, here.rerank(logits).items)
    assert there.exposure == here.exposure
    assert [p.name for p in tmp_path.iterdir()] == ["providers.json"]


def test_what_is_due_may_change_between_runs(tmp_path):
    before = spdd.ProviderMaxMin([0, 1, 1], slots=1)
    before.rerank([[1.0, 0.0, 0.0]])
    before.save(tmp_path / "state")
    after = spdd.ProviderMaxMin([0, 1, 1], weights=[1, 3], slots=1).load(tmp_path / "state")
    assert after.exposure.weight == (0.25, 0.75)
    assert after.exposure.dual == before.exposure.dual


def test_another_days_catalogue_goes_on_with_what_is_known(tmp_path):
    """Known providers keep their prices, new ones begin even, those that left are remembered until they are back."""
    path = tmp_path / "state"
    monday = spdd.ProviderMaxMin([0, 1, 2, 2], names=["ann", "ben", "cat"], rate=1.0, slots=2)
    for _ in range(3):
        monday.rerank([[3.0, 2.0, 1.0, 0.0]])
    price = dict(zip(monday.exposure.provider, monday.exposure.price, strict=True))
    assert price["ann"] < 0 < price["cat"]
    monday.save(path)
    # Ben has left, dan and abe are new, and so everybody has another number.
    tuesday = spdd.ProviderMaxMin([0, 1, 2, 3], names=["abe", "ann", "cat", "dan"], rate=1.0, slots=1).load(path)
    assert tuesday.exposure.price == pytest.approx([0, price["ann"], price["cat"], 0])
    assert tuesday.exposure.away == (("ben", price["ben"], monday.exposure.pull[1], monday.exposure.shown[1]),)
    assert tuesday.exposure.shown == (0, monday.exposure.shown[0], monday.exposure.shown[2], 0)
    assert (tuesday.exposure.slates, tuesday.exposure.batches) == (3, 3)
    for _ in range(20):
        tuesday.rerank(np.zeros((4, 4)))
    assert min(tuesday.exposure.shown) > 0  # one who is not there draws no price to himself
    tuesday.save(path)
    back = spdd.ProviderMaxMin([0, 1], names=["ben", "cat"], slots=1).load(path)
    assert back.exposure.price == pytest.approx([price["ben"], tuesday.exposure.price[2]])
    assert back.exposure.shown[0] == monday.exposure.shown[1]
    assert [name for name, *_ in back.exposure.away] == ["abe", "ann", "dan"]


def test_who_is_new_does_not_move_the_others(tmp_path):
    """With new providers alone, yesterday's slates are today's."""
    logits = next(stream(1))
    before = spdd.ProviderMaxMin(OWNER, weight=0.8, slots=SLOTS)
    before.rerank(logits)
    before.save(tmp_path / "state")
    more = torch.cat([OWNER, torch.tensor([99, -1])])
    after = spdd.ProviderMaxMin(more, weight=0.8, slots=SLOTS).load(tmp_path / "state")
    worse = torch.cat([logits, torch.full((32, 2), -100.0)], 1)
    assert torch.equal(after.rerank(worse).items, before.rerank(logits).items)


def test_a_number_may_come_back_as_text(tmp_path):
    before = spdd.ProviderMaxMin([7, 8], slots=1)
    before.rerank([[1.0, 0.0]])
    before.save(tmp_path / "state")
    after = spdd.ProviderMaxMin([0, 1], names=["7", "8"], slots=1).load(tmp_path / "state")
    assert after.exposure.dual == before.exposure.dual
    assert after.exposure.away == ()


def test_weights_may_be_said_by_name():
    decoder = spdd.ProviderMaxMin([4, 6, 8], weights={6: 2, 5: 9}, slots=1)
    assert decoder.exposure.weight == (0.25, 0.5, 0.25)  # 5 has no items here, 4 and 8 are due 1


def spoil(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


WRONG = {
    "not a state": (lambda path: path.write_text("[]"), "it is not a state of providers.*restore a good copy"),
    "not json": (lambda path: path.write_text("{"), "cannot be read"),
    "not text": (lambda path: path.write_bytes(b"\xff\xfe{"), "cannot be read"),
    "another kind": (lambda path: spoil(path, kind="spdd traffic"), "it is not a state of providers"),
    "a later version": (lambda path: spoil(path, version=2), "it is not a state of providers"),
    "other providers": (
        lambda path: spoil(path, provider=["x", 2]),
        r"belongs to other providers: it holds 2 \(x, 2\), none of which this decoder has, 2 \(0, 1\).*start again",
    ),
    "a provider twice": (lambda path: spoil(path, provider=[1, "1"]), "numbers or names, each of them once"),
    "a provider that is none": (lambda path: spoil(path, provider=[1, None]), "numbers or names, each of them once"),
    "half a memory": (lambda path: spoil(path, away=[["x", 0.5]]), "a name and three numbers"),
    "a memory of nan": (lambda path: spoil(path, away=[["x", float("nan"), 1, 1]]), "not a finite number"),
    "lists of unlike length": (lambda path: spoil(path, dual=[1.0]), "its lists differ in length"),
    "nan": (lambda path: spoil(path, dual=[0.5, float("nan")]), "not a finite number"),
    "words": (lambda path: spoil(path, pull=["a", "b"]), "not a finite number"),
    "nothing where a list was": (lambda path: spoil(path, shown=None), "cannot be read"),
    "below 0": (lambda path: spoil(path, shown=[-1, 2]), "it holds a negative number"),
    "a key less": (
        lambda path: path.write_text(
            json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "pull"})
        ),
        "cannot be read: it has no 'pull'",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_state_that_does_not_match_is_refused_and_changes_nothing(what, tmp_path):
    path = tmp_path / "state.json"
    decoder = spdd.ProviderMaxMin([0, 1, 1], slots=1)
    decoder.save(path)
    wrong, complaint = WRONG[what]
    wrong(path)
    before = decoder.exposure
    with pytest.raises(ValueError, match=re.compile(complaint, re.DOTALL)):
        decoder.load(path)
    assert decoder.exposure == before


REFUSED = {
    "weight": (lambda: spdd.ProviderMaxMin(OWNER, weight=1.0), r"`weight` must be a number in \[0, 1\)"),
    "rate": (lambda: spdd.ProviderMaxMin(OWNER, rate=-1), "`rate` must be .* got -1"),
    "momentum": (lambda: spdd.ProviderMaxMin(OWNER, momentum=1), "`momentum` must be .* got 1"),
    "fractions": (lambda: spdd.ProviderMaxMin([0.5, 1]), "`providers` must be whole numbers"),
    "nobody": (lambda: spdd.ProviderMaxMin([-1, -1]), "`providers` must be one number per item, not all of them -1"),
    "a cube of providers": (lambda: spdd.ProviderMaxMin([[[0, 1]]]), r"must have shape \(items,\) or \(rows, items\)"),
    "other rows": (
        lambda: spdd.ProviderMaxMin([[0, 1]], slots=1).rerank(np.zeros((3, 2))),
        "was given 2 items in 1 rows, but the scores have 2 items in 3 rows",
    ),
    "too few names": (lambda: spdd.ProviderMaxMin([0, 1], names=["x"]), "`names` must be a text for each of the 2"),
    "names alike": (lambda: spdd.ProviderMaxMin([0, 1], names=["x", "x"]), "got 2, of them 1 different"),
    "too few weights": (lambda: spdd.ProviderMaxMin([0, 1], weights=[1]), "each of the 2 providers, got shape"),
    "a weight of 0": (lambda: spdd.ProviderMaxMin([0, 1], weights=[1, 0]), "with smallest 0.*items -1"),
    "weights in words": (lambda: spdd.ProviderMaxMin([0, 1], weights=["a", "b"]), "`weights` must be numbers"),
    "other items": (
        lambda: spdd.ProviderMaxMin([0, 1], slots=1).rerank(np.zeros((1, 3))),
        "ProviderMaxMin was given 2 items, but the scores have 3 items",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_right_is_refused_with_the_way_out(what):
    wrong, complaint = REFUSED[what]
    with pytest.raises((TypeError, ValueError), match=re.compile(complaint, re.DOTALL)):
        wrong()
