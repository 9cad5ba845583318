"""Both kernels for the best items of every value group, against sorting each group by hand."""

import importlib.util

import pytest
import torch

from spdd.kernels import group_items, reference

KERNELS = [reference.grouped_topk]
if importlib.util.find_spec("numba"):
    from spdd.kernels import cpu

    KERNELS.append(cpu.grouped_topk)


def by_hand(logits, member, groups, k, eligible):
    """For every row and group: (item, logit), best first, equal logits by item number."""
    out = []
    for row in range(len(logits)):
        out.append([])
        for g in range(groups):
            items = [i for i in range(logits.shape[1]) if member[i] == g and (eligible is None or eligible[row, i])]
            items.sort(key=lambda i: (-logits[row, i].item(), i))
            out[-1].append(items[:k])
    return out


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda f: f.__module__.rsplit(".", 1)[1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "items", "k", "levels"), [
    (1, 1, 1, 1), (1, 63, 3, 2), (3, 64, 5, 2), (5, 65, 10, 3), (2, 507, 10, 2), (7, 1000, 4, 5), (2, 40, 60, 3),
])  # fmt: skip
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_each_group_gives_its_best_in_order(kernel, dtype, rows, items, k, levels, ties, masked):
    random = torch.Generator().manual_seed(rows * items + k)
    logits = torch.randn(rows, items, generator=random, dtype=dtype)
    if ties:
        logits = (logits * 2).round() * 0.0 + torch.randint(-1, 2, (rows, items), generator=random)
        logits = torch.where(logits == 0, torch.where(torch.arange(items) % 2 == 0, 0.0, -0.0), logits).to(dtype)
    value = torch.randint(0, levels, (items,), generator=random).double()
    eligible = torch.rand(rows, items, generator=random) < 0.6 if masked else None
    groups = group_items(value[None], most=levels)
    best, found, group = kernel(logits, groups, k, eligible)
    wanted = by_hand(logits, groups.member, len(groups.level), k, eligible)
    for row in range(rows):
        for g in range(len(groups.level)):
            here = group[row] == g
            items_here = [i for i in found[row, here].tolist() if i >= 0]
            assert items_here == wanted[row][g]
            assert best[row, here][: len(items_here)].tolist() == [logits[row, i].item() for i in items_here]
            assert bool((best[row, here][len(items_here) :] == -torch.inf).all())


def test_groups_are_the_distinct_values_and_too_many_are_none():
    value = torch.tensor([[0.0, 1.0, 0.0, 0.5], [2.0, 0.0, 2.0, 0.0]])
    groups = group_items(value, most=3)
    assert groups.level.tolist() == [[0.0, 2.0], [0.5, 0.0], [1.0, 0.0]]
    assert groups.member.tolist() == [0, 2, 0, 1]
    assert group_items(value, most=2) is None


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda f: f.__module__.rsplit(".", 1)[1])
def test_extreme_scores_keep_their_order(kernel):
    logits = torch.tensor([[3e38, -3e38, 1e-45, -1e-45, 0.0, -0.0, 3e38]])
    groups = group_items(torch.zeros(1, 7), most=1)
    _, items, _ = kernel(logits, groups, 7, None)
    assert items[0].tolist() == [0, 6, 2, 4, 5, 3, 1]
