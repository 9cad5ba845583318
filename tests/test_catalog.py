"""The tree of ids says of every prefix what a loop over all items says, and its files are what was saved."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spdd.catalog import Catalog


@st.composite
def worlds(draw):
    """A catalog, values and open items of three rows: few tokens, so that ids collide, and sometimes all alike."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, depth, size = draw(st.integers(1, 25)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    catalog = Catalog.of(random.integers(0, size, (count, depth)), sizes=[size] * depth)
    value = torch.from_numpy(random.random((3, count)) * (random.random((3, count)) < 0.7))
    return catalog, value, torch.from_numpy(random.random((3, count)) < draw(st.sampled_from([0.1, 0.5, 1.0])))


def prefixes(catalog, level):
    """The prefix each node of a level stands for, read off the items one by one."""
    return sorted({tuple(id[:level]) for id in catalog.tokens.tolist()})


def items_below(catalog, prefix):
    return [i for i, id in enumerate(catalog.tokens.tolist()) if tuple(id[: len(prefix)]) == prefix]


def brute(catalog, level, value, open, what):
    """(R, N) `what` of the values of open items below each node; an empty list of them is passed on."""
    rows = max(len(value), len(open))
    value, open = value.expand(rows, -1).tolist(), open.expand(rows, -1).tolist()
    below = [items_below(catalog, p) for p in prefixes(catalog, level)]
    return torch.tensor(
        [[what([v[i] for i in b if o[i]]) for b in below] for v, o in zip(value, open, strict=True)],
        dtype=torch.float64,
    )


def average(values):
    return sum(values) / len(values) if values else 0.0


@given(worlds())
def test_token_values_are_the_means_below_each_prefix(world):
    catalog, value, open = world
    everything = torch.ones(1, len(catalog), dtype=torch.bool)
    for level in range(catalog.depth + 1):
        for mask in (None, open):
            held = everything if mask is None else mask
            for given_value in (value, value[0]):
                lines = given_value.reshape(-1, len(catalog))
                mean = catalog.mean(given_value, mask)[level]
                assert torch.allclose(mean, brute(catalog, level, lines, held, average), rtol=1e-12, atol=0)
                largest = catalog.largest(given_value, mask)[level]
                assert largest.equal(brute(catalog, level, lines, held, lambda x: max(x, default=-torch.inf)))
            assert catalog.count(mask)[level].equal(brute(catalog, level, held.double(), held, len))


@given(worlds(), st.randoms(use_true_random=False))
def test_token_values_as_items_are_used_up(world, random):
    catalog, value, open = world
    open = torch.ones_like(open)
    for item in random.sample(range(len(catalog)), min(5, len(catalog))):
        open[:, item] = False
        for level, mean in enumerate(catalog.mean(value, open)):
            assert torch.allclose(mean, brute(catalog, level, value, open, average), rtol=1e-12, atol=0)


@given(worlds())
def test_every_step_leads_where_the_ids_say(world):
    catalog, *_ = world
    for level in range(catalog.depth):
        here, there = prefixes(catalog, level), prefixes(catalog, level + 1)
        nodes = torch.tensor([-1, *range(len(here))])
        children, (child, token) = catalog.children(level, nodes), catalog.branches(level, nodes)
        assert children.shape == (len(nodes), catalog.sizes[level])
        assert child.shape[1] == catalog.fans[level]
        tokens = torch.arange(-1, catalog.sizes[level] + 1)
        stepped = catalog.step(level, nodes[:, None], tokens)
        for row, prefix in enumerate([None, *here]):
            wanted = {
                t: there.index((*prefix, t)) for t in tokens.tolist() if prefix is not None and (*prefix, t) in there
            }
            assert {t: n for t, n in enumerate(children[row].tolist()) if n >= 0} == wanted
            assert [(t, n) for t, n in zip(token[row].tolist(), child[row].tolist(), strict=True) if n >= 0] == [
                *wanted.items()
            ]
            assert stepped[row].tolist() == [wanted.get(t, -1) for t in tokens.tolist()]
        assert catalog.at(level).tolist() == [here.index(tuple(id[:level])) for id in catalog.tokens.tolist()]
        assert catalog.find(catalog.tokens[:, :level]).equal(catalog.at(level))
        parents = [here.index(prefix[:-1]) for prefix in there]
        assert catalog.levels[level + 1].parent.tolist() == parents


@given(worlds(), st.integers(1, 4))
def test_items_below_a_node_come_by_id_then_number_and_only_open_ones(world, n):
    catalog, _, open = world
    for level in range(catalog.depth + 1):
        here = prefixes(catalog, level)
        nodes = torch.tensor([-1, *range(len(here))]).expand(3, -1)
        found, everything = catalog.below(level, nodes, n, open), catalog.below(level, nodes, n)
        for row in range(3):
            for place, prefix in enumerate([None, *here]):
                below = [] if prefix is None else items_below(catalog, prefix)
                below = sorted(below, key=lambda i: (catalog.tokens[i].tolist(), i))
                seen = [i for i in below if open[row, i]]
                assert found[row, place].tolist() == (seen + [-1] * n)[:n]
                assert everything[row, place].tolist() == (below + [-1] * n)[:n]


def test_ids_of_one_token_are_plain_items():
    catalog = Catalog.of(range(5))
    assert catalog.depth == 1
    assert catalog.children(0, torch.zeros(1, 1, dtype=torch.int64)).tolist() == [[[0, 1, 2, 3, 4]]]
    value = torch.rand(2, 5)
    assert catalog.mean(value)[1].equal(value.double())
    assert catalog.below(1, torch.tensor([[4, 0]])).tolist() == [[[4], [0]]]
    assert catalog.collisions() == (5, 0, 0, 1)


def test_one_item_is_a_catalog():
    catalog = Catalog.of([[3, 0]])
    assert [len(level.token) for level in catalog.levels] == [1, 1, 1]
    assert catalog.sizes == (4, 1)
    used_up = torch.zeros(1, 1, dtype=torch.bool)
    assert catalog.largest(torch.ones(1), used_up)[2].tolist() == [[-torch.inf]]
    assert catalog.mean(torch.ones(1), used_up)[0].tolist() == [[0.0]]
    assert catalog.below(2, torch.zeros(1, 1, dtype=torch.int64), open=used_up).tolist() == [[[-1]]]


def test_a_preference_tells_items_of_one_id_apart():
    catalog = Catalog.of([[0, 1], [0, 1], [0, 0], [0, 1]])
    leaf = catalog.at(2)[:1]
    assert catalog.below(2, leaf, 3).tolist() == [[0, 1, 3]]
    assert catalog.preferring([1, 2, 9, 2]).below(2, leaf, 3).tolist() == [[1, 3, 0]]
    assert catalog.preferring([1, 2, 9, 2]).order[0] == 2  # ids stay where they are
    with pytest.raises(ValueError, match="`preference` must be"):
        catalog.preferring(torch.ones(2, 4))


def test_values_add_up_along_an_id_to_that_of_the_item():
    random = np.random.default_rng(0)
    catalog = Catalog.of(np.unique(random.integers(0, 9, (60, 3)), axis=0))  # ids differ
    value = torch.from_numpy(random.random(len(catalog)))
    along = torch.stack([mean[0, catalog.at(level)] for level, mean in enumerate(catalog.mean(value))])
    assert along[-1].equal(value)
    assert torch.allclose(along[0] + along.diff(dim=0).sum(0), value)


def test_two_hundred_thousand_ids_are_built_and_counted():
    random = np.random.default_rng(0)
    ids = random.integers(0, 256, (200_000, 3))
    catalog = Catalog.of(ids)
    assert catalog.collisions().ids == len(np.unique(ids @ [1 << 16, 1 << 8, 1]))
    value = random.integers(0, 2, len(ids))
    share = np.bincount(ids[:, 0], value) / np.bincount(ids[:, 0])
    assert np.array_equal(catalog.mean(value)[1][0].numpy(), share)


def test_a_saved_catalog_comes_back(tmp_path):
    catalog = Catalog.of([[0, 700], [2, 1], [0, 700]], sizes=[5, 1000], items="abc")
    path = tmp_path / "ids.npz"
    catalog.save(path)
    again = Catalog.load(path, items="abc")
    assert again.fingerprint() == catalog.fingerprint()
    assert again.tokens.equal(catalog.tokens)
    assert (again.sizes, again.items) == ((5, 1000), "abc")
    assert [p.name for p in tmp_path.iterdir()] == ["ids.npz"]
    with pytest.raises(ValueError, match="vocabulary 'abc', but the items at hand are 'xyz'"):
        Catalog.load(path, items="xyz")


def test_every_fingerprint_differs():
    made = [
        Catalog.of([[0, 1], [1, 0]]),
        Catalog.of([[1, 0], [0, 1]]),
        Catalog.of([0, 1, 1, 0]),
        Catalog.of([[0, 1], [1, 0]], sizes=[2, 3]),
        Catalog.of([[0, 1], [1, 0]], items="a"),
    ]
    assert len({catalog.fingerprint() for catalog in made}) == len(made)


def test_a_broken_or_foreign_file_is_refused(tmp_path):
    path = tmp_path / "ids.npz"
    Catalog.of(np.arange(3000).reshape(-1, 3)).save(path)
    whole = path.read_bytes()
    for size in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=re.escape(f"{path} must be a catalog")):
            Catalog.load(path)
    bent = bytearray(whole)
    bent[len(whole) // 2] ^= 1
    path.write_bytes(bent)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        Catalog.load(path)
    np.savez(path, tokens=np.zeros((3, 2)))
    with pytest.raises(ValueError, match="something else"):
        Catalog.load(path)
    np.savez(path, tokens=np.array([object()]), allow_pickle=True)
    with pytest.raises(ValueError, match="something else"):
        Catalog.load(path)
    with path.open("wb") as file:
        np.save(file, np.arange(3))
    with pytest.raises(ValueError, match="something else"):
        Catalog.load(path)
    with pytest.raises(FileNotFoundError):
        Catalog.load(tmp_path / "none.npz")


def test_a_failed_save_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "ids.npz"
    Catalog.of([0, 1]).save(path)
    before = path.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        Catalog.of([1, 0]).save(path)
    assert path.read_bytes() == before
    assert len([*tmp_path.iterdir()]) == 1


@pytest.mark.parametrize(
    ("tokens", "sizes", "error", "words"),
    [
        ([], None, ValueError, "at least one item"),
        (np.zeros((3, 0), int), None, ValueError, "at least one item"),
        (np.zeros((3, 2, 2), int), None, ValueError, r"\(M, L\)"),
        ([[0.5, 1]], None, TypeError, "whole numbers"),
        ([[0, -1]], None, ValueError, "from 0"),
        ([[0, 3]], [1, 3], ValueError, "above the largest"),
        ([[0, 3]], [4], ValueError, "each of 2 places"),
    ],
)
def test_what_is_no_id_is_refused(tokens, sizes, error, words):
    with pytest.raises(error, match=words):
        Catalog.of(tokens, sizes=sizes)


def test_a_value_of_another_size_is_refused():
    with pytest.raises(ValueError, match="M = 2 items"):
        Catalog.of([0, 1]).mean(torch.ones(3))


@pytest.mark.gpu
def test_a_gpu_gives_the_same():
    random = np.random.default_rng(0)
    catalog = Catalog.of(random.integers(0, 9, (500, 3)))
    value, open = torch.from_numpy(random.random(500)), torch.from_numpy(random.random((4, 500)) < 0.3)
    there = catalog.to("cuda")
    for what in ("mean", "largest"):
        for a, b in zip(
            getattr(catalog, what)(value, open), getattr(there, what)(value.cuda(), open.cuda()), strict=True
        ):
            assert torch.allclose(a, b.cpu(), rtol=1e-12)
    nodes = torch.from_numpy(random.integers(0, 80, (4, 6)))
    assert catalog.children(2, nodes).equal(there.children(2, nodes.cuda()).cpu())
    assert catalog.below(2, nodes, 3, open).equal(there.below(2, nodes.cuda(), 3, open.cuda()).cpu())
