"""SASRec decodes item by item exactly as if it had read everything again, whatever else is in the batch."""

import numpy as np
import pytest
import torch

import spdd
from spdd.data.interactions import Items, Sequences, Split
from spdd.models import losses, sasrec, train
from spdd.models.next_item import NextItem, windows

ITEMS = 200
SIZES = (0, 1, 5, 100, 150)
KINDS = {
    "paper": sasrec.Config(),
    "rotary cosines": sasrec.Config(positions="rotary", temperature=0.1, width=32, heads=4, inner=2),
    "few slots": sasrec.Config(slots=7, width=32, heads=2),  # the memory has to grow
}


@pytest.fixture(params=list(KINDS))
def model(request):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = sasrec.SASRec(ITEMS, KINDS[request.param]).eval()
        torch.nn.init.normal_(model.embedding.weight, std=0.3)  # scores far apart, as after training
    return model.requires_grad_(False)


@pytest.fixture
def histories():
    rng = np.random.default_rng(0)
    return [rng.integers(0, ITEMS, size) for size in SIZES]


class Recomputed:
    """The same model without a memory: it reads everything again for every slot. Only the first cut stays."""

    def __init__(self, model):
        self.model = model

    def start(self, histories):
        return [list(row)[-self.model.config.history :] for row in histories]

    def logits(self, state):
        length = max(map(len, state))
        items = torch.tensor([[-1] * (length - len(row)) + [int(i) for i in row] for row in state]).reshape(
            len(state), -1
        )
        return self.model(items)[:, -1] @ self.model.table.T

    def advance(self, state, items):
        return [[*row, int(item)] for row, item in zip(state, items, strict=True)]


def test_incremental_equals_full_recomputation(model, histories):
    decoder = spdd.Greedy(slots=30)
    slates = [decoder.generate(m, histories, exclude="seen") for m in (model, Recomputed(model))]
    assert torch.equal(slates[0].items, slates[1].items)
    assert len({tuple(row) for row in slates[0].items.tolist()}) == len(SIZES)
    torch.testing.assert_close(slates[0].relevance, slates[1].relevance, atol=1e-4, rtol=0)


def test_all_scores_are_equal_early_and_late(model, histories):
    full = Recomputed(model)
    state, read = model.start(histories), full.start(histories)
    for slot in range(31):
        if slot % 10 in (0, 1):
            torch.testing.assert_close(model.logits(state), full.logits(read), atol=1e-4, rtol=0)
        items = torch.arange(len(SIZES)) * 17 + slot
        state, read = model.advance(state, items), full.advance(read, items)


def test_rows_do_not_know_each_other_or_their_padding(model, histories):
    def scores(rows):
        state = model.start(rows)
        for item in (3, 5):
            state = model.advance(state, torch.full((len(rows),), item))
        return model.logits(state)

    together = scores(histories)
    torch.testing.assert_close(scores(histories[::-1]).flip(0), together, atol=1e-5, rtol=0)
    for row, history in enumerate(histories):
        torch.testing.assert_close(scores([history])[0], together[row], atol=1e-5, rtol=0)
        padded = np.concatenate([np.full(40, -1), history])[None]
        torch.testing.assert_close(scores(padded)[0], together[row], atol=1e-5, rtol=0)


def test_unknown_items_are_as_if_not_there(model):
    torch.testing.assert_close(
        model.logits(model.start([[4, -1, 9, -1]])), model.logits(model.start([[4, 9]])), atol=1e-5, rtol=0
    )


def test_long_histories_are_cut_to_their_end(model, histories):
    a, b = ([histories[4][-n:]] for n in (model.config.history, 150))
    assert torch.equal(model.logits(model.start(a)), model.logits(model.start(b)))


def test_a_row_without_an_item_stays_as_it_is(model, histories):
    state = model.start(histories)
    before = model.logits(state)
    state = model.advance(state, torch.tensor([7, -1, 7, -1, 7]))
    after = model.logits(state)
    assert torch.equal(after[[1, 3]], before[[1, 3]])
    assert not torch.isclose(after[[0, 2, 4]], before[[0, 2, 4]]).all(1).any()
    state = model.advance(state, torch.full((5,), 9))
    read = [[*h[-100:].tolist(), *([7] if row % 2 == 0 else []), 9] for row, h in enumerate(histories)]
    torch.testing.assert_close(model.logits(state), Recomputed(model).logits(read), atol=1e-4, rtol=0)


def test_a_slot_costs_the_same_whichever_it_is(model, histories):
    """Memory is taken once, for `slots` more items, and looked at whole; it grows when these are used up."""
    state = model.start(histories)
    places = []
    for _ in range(2 * model.config.slots):
        state = model.advance(state, torch.zeros(len(SIZES), dtype=torch.int64))
        places.append((state.keys[0].data_ptr(), state.keys[0].shape[2]))
    assert len(set(places)) == 2
    assert places[0] == places[model.config.slots - 1]


def test_hidden_and_table_give_the_logits(model, histories):
    state = model.start(histories)
    assert model.hidden(state).shape == (len(SIZES), model.config.width)
    assert torch.equal(model.hidden(state) @ model.table.T, model.logits(state))


def test_taken_rows_go_their_own_ways(model, histories):
    state = model.start(histories)
    twice = model.take(state, torch.tensor([2, 2, 0]))
    twice = model.advance(twice, torch.tensor([1, 8, 1]))
    once = model.advance(state, torch.full((5,), 8))
    torch.testing.assert_close(model.logits(twice)[1], model.logits(once)[2], atol=1e-5, rtol=0)
    assert not torch.allclose(model.logits(twice)[0], model.logits(twice)[1])


def test_an_item_the_model_does_not_have_is_refused(model):
    with pytest.raises(ValueError, match=r"row 1 holds item number 200, but the model knows items 0 to 199"):
        model.start([[1], [2, 200]])


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("width", 81, "a multiple of twice `heads`"),
        ("blocks", 0, "at least 1"),
        ("dropout", 1.0, "below 1"),
        ("temperature", -1.0, "at least 0"),
        ("loss", "hinge", "one of sampled, softmax, bce"),
    ],
)
def test_config_is_checked(name, value, rule):
    with pytest.raises(ValueError, match=rf"`{name}` must be .*{rule}"):
        sasrec.Config(**{name: value})


# ---- losses -------------------------------------------------------------------------------------------------------


def test_sampled_softmax_estimates_the_full_one():
    """Each draw is corrected by how often it is expected, so the mean of many sampled sums is the full sum."""
    rng = torch.Generator().manual_seed(0)
    M, N = 12, 6
    hidden, table = torch.randn(N, 3, generator=rng), torch.randn(M, 3, generator=rng)
    share = torch.rand(M, generator=rng) ** 3
    share /= share.sum()
    target = torch.tensor([0, 1, 2, 3, 4, 5])
    scores = hidden @ table.T
    truth = scores.exp().scatter(1, target[:, None], 0).sum(1)  # what the sample of negatives estimates
    total = torch.zeros(N)
    draws = 4000
    for _ in range(draws):  # the first row is scored; the rest of the batch are draws by share
        batch = torch.cat([target[:1], torch.multinomial(share, N - 1, True, generator=rng)])
        loss = losses.sampled(hidden[:1].expand(N, -1), table, batch, share * (N - 1) / N, 4, rng)
        total += (loss + scores[0, batch]).exp() - scores[0, batch].exp()
    assert float(total[0] / draws) == pytest.approx(float(truth[0]), rel=0.03)


def test_sampled_softmax_of_everything_is_close_to_the_full_one():
    rng = torch.Generator().manual_seed(0)
    hidden, table, target = torch.randn(5, 3, generator=rng), torch.randn(12, 3, generator=rng), torch.arange(5)
    sample = losses.sampled(hidden, table, target, torch.zeros(12), 40_000, rng)
    torch.testing.assert_close(sample, losses.softmax(hidden, table, target), atol=0.02, rtol=0)


def test_bce_by_hand():
    hidden, table = torch.tensor([[2.0]]), torch.tensor([[1.0], [3.0]])
    rng = torch.Generator().manual_seed(0)
    loss = losses.bce(hidden, table, torch.tensor([1]), 10_000, rng)  # half of the draws are the positive, left out
    by_hand = -torch.tensor(6.0).sigmoid().log() - 0.5 * (1 - torch.tensor(2.0).sigmoid()).log()
    assert float(loss) == pytest.approx(float(by_hand), rel=0.05)


# ---- learning -----------------------------------------------------------------------------------------------------


def ring(users=60, items=20, length=8, seed=0):
    """Everyone walks around a ring of items: what comes next is certain."""
    rng = np.random.default_rng(seed)
    walk = (rng.integers(0, items, users)[:, None] + np.arange(length)) % items

    def part(columns):
        chosen = walk[:, columns]
        start = np.arange(users + 1) * chosen.shape[1]
        name = np.array([f"{u:03d}" for u in range(users)])
        return Sequences(name, start, chosen.reshape(-1), np.tile(np.arange(length)[columns], users), {})

    ids = np.array([f"{i:02d}" for i in range(items)])
    return Split(Items(ids, {}), part(slice(0, -2)), part(slice(-2, -1)), part(slice(-1, None)))


@pytest.mark.parametrize(
    "options",
    [{}, {"loss": "softmax", "temperature": 0.1}, {"loss": "bce"}, {"positions": "rotary", "hidden_items": 0.1}],
    ids=str,
)
def test_it_learns_a_ring(tmp_path, options):
    split = ring()
    torch.manual_seed(0)
    model = sasrec.SASRec(20, sasrec.Config(width=20, heads=2, history=10, slots=4, dropout=0.1, **options))
    settings = train.Settings(epochs=25, batch=15, rate=0.01, patience=0)
    fitted = train.fit(NextItem(model, split, settings), settings, tmp_path)
    assert fitted.best["ndcg@10"] > 0.9
    slate = spdd.Greedy(slots=4).generate(model, [[3, 4, 5]], exclude="seen").items[0].tolist()
    assert len({6, 7, 8, 9} & set(slate)) >= 3  # not all: validation is content before repeats are unlearnt
    loaded = sasrec.load(tmp_path / "best.pt", split.items.fingerprint())
    assert torch.equal(loaded.logits(loaded.start([[3, 4]])), model.logits(model.start([[3, 4]])))
    with pytest.raises(ValueError, match="trained on other items"):
        sasrec.load(tmp_path / "best.pt", "another")


def test_every_event_is_a_target_once():
    split = ring(users=31)
    settings = train.Settings(batch=4)
    model = sasrec.SASRec(20, sasrec.Config(width=20, heads=2, history=3))
    task = NextItem(model, split, settings)
    for world in (1, 3):
        parts = [list(task.batches(5, rank, world)) for rank in range(world)]
        assert len({len(part) for part in parts}) == 1
        targets = torch.cat([batch.target for part in parts for batch in part])
        extra = -len(windows(split.train, 3)[0]) % world
        assert 0 <= len(targets) - len(split.train.item) <= 4 * extra
        for batch in parts[0]:  # a target is what stood one further in its row
            width = batch.items.shape[1] + 1
            row, column = batch.place // width, batch.place % width
            later = column > 0
            before = batch.items[row[later], column[later] - 1]
            assert ((before < 0) | ((before + 1) % 20 == batch.target[later])).all()


def test_long_rows_are_cut_into_stretches():
    train_part = Sequences(np.array(["a", "b"]), np.array([0, 9, 11]), np.arange(11), np.arange(11), {})
    begin, end = windows(train_part, 3)
    assert sorted(zip(begin.tolist(), end.tolist(), strict=True)) == [(0, 1), (1, 5), (5, 9), (9, 11)]


def test_a_table_of_unit_rows_is_made_once_and_follows_its_weights():
    model = sasrec.SASRec(9, sasrec.Config(width=8, heads=2, temperature=0.1)).eval()
    with torch.no_grad():
        first = model.table
        assert model.table is first
        model.embedding.weight.mul_(torch.arange(10.0)[:, None] - 4)
        torch.testing.assert_close(model.table[[0, 1]], -first[[0, 1]])
        assert model.double().table.dtype == torch.float64
    assert model.table.requires_grad
