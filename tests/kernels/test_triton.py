"""The Triton pass gives what the plain pass gives. Without a GPU it runs in Triton's interpreter: make test-triton"""

import pytest
import torch

from spdd.kernels import Barred, Product, priced, reference
from spdd.kernels.reference import group_items
from spdd.kernels.stream import group_topk

pytestmark = pytest.mark.triton
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def drawn(seed, count, width, rows, levels, kind):
    g = torch.Generator().manual_seed(seed)
    hidden, table = torch.randn(rows, width, generator=g), torch.randn(count, width, generator=g)
    if seed % 2:
        hidden, table = hidden.round(), table.round()  # exact products, many of them equal
    value = torch.randint(0, levels, (1, count), generator=g).float()
    barred = Barred(
        torch.randint(-1, count, (rows, 7), generator=g) if seed % 3 else None,
        torch.randint(-1, count, (rows, 3), generator=g) if seed % 4 else None,
        torch.rand(count, generator=g) < 0.5 if seed % 5 == 0 else None,
    )
    if kind == "int8":
        scale = torch.rand(count, generator=g)
        scores = Product(hidden, (table * 30).clamp(-127, 127).to(torch.int8), scale)
    else:
        scores = Product(hidden.to(kind), table.to(kind))
    price = torch.randn(rows, 1, generator=g)
    barred = Barred(*(None if x is None else x.to(DEVICE) for x in barred))
    scores = Product(*(None if x is None else x.to(DEVICE) for x in scores[:3]))
    return scores, value.to(DEVICE), price.to(DEVICE), barred


# The interpreter reads bfloat16 as whole numbers in products: that type is for a GPU alone.
KINDS = (torch.float32, torch.float16, "int8", *([torch.bfloat16] if DEVICE == "cuda" else []))
CASES = [
    (count, width, rows, levels, kind)
    for count, width, rows, levels in [
        (1, 1, 1, 1),
        (63, 8, 3, 2),
        (507, 64, 17, 2),
        (1025, 80, 5, 3),
        (700, 20, 130, 2),
    ]
    for kind in KINDS
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("k", [1, 4])
def test_the_pass_finds_each_group_s_best_and_the_mass(case, k):
    from spdd.kernels import gpu

    scores, value, _, barred = drawn(sum(case[:4]) + k, *case)
    groups = group_items(value, 8)
    ours = gpu.group_topk(scores, groups, k, barred, True)
    plain = group_topk(scores, groups, k, barred, True)
    torch.testing.assert_close(ours.mass, plain.mass, rtol=1e-4, atol=1e-4)
    for g in range(len(groups.level)):
        mine, theirs = ours.logit[:, ours.group == g], plain.logit[:, plain.group == g]
        torch.testing.assert_close(mine[:, : theirs.shape[1]].float(), theirs.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scale", reference.SCALES)
@pytest.mark.parametrize("seed", range(12))
def test_choices_are_the_definition_s(scale, seed, monkeypatch):
    from spdd.kernels import gpu

    passes = []
    monkeypatch.setattr(priced, "group_topk", lambda *args: passes.append(1) or gpu.group_topk(*args))
    kind = KINDS[seed % len(KINDS)]
    scores, value, price, barred = drawn(seed, [63, 507, 1025][seed % 3], 12, 6, 2, kind)
    k = [1, 3][seed % 2]
    ours = priced.priced_topk(scores, value, price, k, scale=scale, **barred._asdict())
    twin = reference.priced_topk(scores, value, price, k, scale, barred)
    assert passes
    # A tie in float64 (a chance of 1e-40 beside a price) may go either way; anything else is the very same item.
    same = (ours.items == twin.items) | ((ours.score - twin.score).abs() <= 1e-15 * twin.score.abs())
    assert bool(same.all())


def test_all_but_one_excluded():
    from spdd.kernels import gpu

    scores = Product(torch.ones(2, 4, device=DEVICE), torch.ones(300, 4, device=DEVICE))
    value = torch.zeros(1, 300, device=DEVICE)
    only = torch.arange(300, device=DEVICE) == 77
    found = gpu.group_topk(scores, group_items(value, 2), 1, Barred(eligible=only), True)
    assert found.items.tolist() == [[77], [77]]
    torch.testing.assert_close(found.mass, torch.full((2, 1), 4.0, dtype=torch.float64, device=DEVICE))
