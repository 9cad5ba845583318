"""Ids of like items are alike, the same every time, and never lose an item."""

import itertools
import math

import numpy as np
import pytest
import torch

from spdd.catalog import Catalog
from spdd.data.interactions import Items
from spdd.models import text
from spdd.models.semantic_ids import ids_for, kmeans, lsh, number, residual_kmeans


def heaps(count=120, heap=6, width=8, seed=0):
    """Vectors in well separated heaps, and the heap of each."""
    random = torch.Generator().manual_seed(seed)
    label = torch.arange(count) % heap
    return 10 * torch.eye(width)[label] + 0.1 * torch.randn(count, width, generator=random), label


def some_items(count=30):
    names = [["tent", "camping"], ["bicycle", "road"], ["rod", "fishing"]]
    return Items(
        np.array([f"i{n:03}" for n in range(count)]),
        {"title": np.array([f"{' '.join(names[n % 3])} {n}" for n in range(count)], object)},
    )


def test_lsh_bits_are_sides_of_planes():
    x = torch.randn(50, 7, generator=torch.Generator().manual_seed(1))
    planes = torch.randn(7, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    catalog = lsh(x, levels=2, bits=3, seed=5)
    assert catalog.sizes == (8, 8)
    for row, id in enumerate(catalog.tokens.tolist()):
        bits = [int(x[row].double() @ planes[:, p] > 0) for p in range(6)]
        assert id == [int("".join(map(str, part)), 2) for part in (bits[:3], bits[3:])]


def test_lsh_bits_differ_as_often_as_the_angle_says():
    angle = 0.7
    x = torch.zeros(2, 4)
    x[0, 0], x[1, 0], x[1, 1] = 1, math.cos(angle), math.sin(angle)
    ids = lsh(x, levels=4000, bits=1).tokens
    share = (ids[0] != ids[1]).double().mean().item()
    assert abs(share - angle / math.pi) < 4 * math.sqrt(0.25 / 4000)


def test_lsh_knows_directions_only_unless_it_is_centred():
    x, _ = heaps()
    assert lsh(x).fingerprint() == lsh(3 * x).fingerprint()
    assert lsh(x, centred=True).fingerprint() == lsh(x + 100, centred=True).fingerprint()
    assert lsh(x + 100).collisions().ids < lsh(x + 100, centred=True).collisions().ids


def test_residual_kmeans_finds_the_heaps():
    x, label = heaps()
    ids = residual_kmeans(x, levels=2, codes=6).tokens[:, 0]
    assert len({(a, b) for a, b in zip(ids.tolist(), label.tolist(), strict=True)}) == 6


def test_residual_kmeans_leaves_less_at_every_level():
    x = torch.randn(300, 6, generator=torch.Generator().manual_seed(0))
    generator, left = torch.Generator().manual_seed(0), [x.square().sum()]
    tokens = residual_kmeans(x, levels=3, codes=16).tokens
    for level in range(3):
        centres, nearest = kmeans(x, 16, generator, rounds=20)
        assert nearest.equal(tokens[:, level])
        assert nearest.equal(torch.cdist(x.double(), centres.double()).argmin(1))
        x = x - centres[nearest]
        left.append(x.square().sum())
    assert all(b < 0.8 * a for a, b in itertools.pairwise(left))


def test_no_centre_stays_empty_while_vectors_differ():
    # Nearly all vectors are one point, so a random start puts most centres on it.
    x = torch.zeros(200, 2)
    x[:12] = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
    for seed in range(5):
        centres, nearest = kmeans(x, 13, torch.Generator().manual_seed(seed), rounds=20)
        assert centres.isfinite().all()
        assert len(nearest.unique()) == 13


@pytest.mark.parametrize("method", [lsh, residual_kmeans])
def test_the_same_seed_gives_the_same_ids(method):
    x = torch.randn(400, 5, generator=torch.Generator().manual_seed(0))
    options = {"codes": 32} if method is residual_kmeans else {"bits": 5}
    one, two, other = (method(x, seed=seed, **options).fingerprint() for seed in (1, 1, 2))
    assert one == two != other
    assert method(x.double().numpy(), seed=1, **options).sizes == (32, 32, 32)


def test_a_batch_is_as_good_as_the_whole(monkeypatch):
    x, _ = heaps()
    whole = [lsh(x).tokens, residual_kmeans(x, codes=6).tokens]
    monkeypatch.setattr("spdd.models.semantic_ids.CHUNK", 7 * 24)
    assert whole[0].equal(lsh(x).tokens)
    assert whole[1][:, 0].equal(residual_kmeans(x, codes=6).tokens[:, 0])


def test_items_alike_share_an_id_unless_numbered():
    x = torch.eye(3)[torch.tensor([0, 1, 0, 2, 0, 1])]
    shared = residual_kmeans(x, levels=2, codes=3)
    assert shared.collisions() == (3, 2, 5, 3)
    apart = number(shared)
    assert apart.collisions().shared == 0
    assert apart.depth == 3
    assert apart.tokens[:, :2].equal(shared.tokens)
    assert apart.tokens[:, 2].tolist() == [0, 0, 1, 0, 2, 1]
    assert apart.sizes == (3, 3, 3)
    assert number(lsh(torch.eye(3)[:1])).tokens.shape == (1, 4)  # where none collide the token is there all the same


@pytest.mark.parametrize("method", [lsh, residual_kmeans])
@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.full((300, 2), torch.nan), "300 of 300 vectors hold NaN or infinity, the first is that of item 0"),
        (torch.zeros(300), r"must be \(M, D\)"),
        (torch.zeros(0, 4), "M >= 1"),
        (torch.zeros(4, 0), r"must be \(M, D\)"),
    ],
)
def test_what_are_no_vectors_is_refused(method, x, words):
    with pytest.raises(ValueError, match=words):
        method(x)


def test_settings_that_cannot_be_are_refused():
    x = torch.eye(4)
    with pytest.raises(ValueError, match="`codes` is 256 but there are only 4 items"):
        residual_kmeans(x)
    with pytest.raises(ValueError, match="`levels` must be at least 1"):
        lsh(x, levels=0)
    with pytest.raises(ValueError, match="`bits` must be at most 24"):
        lsh(x, bits=40)
    for wrong in ({"method": "hash"}, {"embed": "word2vec"}, {"apart": "yes"}):
        with pytest.raises(ValueError, match=f"`{next(iter(wrong))}` must be one of"):
            ids_for(some_items(), **wrong)
    with pytest.raises(ValueError, match="one vector for each of 30 items, got 4"):
        ids_for(some_items(), embed=x, codes=2)


def test_one_item_and_equal_items_have_ids():
    assert lsh(torch.ones(1, 3)).collisions() == (1, 0, 0, 1)
    assert residual_kmeans(torch.ones(1, 3), codes=1).tokens.tolist() == [[0, 0, 0]]
    same = residual_kmeans(torch.ones(5, 3), codes=4)
    assert same.collisions().largest == 5


def test_ids_of_items_are_saved_with_their_fingerprint(tmp_path):
    items = some_items()
    catalog = ids_for(items, method="residual_kmeans", levels=2, codes=3, apart="token")
    assert catalog.items == items.fingerprint()
    assert len(set(zip(catalog.tokens[:, 0].tolist(), [n % 3 for n in range(30)], strict=True))) == 3
    catalog.save(tmp_path / "ids.npz")
    assert Catalog.load(tmp_path / "ids.npz", items=items.fingerprint()).fingerprint() == catalog.fingerprint()
    with pytest.raises(ValueError, match="holds ids for the vocabulary"):
        Catalog.load(tmp_path / "ids.npz", items=some_items(29).fingerprint())


def test_vectors_come_by_name_from_a_function_or_as_they_are():
    items = some_items()
    vectors = text.tfidf(text.item_texts(items))
    made = [ids_for(items, method="lsh", embed=embed).fingerprint() for embed in ("tfidf", text.tfidf, vectors)]
    assert len(set(made)) == 1


@pytest.mark.gpu
def test_a_gpu_gives_the_same_ids_every_time():
    x, label = heaps()
    one, two = (residual_kmeans(x.cuda(), codes=6) for _ in range(2))
    assert one.fingerprint() == two.fingerprint()
    assert len({(a, b) for a, b in zip(one.tokens[:, 0].tolist(), label.tolist(), strict=True)}) == 6
    assert lsh(x.cuda()).fingerprint() == lsh(x).fingerprint()
