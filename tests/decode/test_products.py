"""Scores that are never written give the slates of scores that are, without asking the device before the slate is done."""

import copy
import pickle
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from test_contract import DECODERS, GROUPED, SHARED, same, world
from torch.utils._python_dispatch import TorchDispatchMode

import spdd
from spdd import SPDD, Objective
from spdd.decode import products
from spdd.decode.captured import Captured, put_together, taken_apart
from spdd.kernels import Barred, Product, group_best, group_items, longest, prepare, priced_topk, reference, stream
from spdd.kernels.priced import priced_unsettled
from spdd.models.sasrec import Config, SASRec
from spdd.models.sharded import Sharded

ROWS, ITEMS, WIDTH, SLOTS = 5, 300, 6, 8


class Drifting(NamedTuple):
    """A model whose scores move with what was shown. table: (M, D)"""

    begun: torch.Tensor  # (R, D)
    table: torch.Tensor
    row_scale: torch.Tensor | None = None

    def start(self, histories):
        return self.begun.clone()

    def logits(self, state):
        return reference.exact_logits(Product(state, self.table, self.row_scale))

    def hidden(self, state):
        return state

    def advance(self, state, items):
        return state + 0.25 * self.table[items].to(state.dtype).sign()


def drifting(seed=0, items=ITEMS, kind=torch.float64, whole=False, rows=ROWS):
    g = torch.Generator().manual_seed(seed)
    begun, table = torch.randn(rows, WIDTH, generator=g), torch.randn(items, WIDTH, generator=g)
    if whole:  # many equal scores
        begun, table = begun.round(), table.round()
    if kind is torch.int8:
        return Drifting(begun, (table * 40).clamp(-127, 127).to(kind), torch.rand(items, generator=g) / 40)
    return Drifting(begun.to(kind), table.to(kind))


@pytest.fixture
def passes(monkeypatch):
    """How often a pass over the table was made; any catalogue is large enough for one."""
    made = []
    monkeypatch.setattr(products, "WORTH", 0)
    inside = products.group_best
    monkeypatch.setattr(products, "group_best", lambda *args, **named: made.append(1) or inside(*args, **named))
    return made


def both(make, model, exclude=None, histories=None, trace=False):
    """The slate from a product, and from all scores written down in float64."""
    histories = [[]] * len(model.begun) if histories is None else histories
    return [make().generate(x, histories, exclude=exclude, trace=trace) for x in (model, Written(model))]


class Written(NamedTuple):
    """The model without its `hidden` and `table`."""

    model: Any

    def start(self, histories):
        return self.model.start(histories)

    def logits(self, state):
        return self.model.logits(state)

    def advance(self, state, items):
        return self.model.advance(state, items)


def near(ours, theirs):
    """The same items and status; numbers as near as a normaliser summed in float32 lets them be."""
    for field in ("items", "status"):
        assert torch.equal(getattr(ours, field), getattr(theirs, field)), field
    for field in ("relevance", "gained", "dual", "reachable"):
        mine, other = getattr(ours, field), getattr(theirs, field)
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-7, equal_nan=True, msg=field)


# ---- the same slates -------------------------------------------------------------------------------------

NEEDS_ALL = {"WA two", "EPR", "SPDD real values", "SPDD values of the slate", "BanditUCB", "BanditTS", "MMR", "DPP"}
NEEDS_ALL |= {"Calibrated", "ProviderMaxMin", "Bandit of one arm"}


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("whole", [False, True])
def test_every_decoder_makes_the_slate_it_makes_of_written_scores(name, whole, passes):
    w = world(items=ITEMS)
    model = drifting(whole=whole)
    near(*both(lambda: DECODERS[name](w, SLOTS), model, exclude=[[0, 7], [], [3], [1, 1], list(range(50))], trace=True))
    assert len(passes) == (0 if name in NEEDS_ALL else 1 + SLOTS)


@pytest.mark.parametrize("name", [name for name in GROUPED if name != "EPR"])
@pytest.mark.parametrize("targets", ["cap", "both", "two", "apart"])
def test_all_kinds_of_targets(name, targets, passes):
    w = world(items=ITEMS)
    stars = (w.worth * 4).round() / 4
    wanted = {
        "cap": [Objective("new", w.new, at_most=1)],
        "both": [Objective("new", w.new, at_least=3, at_most=4)],
        "two": [Objective("new", w.new, at_least=3), Objective("loud", w.loud, at_most="30%")],
        "apart": [Objective("new", w.new, at_least=2), Objective("stars", stars), Objective("loud", w.loud, at_most=2)],
    }[targets]
    ours, theirs = both(lambda: GROUPED[name](wanted, SLOTS), drifting(1), trace=True)
    near(ours, theirs)
    assert torch.equal(ours.trace.plain, theirs.trace.plain)
    torch.testing.assert_close(ours.trace.cost, theirs.trace.cost, rtol=1e-5, atol=1e-7)
    assert passes


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("scale", [*reference.SCALES, "sigmoid", "identity"])
def test_tables_of_every_type(kind, scale, passes):
    w = world(items=ITEMS)
    near(*both(lambda: SPDD([Objective("new", w.new, at_least=3)], SLOTS, scale=scale), drifting(2, kind=kind)))
    assert passes


@pytest.mark.parametrize(("items", "slots"), [(2, 1), (4, 3), (4, 10), (8, 8), (63, 30)])
def test_small_worlds_and_rows_that_run_out(items, slots, passes):
    w = world(items=items)
    exclude = [list(range(items)), list(range(items - 1)), [], [0, -1, -1], [0]]
    for name in ("Greedy", "MustFill", "WA", "SPDD", "SPDD as printed"):
        ours, theirs = both(lambda name=name: DECODERS[name](w, slots), drifting(items, items=items), exclude)
        near(ours, theirs)
    assert passes


def test_exclusions_in_every_way(passes):
    w = world(items=ITEMS)
    histories = torch.randint(-1, ITEMS, (ROWS, 12), generator=torch.Generator().manual_seed(0))
    for exclude in ("seen", w.new < 1, torch.rand(ROWS, ITEMS) < 0.3, None):
        before = len(passes)
        near(*both(lambda: DECODERS["SPDD as printed"](w, 4), drifting(3), exclude, histories))
        # A mask of all rows and items is as large as the scores: nothing is gained by not writing those.
        assert (len(passes) > before) == (getattr(exclude, "shape", ()) != (ROWS, ITEMS))


def test_drawn_slates_need_all_scores(passes):
    model = drifting()
    spdd.Greedy(slots=3).generate(model, [[]] * ROWS, temperature=1.0, seed=0)
    assert not passes


def test_small_catalogues_are_simply_scored(passes, monkeypatch):
    monkeypatch.setattr(products, "WORTH", ROWS * ITEMS + 1)
    spdd.Greedy(slots=3).generate(drifting(), [[]] * ROWS)
    assert not passes


def test_nothing_as_large_as_the_scores_is_ever_written(passes, monkeypatch):
    w = world(rows=16, items=20_000)
    model = drifting(items=20_000, rows=16)
    made = GROUPED["SPDD"]([Objective("new", w.new, at_least=3)], SLOTS)
    made.generate(model, [[]] * 16, exclude="seen")  # values are read once
    monkeypatch.setattr(stream, "PIECE", 1 << 14)
    with Watched() as seen:
        made.generate(model, [[]] * 16, exclude="seen")
    assert seen.largest < 16 * 20_000
    with Watched() as seen:
        made.generate(Written(model), [[]] * 16, exclude="seen")
    assert seen.largest >= 16 * 20_000


class Watched(TorchDispatchMode):
    """The largest tensor that any operation makes room for."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(x, torch.Tensor):
                held = x.untyped_storage().nbytes() // x.element_size()
                self.largest = max(self.largest, min(held, x.numel()) if func.is_view else held)
        return out


# ---- what is wrong is named ------------------------------------------------------------------------------


def test_bad_numbers_are_named(passes):
    model = drifting()
    bad = model.table.clone()
    bad[3, 2] = torch.nan
    with pytest.raises(ValueError, match=r"`model.table` must be finite"):
        spdd.Greedy(slots=2).generate(model._replace(table=bad), [[]] * ROWS)
    with pytest.raises(ValueError, match="hidden` returned must be finite"):
        spdd.Greedy(slots=2).generate(model._replace(begun=model.begun / 0), [[]] * ROWS)
    with pytest.raises(ValueError, match=r"must have shape \(rows, width\)"):
        spdd.Greedy(slots=2).generate(model._replace(begun=model.begun[:, :3]), [[]] * ROWS)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [(lambda x: x / 0, "nan or infinite numbers after its first step"), (lambda x: x[1:], "must keep its shape")],
)
def test_a_model_gone_wrong_half_way_is_named(wrong, message, passes):
    class Wrong(Drifting):
        def advance(self, state, items):
            return wrong(state)

    with pytest.raises(ValueError, match=message):
        spdd.Greedy(slots=4).generate(Wrong(*drifting()), [[]] * ROWS)


@pytest.mark.parametrize("kind", [torch.float32, torch.int8], ids=str)
def test_weights_that_change_are_measured_again_however_they_were_written(kind, passes):
    """What proves a choice is the length of the longest row; an old one would prove too much."""
    model, told = drifting(kind=kind), []

    class Told(Drifting):
        def _spdd_walk(self, *args):
            told.append(float(args[3].scores.longest))
            return products.walk(*args)

    made = spdd.Greedy(slots=3)
    made.generate(Told(*model), [[]] * ROWS)
    if kind is torch.int8:
        model = model._replace(row_scale=2 * model.row_scale)
    else:
        model.table.data.mul_(2)  # raises no version
    made.generate(Told(*model), [[]] * ROWS)
    assert told[1] == pytest.approx(2 * told[0])


@pytest.mark.parametrize("inside", [False, True])
def test_weights_made_without_a_history_are_served(inside, passes):
    with torch.inference_mode():
        models = [drifting(kind=torch.float32), sasrec(), sasrec(temperature=0.1)]
    for model in models:
        with torch.inference_mode(inside):
            near(*(spdd.Greedy(slots=3).generate(x, [[]] * ROWS) for x in (model, Written(model))))


def test_a_price_that_levels_two_chances_is_settled(passes):
    """A norm summed in float32 would choose by its own error between an item with the price and one without."""
    levelled = 0
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        model = Drifting(torch.randn(1, 8, generator=g), torch.randn(2000, 8, generator=g))
        new = (torch.rand(2000, generator=g) < 0.2).double()
        chance = model.logits(model.begun).softmax(1)[0]
        gap = float(chance[new < 1].max() - chance[new > 0].max())
        for price in (gap * (1 - 1e-7), gap * (1 + 1e-7)) if gap > 0 else ():
            weighed = spdd.WA([Objective("new", new)], 1, weight=price / (1 + price), scale="probability")
            ours, theirs = (weighed.generate(x, [[]]) for x in (model, Written(model)))
            assert torch.equal(ours.items, theirs.items)
            late = weighed.generate(Late(*model), [[]])
            assert torch.equal(late.items, theirs.items)
            levelled += 1
        drawn = SPDD(
            [Objective("new", new, at_least=1)], 1, scale="probability"
        )  # its first price levels them by itself
        near(*(drawn.generate(x, [[]]) for x in (model, Written(model))))
    assert levelled > 10


class Late(Drifting):
    """Nothing is settled before all slots are filled, as on a GPU."""

    def _spdd_walk(self, *args):
        return products.walk(*args[:-1], False)


def test_a_row_of_zeros_is_proven_and_exact_scores_take_no_second_table(monkeypatch):
    scores = Product(torch.zeros(2, WIDTH), drifting().table.float())
    groups = group_items((torch.arange(ITEMS) % 3 == 0).double()[None], 2)
    best = group_best(scores, groups, 2, scale="probability", barred=Barred(torch.tensor([[0], [1]])), settle=False)
    assert best.sure.all()
    assert best.items.tolist() == [[1, 2, 3, 6], [2, 4, 0, 3]]
    monkeypatch.setattr(reference, "ITEMS_AT_ONCE", 64)
    with Watched() as seen:
        found = reference.exact_logits(scores)
    assert seen.largest < ITEMS * WIDTH
    assert torch.equal(found, torch.zeros(2, ITEMS).double())


def test_a_model_may_call_anything_walk_or_shard(passes):
    class Named(Drifting):
        walk, shard = None, "of glass"

    model = drifting()
    same(*(spdd.Greedy(slots=3).generate(x, [[]] * ROWS) for x in (Named(*model), model)))
    assert passes


# ---- without asking the device ---------------------------------------------------------------------------


class NoWaiting(TorchDispatchMode):
    """Refuses what makes the host wait for a GPU: numbers asked for, shapes that numbers decide, copies to and fro."""

    ASKS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "unique_dim", "bincount", "equal")
    ASKS += ("is_nonzero", "item", "lift_fresh", "unique_consecutive", "argwhere", "repeat_interleave")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, given = func._schema.name.removeprefix("aten::"), kwargs or {}
        flat = taken_apart((list(args), given))[0]
        by_mask = name.startswith("index") and name != "index_select" and any(x.dtype == torch.bool for x in flat[1:])
        out = func(*args, **given)
        there = {x.device.type for x in (*flat, *taken_apart(out)[0]) if x.dim()}
        if name in self.ASKS or by_mask or len(there) > 1:
            raise RuntimeError(f"waits for the device: {name}")
        return out


def prepared(make, model, rows=ROWS, exclude=None):
    """What the loop over slots is given, on the CPU."""
    given = []

    class Told(Drifting):
        def _spdd_walk(self, *args):
            given.append(args)
            return products.walk(*args)

    make().generate(Told(*model), [[]] * rows, exclude=exclude)
    return given[0]


def on_meta(given):
    tensors, form = taken_apart(given)
    return put_together(form, [x.to("meta") for x in tensors])


@pytest.fixture
def plain_torch(monkeypatch):
    """What a device without numba does."""
    monkeypatch.setattr(stream.importlib.util, "find_spec", lambda name: None)


QUIET = [name for name in DECODERS if name not in NEEDS_ALL]


@pytest.mark.parametrize("name", QUIET)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_host_never_waits(name, device, passes, plain_torch):
    w = world(items=ITEMS)
    problem, begun, model, source, _, _ = prepared(lambda: DECODERS[name](w, SLOTS), drifting(), exclude=[[1]] * ROWS)
    model = Drifting(*model)
    if device == "meta":  # takes the ways a GPU takes, and has no numbers that could be asked for
        problem, begun, source, model = on_meta((problem, begun, source, model))
    with NoWaiting():
        went = products.walk(problem, begun, model, source, True, False)
    assert went.steps.items.shape == (ROWS, SLOTS)


def sasrec(items=ITEMS, **more):
    torch.manual_seed(0)
    model = SASRec(items, Config(width=16, heads=2, history=10, slots=4, **more)).eval()
    torch.nn.init.normal_(model.embedding.weight)
    return model


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_nor_for_sasrec(device, positions, passes, plain_torch):
    model, w = sasrec(positions=positions), world(items=ITEMS)
    given = []
    model._spdd_walk = lambda *args: given.append(args) or products.walk(*args)
    begun = model.start([[1, 2], [], [3], [4], [5]])
    problem, state, _, source, _, _ = (
        DECODERS["SPDD"](w, SLOTS).generate(model, [[1, 2], [], [3], [4], [5]]) and given[0]
    )
    source = source._replace(state=begun)
    del model._spdd_walk
    if device == "meta":
        problem, state, source = on_meta((problem, state, source))
        model = model.to("meta")
    with NoWaiting(), torch.no_grad():
        went = products.walk(problem, state, model, source, False, False)
    assert went.steps.items.shape == (ROWS, SLOTS)


@pytest.mark.parametrize("name", ["Greedy", "MustFill", "WA", "SPDD", "SPDD as printed"])
@pytest.mark.parametrize("config", [{}, {"temperature": 0.1, "positions": "rotary"}], ids=str)
def test_sasrec_makes_the_same_slates_however_it_is_asked(name, config, passes):
    """Written, not written, and from a recording that several batches share."""
    model, w = sasrec(**config), world(items=ITEMS)
    fast = Captured(model)
    for seed in range(3):
        histories = torch.randint(-1, ITEMS, (ROWS, 9), generator=torch.Generator().manual_seed(seed))
        make = DECODERS[name]
        theirs, *ours = (make(w, SLOTS).generate(x, histories, exclude="seen") for x in (Written(model), model, fast))
        near(ours[0], theirs)
        near(ours[1], theirs)


@pytest.mark.parametrize(
    "nosy",
    [
        lambda x: x * float(x.sum()),
        lambda x: x if (x > 0).all() else -x,
        lambda x: x.where(x > 0, x[x > 0].sum()),
        lambda x: x + torch.tensor(1.0, dtype=x.dtype),
        lambda x: x + len(x.nonzero()),
        lambda x: x[[*range(len(x))]],
    ],
)
def test_a_wait_is_caught(nosy, passes, plain_torch):
    class Nosy(Drifting):
        def advance(self, state, items):
            return nosy(state)

    problem, begun, model, source, _, _ = prepared(lambda: spdd.Greedy(slots=SLOTS), drifting())
    with NoWaiting(), pytest.raises(RuntimeError, match="waits for the device"):
        products.walk(problem, begun, Nosy(*model), source, False, False)


@pytest.mark.parametrize("scale", reference.SCALES)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_nor_for_one_choice(scale, device, plain_torch):
    g = torch.Generator().manual_seed(0)
    scores = Product(torch.randn(4, 6, generator=g), torch.randn(200, 6, generator=g))
    scores = scores._replace(longest=longest(scores))
    ready, price = prepare((torch.rand(2, 200, generator=g) < 0.3).float()), torch.rand(4, 2, generator=g)
    barred = Barred(torch.randint(-1, 200, (4, 9), generator=g), torch.randint(-1, 200, (4, 3), generator=g))
    wanted = priced_topk(scores, ready, price, 3, scale=scale, **barred._asdict())
    given = (scores, ready, price, barred) if device == "cpu" else on_meta((scores, ready, price, barred))
    with NoWaiting():
        found, sure = priced_unsettled(*given[:3], 3, scale=scale, barred=given[3])
    if device == "cpu":
        assert sure.all()
        assert torch.equal(found.items, wanted.items)
    with pytest.raises(ValueError, match="many levels"):
        priced_unsettled(scores, prepare(torch.rand(1, 200)), price[:, :1], 3)


def test_a_choice_that_is_not_proven_is_made_again(passes):
    """Equal items by the dozen: which comes first only the definition says, and here it is asked when all is done."""
    walks = []

    class Late(Drifting):
        def _spdd_walk(self, *args):
            walks.append(products.walk(*args[:-1], False))
            return walks[-1]

    w = world(items=ITEMS)
    model = drifting(5, whole=True)
    table = model.table.clone()
    table[: ITEMS // 2] = table[0]
    model = Drifting(model.begun + 3, table.abs())
    make = DECODERS["SPDD"]
    late = make(w, SLOTS).generate(Late(*model), [[]] * ROWS)
    assert not walks[0].sure
    same(late, make(w, SLOTS).generate(Written(model), [[]] * ROWS), exact=False)


# ---- replayed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in QUIET if name not in SHARED])
def test_a_recorded_slate_is_the_slate(name, passes):
    """On a CPU without the graph: the same buffers, filled again for every batch."""
    w = world(items=ITEMS)
    make, fast = DECODERS[name](w, SLOTS), Captured(drifting())
    for seed in range(3):
        model = fast.model._replace(begun=drifting(seed).begun)
        fast.model = model
        ours, theirs = (make.generate(x, [[]] * ROWS, exclude=[[seed, 1]] * ROWS, trace=True) for x in (fast, model))
        same(ours, theirs)
        for one, other in zip(*(taken_apart(tuple(vars(x.trace).values()))[0] for x in (ours, theirs)), strict=True):
            assert torch.equal(one.nan_to_num(-7.0), other.nan_to_num(-7.0))
    assert len(fast._recorded) == 1


def test_another_shape_is_another_recording(passes):
    fast, make = Captured(drifting(), most=2), spdd.Greedy(slots=3)
    for rows in (5, 3, 5, 2, 4):
        fast.model = drifting(rows=rows)
        fast.model = fast.model._replace(table=drifting().table)
        slate = make.generate(fast, [[]] * rows)
        same(slate, make.generate(fast.model, [[]] * rows))
    assert len(fast._recorded) == 2


def test_another_scale_of_rows_is_another_recording(passes):
    fast, make = Captured(drifting(kind=torch.int8)), spdd.Greedy(slots=3)
    for turn in (1, -1):
        fast.model = fast.model._replace(row_scale=turn * drifting(kind=torch.int8).row_scale)
        same(make.generate(fast, [[]] * ROWS), make.generate(fast.model, [[]] * ROWS))
    assert len(fast._recorded) == 2


def test_a_state_that_hides_tensors_is_refused(passes):
    @dataclass
    class Hidden:
        at: torch.Tensor

    class Hiding(Drifting):
        def start(self, histories):
            return {"inside": [Hidden(self.begun)]}

        def hidden(self, state):
            return state["inside"][0].at

    with pytest.raises(TypeError, match="got Hidden"):
        spdd.Greedy(slots=3).generate(Captured(Hiding(*drifting())), [[]] * ROWS)


def test_a_captured_model_can_be_copied():
    fast = Captured(drifting())
    for again in (copy.copy(fast), copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert torch.equal(again.table, fast.table)
    for kind in (Captured, Sharded):
        with pytest.raises(AttributeError):
            kind.__new__(kind).table  # noqa: B018


def test_what_is_taken_apart_is_put_together():
    state = {"keys": (torch.ones(2), [torch.zeros(1)]), "used": 3, "none": None, "run": slice(0, 2)}
    tensors, form = taken_apart(state)
    assert len(tensors) == 2
    again = put_together(form, tensors)
    assert again["keys"][0] is tensors[0]
    assert again | {"keys": ()} == state | {"keys": ()}
    assert taken_apart(again)[1] == form
    assert taken_apart(again | {"used": 4})[1] != form
