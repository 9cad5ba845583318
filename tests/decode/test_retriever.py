"""A model whose items come from an approximate index: the slates of the model itself, as far as the index finds them."""

import pytest
import torch
from torch import nn

import spdd
from spdd import MET, SPDD, Greedy, Objective
from spdd.kernels import Product, priced_topk

pytest.importorskip("faiss", reason="needs faiss: pip install 'spdd[ann]'")
from spdd.kernels.index import BAND, Index, bands

M, D = 4000, 16


class Mean(nn.Module):
    """The mean of what was shown, with a table that learns."""

    def __init__(self):
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.table = nn.Parameter(
            torch.randn(M, D, generator=g) + 2 * torch.randn(20, D, generator=g)[torch.arange(M) % 20]
        )

    def start(self, histories):
        return torch.as_tensor(histories)

    def hidden(self, state):
        return self.table[state].mean(1) / 4

    def logits(self, state):
        return self.hidden(state) @ self.table.T

    def advance(self, state, items):
        return torch.cat([state, items[:, None]], 1)


@pytest.fixture(scope="module")
def model():
    return Mean()


def drawn(levels, seed=1):
    value = torch.rand(M, generator=torch.Generator().manual_seed(seed))
    return (value < 0.05).float() if levels == 2 else 100 * value


HISTORIES = [[1, 2, 3], [7, 27, 47], [5, 10, 15]]


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
@pytest.mark.parametrize("levels", [2, 1000])
def test_one_index_serves_every_price(model, kind, levels):
    value = drawn(levels)
    index = Index(model.table.detach(), value[None], kind=kind, probes=40)
    hidden = model.hidden(torch.randint(0, M, (50, 3), generator=torch.Generator().manual_seed(2))).detach()
    for price in (-5.0, 0.0, 0.5, 5.0, 1e4):
        assert index.recall(hidden, torch.full((50, 1), price / value.std())) > 0.85


def test_all_probes_are_an_exact_search(model):
    value, g = torch.stack([drawn(2), drawn(1000)]), torch.Generator().manual_seed(3)
    index = Index(model.table.detach(), value, probes=10**6)
    hidden, price = torch.randn(9, D, generator=g), torch.randn(9, 2, generator=g)
    seen = torch.randint(-1, M, (9, 30), generator=g)
    found = index.topk(hidden, price, 5, seen=seen, used=seen[:, :2])
    exact = priced_topk(Product(hidden, index.table), value, price, 5, seen=seen)
    assert torch.equal(found.items, exact.items)
    torch.testing.assert_close(found.score, exact.score)
    assert not found.short.any()


def test_what_is_missing_is_told(model):
    index = Index(model.table.detach(), drawn(2)[None], probes=1)
    found = index.topk(torch.randn(3, D), torch.zeros(3, 1), 1000)
    assert found.short.all()
    assert (found.items[:, -1] == -1).all()
    assert (found.score[:, -1] == -torch.inf).all()


def test_bands_part_the_few_items_at_the_ends():
    value = torch.arange(100_000.0)[torch.randperm(100_000, generator=torch.Generator().manual_seed(0))]
    band = bands(value[None])
    best = band[value.argsort(descending=True)]
    assert len(set(best[:BAND].tolist())) == 1
    assert (best == best[0]).sum() <= 2 * BAND
    assert bands(drawn(2)[None]).unique().tolist() == [0, 1]


@pytest.mark.parametrize("scale", ["logit", "relative"])
def test_slates_are_those_of_the_model_where_the_index_finds_all(model, scale):
    new = Objective("new", drawn(2), at_least=2)
    retriever = spdd.Retriever(model, [new], probes=10**6)
    for decoder in (SPDD([new], slots=6, scale=scale, start=1.0), SPDD([new], slots=6, scale=scale), Greedy(slots=6)):
        mine, full = (decoder.generate(m, HISTORIES, exclude="seen") for m in (retriever, model))
        assert torch.equal(mine.items, full.items)
        assert torch.equal(mine.status, full.status)
    assert retriever.full == 0 < retriever.searched


def test_promises_are_kept_whatever_is_found(model):
    rare = Objective("rare", (drawn(1000) > 99.8).float(), at_least=3)  # a handful of 4,000 items
    retriever = spdd.Retriever(model, [rare], probes=1)
    slate = SPDD([rare], slots=5).generate(retriever, HISTORIES)
    assert (slate.status == MET).all()
    real = Objective("worth", drawn(1000), at_least=400.0)
    slate = SPDD([real], slots=5).generate(spdd.Retriever(model, [real]), HISTORIES)
    assert (slate.status == MET).all()


def test_rows_the_index_cannot_serve_are_searched_in_full_and_counted(model):
    retriever = spdd.Retriever(model, [], probes=1)
    open_ = torch.zeros(2, M, dtype=torch.bool)
    open_[:, [17, 3000]] = True
    items, logits = retriever.propose(torch.tensor([[1], [2]]), open_, None)
    assert items[:, :3].sort(1).values.tolist() == [[-1, 17, 3000]] * 2
    torch.testing.assert_close(logits[0, 0], model.logits(torch.tensor([[1]]))[0, items[0, 0]].double())
    assert (retriever.searched, retriever.full) == (2, 2)


def test_what_an_index_cannot_do_is_refused_by_name(model):
    with pytest.raises(ValueError, match="`value` of objective 'own' must be one number per item"):
        spdd.Retriever(model, [Objective("own", torch.rand(3, M), at_least=1)])
    with pytest.raises(ValueError, match="`kind` must be one of ivf, hnsw"):
        Index(model.table.detach(), torch.rand(1, M), kind="flat")
    retriever = spdd.Retriever(model, [])
    with pytest.raises(ValueError, match="'probability' needs probabilities; Retriever proposes items with logits"):
        Greedy(slots=2, scale="probability").generate(retriever, HISTORIES)
