"""Worlds are what they say, and the same in any batch."""

import pytest
import torch

from spdd.data.worlds import Checkerboard, GaussianWorld, MoodWorld, PathWorld
from spdd.decode.oracle import autoregressive_optimum, enumerate_slates

USERS = [GaussianWorld(), PathWorld(), MoodWorld()]


def follow(world, histories, items):
    """Logits before each slot when these items (R, K) are chosen: (R, K, M)."""
    state = world.start(histories)
    trace = []
    for item in items.unbind(1):
        trace.append(world.logits(state))
        state = world.advance(state, item)
    return torch.stack(trace, 1)


def greedy(world, histories, slots):
    state, items = world.start(histories), []
    for _ in range(slots):
        scores = world.logits(state)
        for item in items:
            scores = scores.scatter(1, item[:, None], -torch.inf)
        items.append(scores.argmax(1))
        state = world.advance(state, items[-1])
    return torch.stack(items, 1)


def test_checkerboard_is_seen_by_eye():
    world, fresh = Checkerboard(), torch.empty(1, 0)
    everything = enumerate_slates(world, fresh, slots=4)
    best = [autoregressive_optimum(everything, world.value, floor) for floor in range(5)]
    assert greedy(world, fresh, 4).tolist() == [[0, 1, 2, 3]]
    assert [optimum.relevance for optimum in best] == [42, 42, 42, 27, -4]
    assert [optimum.items.tolist() for optimum in best[:3]] == [[0, 1, 2, 3]] * 3
    for slate, worth in (([1, 0, 3, 5], 27), ([0, 1, 3, 5], 15), ([1, 3, 5, 7], -4)):
        row = (everything.items == torch.tensor(slate)).all(1)
        assert everything.relevance[row].sum() == worth
    of_best = everything.relevance.sum(1) == 27
    of_best &= world.value[everything.items].sum(1) == 3
    assert (everything.items[of_best, 0] % 2 == 1).all()  # all of the best start white
    assert {tuple(sorted(slate)) for slate in everything.items[of_best].tolist()} == {(0, 1, 3, 5)}


def test_checkerboard_goes_on_from_a_history():
    assert greedy(Checkerboard(), torch.tensor([[5, 4]]), 3).tolist() == [[1, 0, 3]]
    assert greedy(Checkerboard(), torch.tensor([4]), 3).tolist() == [[1, 0, 3]]


@pytest.mark.parametrize("world", USERS)
def test_a_row_is_the_same_in_any_batch(world):
    users = torch.arange(40)
    items = torch.stack([torch.randperm(12, generator=torch.Generator().manual_seed(u))[:4] for u in range(40)])
    together = follow(world, users, items)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(99))
    assert torch.equal(follow(world, users[order], items[order]), together[order])
    assert torch.equal(follow(world, users[7:8], items[7:8]), together[7:8])
    assert together.dtype == torch.float64


@pytest.mark.parametrize("world", USERS)
def test_users_and_seeds_differ(world):
    first = world.logits(world.start(torch.tensor([[1, 2], [2, 1], [1, 3]])))
    assert len(first.unique(dim=0)) == 3
    other = type(world)(seed=1)
    assert not torch.equal(other.logits(other.start(torch.tensor([[1, 2]]))), first[:1])


@pytest.mark.parametrize("world", [Checkerboard(), *USERS])
def test_value_is_zero_or_one_for_each_item(world):
    assert world.value.shape == (12,)
    assert world.value.dtype == torch.float64
    assert set(world.value.tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("world", [GaussianWorld(items=30, sigma=0.2), PathWorld(items=30, sigma=0.2)])
def test_steps_are_gaussian_and_independent(world):
    items = torch.arange(5).expand(4000, 5)
    scores = follow(world, torch.arange(4000), items)
    assert scores[:, 0].min() > 0
    assert scores[:, 0].max() < 1
    assert scores[:, 0].mean() == pytest.approx(0.5, abs=0.003)
    z = scores.diff(dim=1) / 0.2  # (R, 4, M)
    n = z.numel() ** 0.5
    assert abs(z.mean()) < 4 / n
    assert abs(z.square().mean() - 1) < 4 * 2**0.5 / n
    assert abs((z**4).mean() - 3) < 4 * 96**0.5 / n
    together = torch.cat([scores[:, 0] - 0.5, z.flatten(1)], 1)  # base and steps of a row: all uncorrelated
    correlation = torch.corrcoef(together.T).fill_diagonal_(0)
    assert correlation.abs().max() < 5.5 / 4000**0.5


def test_gaussian_steps_do_not_depend_on_the_path_and_path_steps_do():
    users = torch.zeros(12, dtype=torch.long)
    first = torch.arange(12)
    for world, different in ((GaussianWorld(), 1), (PathWorld(), 12)):
        after = world.logits(world.advance(world.start(users), first))
        assert len(after.unique(dim=0)) == different


def test_mood_lifts_what_resembles_the_chosen():
    world = MoodWorld()
    users = torch.arange(200)
    chosen = torch.arange(200) % 12
    before = world.start(users)
    change = world.logits(world.advance(before, chosen)) - world.logits(before)
    alike = (world.vectors @ world.vectors.T)[chosen]
    correlation = torch.corrcoef(torch.stack([change.flatten(), alike.flatten()]))[0, 1]
    assert correlation > 0.5
    assert (change > 0).any()
    assert (change < 0).any()
