"""A table that lies in two processes gives both of them the slates of one process that has all of it."""

import multiprocessing

import pytest
import torch
import torch.distributed as dist
from test_contract import DECODERS, world
from test_products import Drifting, drifting, near, sasrec

from spdd import SPDD, Objective
from spdd.decode import products
from spdd.decode.captured import Captured
from spdd.kernels import Product, group_items, sharded
from spdd.models.sharded import Sharded

ROWS, ITEMS, SLOTS, WORLD = 5, 301, 8, 2
NAMES = [
    "Greedy",
    "MustFill",
    "WA",
    "SPDD",
    "SPDD as printed",
    "SPDD from a number",
    "SPDD two",
    "MMR",
    "SPDD real values",
]


class Split(Drifting):
    """Ties and all: items differ by whole numbers, and equal ones lie in both processes."""

    shard = property(lambda self: sharded.own_rows(ITEMS)[0])
    table = property(lambda self: super().table[sharded.own_rows(ITEMS)[1]])

    def advance(self, state, items):
        return state + 0.25 * Drifting.table.__get__(self)[items].sign()


def serve(rank, folder):
    """One of the processes: compares, and leaves what it served."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD)
    products.WORTH = 0
    w, served = world(items=ITEMS), {}
    histories = torch.randint(-1, ITEMS, (ROWS, 9), generator=torch.Generator().manual_seed(1))
    whole, split = sasrec(ITEMS), Sharded(sasrec(ITEMS))
    assert len(split.table) < ITEMS
    assert split.table.data_ptr() == split.model.embedding.weight.data_ptr()
    for name in NAMES:
        for model in (split, Captured(split)):
            ours, theirs = (DECODERS[name](w, SLOTS).generate(x, histories, exclude="seen") for x in (model, whole))
            near(ours, theirs)
        served[name] = ours.items
    angles = {"temperature": 0.1}
    ours, theirs = (
        DECODERS["SPDD"](w, SLOTS).generate(x, histories, exclude=w.new < 1)
        for x in (Sharded(sasrec(ITEMS, **angles)), sasrec(ITEMS, **angles))
    )
    near(ours, theirs)
    few = torch.zeros(ITEMS)
    few[[3, ITEMS - 1]] = 1.0  # and a group that one process has nothing of
    few[:20] += 2 * (torch.arange(20) % 2)
    model = drifting(whole=True, items=ITEMS)
    for scale in ("logit", "probability", "relative"):
        make = SPDD([Objective("few", few, at_least=2)], SLOTS, scale=scale)
        near(make.generate(Split(*model), [[]] * ROWS), make.generate(model, [[]] * ROWS))
    torch.save(served, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_serve_the_slates_of_one(tmp_path):
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=serve, args=(rank, tmp_path)) for rank in range(WORLD)]
    for one in both:
        one.start()
    for one in both:
        one.join(240)
    assert [one.exitcode for one in both] == [0, 0]
    here, there = (torch.load(tmp_path / f"{rank}.pt") for rank in range(WORLD))
    assert all(torch.equal(here[name], there[name]) for name in NAMES)


def test_one_process_is_a_world_too(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="Use fewer processes"):
            sharded.own_rows(0)
        groups = group_items(torch.tensor([[0.0, 1.0, 0.0]]), 2)
        part = sharded.part_of(groups, sharded.own_rows(3)[0], 3)
        scores = Product(torch.ones(1, 1), torch.tensor([[1.0], [2.0], [3.0]]))
        best = sharded.group_best(scores, part, 2, scale="probability", barred=sharded.Barred())
        assert best.items.tolist() == [[2, 0, 1]]
        torch.testing.assert_close(best.norm, torch.tensor([[1.0, 2, 3]]).double().logsumexp(1, keepdim=True))
    finally:
        dist.destroy_process_group()
