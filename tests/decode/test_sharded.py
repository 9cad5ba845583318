"""A table that lies in two processes gives both of them the slates of one process that has all of it."""

import multiprocessing
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from test_contract import DECODERS, world
from test_products import Drifting, drifting, near, sasrec

from spdd import SPDD, WA, Objective
from spdd.decode import products
from spdd.decode.captured import Captured
from spdd.kernels import Product, group_items, sharded
from spdd.models.sharded import Sharded

ROWS, ITEMS, SLOTS, WORLD = 5, 301, 8, 2
WAIT = timedelta(seconds=60)
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


class Lone(Drifting):
    """All of the table in one process, by a group that may be another next time."""

    def _spdd_walk(self, *args):
        self.parts.append(args[3].part)
        return products.walk(*args)


def serve(rank, folder):
    """One of the processes: compares, and leaves what it served."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD, timeout=WAIT)
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
    for wrong in (torch.nan, torch.inf):  # in the rows of one process alone, and all raise
        broken = Split(model.begun, model.table.clone().index_fill_(0, torch.tensor([ITEMS - 1]), wrong))
        with pytest.raises(ValueError, match=r"`model.table` must be finite"):
            make.generate(broken, [[]] * ROWS)
    chances(w.new)
    torch.save(served, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def chances(new):
    """A price that all but levels two items' chances: processes settle it together."""
    g = torch.Generator().manual_seed(4)
    model = Drifting(torch.randn(ROWS, 6, generator=g), torch.randn(ITEMS, 6, generator=g))
    chance = model.logits(model.begun).softmax(1)
    gaps = chance[:, new < 1].amax(1) - chance[:, new > 0].amax(1)
    for price in ((1 + 1e-7) * gaps[gaps > 0]).tolist():
        weighed = WA([Objective("new", new)], 2, weight=price / (1 + price), scale="probability")
        near(*(weighed.generate(x, [[]] * ROWS) for x in (Split(*model), model)))


def test_two_processes_serve_the_slates_of_one(tmp_path):
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=serve, args=(rank, tmp_path), daemon=True) for rank in range(WORLD)]
    try:
        for one in both:
            one.start()
        for one in both:
            one.join(240)
        assert [one.exitcode for one in both] == [0, 0]
    finally:
        for one in both:
            one.terminate()
    here, there = (torch.load(tmp_path / f"{rank}.pt") for rank in range(WORLD))
    assert all(torch.equal(here[name], there[name]) for name in NAMES)


def test_one_process_is_a_world_too(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="Use fewer processes"):
            sharded.own_rows(0)
        groups = group_items(torch.tensor([[0.0, 1.0, 0.0]]), 2)
        part = sharded.part_of(groups, sharded.own_rows(3)[0], 3)
        made, parts = SPDD(slots=2), []
        products_worth, products.WORTH = products.WORTH, 0
        for group in (None, dist.new_group([0])):
            model = Lone(*drifting(items=ITEMS))
            model.shard, model.parts = sharded.Shard(0, ITEMS, group), parts
            made.generate(model, [[]] * ROWS)
            assert parts[-1].shard.group is group
        products.WORTH = products_worth
        scores = Product(torch.ones(1, 1), torch.tensor([[1.0], [2.0], [3.0]]))
        best = sharded.group_best(scores, part, 2, scale="probability", barred=sharded.Barred())
        assert best.items.tolist() == [[2, 0, 1]]
        torch.testing.assert_close(best.norm, torch.tensor([[1.0, 2, 3]]).double().logsumexp(1, keepdim=True))
    finally:
        dist.destroy_process_group()
