"""Rows along the tree: numba and plain torch agree, replay equals stepping, and both equal the algorithm over all items."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import spdd
from spdd.catalog import Catalog
from spdd.decode import primal_dual
from spdd.decode.search import View
from spdd.engines import rows as at
from spdd.engines.menu import Menu
from spdd.engines.plan import Plan
from spdd.kernels import tree as plain

Objective = spdd.Objective

# Values of items by name, drawn for M items: few distinct ones are exact classes, many are boxes.
COLUMNS = {
    "none": lambda rng, M: {},
    "one": lambda rng, M: {"new": rng.random(M) < 0.15},
    "two": lambda rng, M: {"new": rng.random(M) < 0.2, "old": rng.random(M) < 0.5},
    "graded": lambda rng, M: {"new": rng.integers(0, 5, M) / 4, "old": rng.random(M) < 0.3},
    "real": lambda rng, M: {"new": rng.random(M), "old": rng.random(M)},
}


def world(seed, kind="two", items=63, depth=3, size=6, **words):
    rng = np.random.default_rng(seed)
    catalog = Catalog.of(rng.integers(0, size, (items, depth)), sizes=[size] * depth)
    return Menu.of(catalog, first=3, columns=COLUMNS[kind](rng, items), **words), catalog, rng


def policies(menu, slots):
    """Every shape of promise there is; floors low enough that the whole menu can keep them."""
    made = [spdd.Greedy(slots=slots)]
    if "new" in menu.columns:
        most = np.sort(menu.column("new"))[-slots:].sum()
        made.append(spdd.SPDD([Objective("new", "new", at_least=0.6 * most)], slots=slots))
        made.append(
            spdd.SPDD([Objective("new", "new", at_least=0.5 * most)], slots=slots, start=2.0, rate=1.0, guard=False)
        )
        made.append(spdd.MustFill([Objective("new", "new", at_most=0.7 * slots)], slots=slots))
        made.append(spdd.WA([Objective("new", "new")], slots=slots, weight=0.7))
    if "old" in menu.columns:
        both = [Objective("new", "new", at_least=0.3 * most), Objective("old", "old", at_most=0.6 * slots)]
        made.append(spdd.SPDD(both, slots=slots, start=1.0, pace="remaining"))
    return made


def walk(menu, rows, rng, step, temperature=1.0):
    """Rows that write random legal tokens until all are over. step(rows, logits, scores) is called before each token."""
    written = []
    while not at.finished(rows).all():
        logits = torch.from_numpy(rng.normal(size=(len(rows), menu.vocabulary + 2)))
        scores = at.priced(menu, rows, logits)
        step(rows, logits, scores)
        noise = torch.from_numpy(rng.gumbel(size=scores.shape))
        tokens = (scores + temperature * noise).argmax(1)
        assert torch.isfinite(scores.gather(1, tokens[:, None])).all()
        written.append(tokens)
        rows = at.advance(menu, rows, tokens)
    return rows, torch.stack(written, 1)


CASES = [
    *((kind, 63, 3, 6, {}) for kind in COLUMNS),
    ("two", 507, 4, 4, {}),
    ("real", 507, 2, 9, {}),
    ("real", 3000, 2, 9, {}),  # boxes below nodes of many items
    ("graded", 1, 1, 3, {}),
    ("two", 40, 1, 80, {}),
    ("two", 300, 3, 5, {"between": (1, 2), "end": 0}),
    ("one", 4, 2, 3, {"end": 0}),
]


@pytest.mark.parametrize(("kind", "items", "depth", "size", "words"), CASES)
def test_numba_equals_plain_torch(kind, items, depth, size, words, monkeypatch):
    menu, _, rng = world(items, kind, items, depth, size, **words)
    slots = min(5, items)
    parts = []
    for policy in policies(menu, slots):
        out = [rng.choice(items, min(items - slots, n), replace=False) for n in (0, 3, 40)]
        parts.append(Plan.of(menu, policy).begin(3, out))
    rows = at.join(menu, parts)

    def step(rows, logits, scores):
        twin = at.to(rows, "cpu")
        own = logits.clone()
        assert at.priced(menu, rows, own, in_place=True) is own
        assert torch.equal(own, scores)
        torch.testing.assert_close(at.priced(menu, twin, logits), scores, rtol=0, atol=1e-9)
        for mine, other, none in zip(
            at.branches(menu, twin, logits), at.branches(menu, rows, logits), (-1, -torch.inf, 0), strict=True
        ):
            torch.testing.assert_close(mine[:, : other.shape[1]], other, rtol=0, atol=1e-9)
            assert (mine[:, other.shape[1] :] == none).all()
        tokens = scores.argmax(1)
        tokens[::4] = -1  # nothing was written
        tokens[1::7] = torch.from_numpy(rng.integers(0, menu.vocabulary + 9, len(tokens[1::7])))  # anything was
        same_stand(menu, at.advance(menu, twin, tokens), at.advance(menu, rows, tokens))

    rows, _ = walk(menu, rows, rng, step)
    monkeypatch.setattr(at, "FAST", False)  # where numba is not installed
    logits = torch.from_numpy(rng.normal(size=(len(rows), menu.vocabulary)))
    again = at.join(menu, parts)
    assert isinstance(at.advance(menu, again, np.full(len(again), 3)).stand.node, np.ndarray)
    torch.testing.assert_close(at.priced(menu, again, logits), at.priced(menu, at.to(again, "cpu"), logits))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numba_equals_plain_torch_whatever_the_logits_are(dtype):
    """Far apart, forbidden here and there, infinite, not a number: tokens that follow each other and tokens that do not."""
    for words in ({"first": 3}, {"words": [np.random.default_rng(place).permutation(300) for place in range(2)]}):
        rng = np.random.default_rng(0)
        catalog = Catalog.of(rng.integers(0, 300, (5000, 2)), sizes=[300] * 2)
        menu = Menu.of(catalog, **words, columns={"new": rng.random(5000) < 0.1})
        plan = Plan.of(menu, spdd.SPDD([Objective("new", "new", at_least=3)], slots=4))
        rows = plan.begin(40, [rng.integers(0, 5000, 50) for _ in range(40)])
        rows = at.advance(menu, rows, np.where(np.arange(40) % 2, menu.spell(rng.integers(0, 5000, 40))[:, 0], -1))
        logits = torch.from_numpy(rng.normal(size=(40, menu.vocabulary)) * 10.0 ** rng.integers(-3, 6, (40, 1))).to(
            dtype
        )
        for bad in (-torch.inf, torch.inf, torch.nan):
            logits[:30][torch.from_numpy(rng.random((30, menu.vocabulary)) < 0.2)] = bad
        found, plain_ = at.priced(menu, rows, logits), at.priced(menu, at.to(rows, "cpu"), logits)
        assert torch.equal(found.isfinite(), plain_.isfinite())
        torch.testing.assert_close(found, plain_, rtol=1e-12 if dtype == torch.float64 else 1e-6, atol=1e-9)


def test_plain_torch_asks_the_device_for_nothing():
    """Its tensors have no values here, so no shape and no decision can depend on one: what a CUDA graph needs."""
    menu, _, _ = world(1, "two", items=500, between=(1,), end=0)
    rows = at.to(at.join(menu, [Plan.of(menu, p).begin(2) for p in policies(menu, 4)]), "meta")
    tree = plain.Tree(*(torch.as_tensor(x).to("meta") if isinstance(x, np.ndarray) else x for x in menu.tree))
    logits = torch.empty(len(rows), menu.vocabulary, device="meta")
    assert plain.scores(tree, rows.terms, rows.stand, logits).shape == logits.shape
    after = plain.advance(tree, rows.terms, rows.stand, torch.empty(len(rows), dtype=torch.int64, device="meta"))
    for name, old, new in zip(plain.Stand._fields, rows.stand, after, strict=True):
        assert (old.shape, old.dtype, new.device.type) == (new.shape, new.dtype, "meta"), name


def same_stand(menu, twin, rows):
    lost = rows.stand.over == at.LOST  # where a lost row stands is nobody's business
    for name, mine, other in zip(plain.Stand._fields, at.to(twin, None).stand, rows.stand, strict=True):
        if name in ("node", "place"):
            mine, other = mine[~lost], other[~lost]
        np.testing.assert_allclose(mine.astype(float), other.astype(float), rtol=0, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("kind", ["one", "two", "graded"])
def test_legal_tokens_and_payments_are_those_of_the_algorithm_over_all_items(kind):
    """Legal: what leads to an item the algorithm would allow. Paid: the mean price of those, over the whole catalog."""
    menu, catalog, rng = world(7, kind, items=120, size=4)
    M, L = len(menu), menu.depth
    for policy in policies(menu, 5):
        out = [rng.choice(M, 20, replace=False) for _ in range(4)]
        rows = Plan.of(menu, policy).begin(4, out)
        problem, state = by_items(policy, menu, out)

        def step(rows, logits, scores, problem=problem):
            nonlocal state
            chosen = torch.from_numpy(at.items(menu, rows))
            while bool((state.count < (chosen >= 0).sum(1)).any()):
                state = primal_dual.advance(problem, state, chosen.gather(1, state.count[:, None])[:, 0])
            open_ = primal_dual.open_items(problem, state)
            allowed = primal_dual.bar(problem, state, problem.value, open_, open_.double()) > 0
            price = primal_dual.net_price(problem, state)
            bonus = primal_dual.linear(torch.zeros(4, M, dtype=torch.float64), problem.value, price)
            count, mean = catalog.count(allowed), catalog.mean(bonus, allowed)
            for r in range(4):
                node, level = int(rows.stand.node[r]), int(rows.stand.place[r])
                start = menu.about["start"]
                child, token = catalog.branches(level, torch.tensor([node - start[level]]))
                child, token = child[0][child[0] >= 0], token[0][child[0] >= 0]
                word = 3 + level * 4 + token
                sure = logits[r, word].log_softmax(0)
                paid = mean[level + 1][r, child] - mean[level][r, node - start[level]]
                want = torch.full_like(scores[r], -torch.inf)
                want[word] = (sure + paid).masked_fill(count[level + 1][r, child] == 0, -torch.inf)
                torch.testing.assert_close(scores[r], want, rtol=0, atol=1e-9)

        rows, _ = walk(menu, rows, rng, step)
        assert (at.items(menu, rows) >= 0).all()
        assert L == 3


def by_items(policy, menu, out):
    """The problem over all items, and its state before the first slot, as `decode` has them."""
    values = [torch.from_numpy(menu.column(o.value)) for o in policy.objectives]
    objectives = [replace(o, value=v) for o, v in zip(policy.objectives, values, strict=True)]
    decoder = replace(policy, objectives=objectives) if not hasattr(policy, "traffic") else again(policy, objectives)
    like = torch.zeros(len(out), len(menu), dtype=torch.float64)
    open_ = torch.ones(like.shape, dtype=torch.bool)
    for r, items in enumerate(out):
        open_[r, items] = False
    value, _ = decoder._values(like)
    problem, _, state = decoder._begin(value, open_, View(like, value, open_, None))
    return problem, state


def again(policy, objectives):
    settings = {k: getattr(policy, k) for k in ("slots", "start", "rate", "guard", "pace")}
    return spdd.SPDD(objectives, **settings)


@pytest.mark.parametrize(("kind", "words"), [("two", {}), ("real", {"between": (1,), "end": 0})])
def test_replay_equals_stepping(kind, words):
    menu, _, rng = world(3, kind, items=200, **words)
    begun = at.join(menu, [Plan.of(menu, p).begin(4) for p in policies(menu, 5)])
    rows, tokens = walk(menu, begun, rng, lambda *_: None)
    for cut in range(tokens.shape[1] + 1):
        stepped = begun
        for column in tokens[:, :cut].unbind(1):
            stepped = at.advance(menu, stepped, column)
        again = at.advance(menu, begun, tokens[:, :cut])
        for name, mine, other in zip(plain.Stand._fields, again.stand, stepped.stand, strict=True):
            np.testing.assert_array_equal(mine, other, err_msg=name)
    same_stand(menu, at.to(rows, "cpu"), again)


def test_placeholders_and_tokens_behind_the_end_change_nothing():
    menu, _, rng = world(4, end=0)
    begun = Plan.of(menu, policies(menu, 3)[1]).begin(5)
    rows, tokens = walk(menu, begun, rng, lambda *_: None)
    padded = torch.full((5, 3 * tokens.shape[1]), -1)
    padded[:, ::3] = tokens
    later = torch.cat([padded, torch.zeros(5, 4, dtype=torch.int64), torch.full((5, 3), 5)], 1)
    same_stand(menu, at.to(at.advance(menu, begun, later), "cpu"), rows)


def test_rows_are_what_comes_out_not_what_went_in():
    menu, _, rng = world(5)
    begun = Plan.of(menu, policies(menu, 3)[1]).begin(2)
    before = [x.copy() for x in begun.stand]
    walk(menu, begun, rng, lambda *_: None)
    assert all(np.array_equal(x, y) for x, y in zip(before, begun.stand, strict=True))


def test_joined_rows_go_their_own_ways():
    """A batch of several policies gives what each gives alone, whatever stands beside it and in whatever order."""
    menu, _, rng = world(6, items=200)
    plans = [Plan.of(menu, p) for p in policies(menu, 4)] + [Plan.of(menu, p) for p in policies(menu, 6)]
    logits = torch.from_numpy(rng.normal(size=(len(plans), 40, menu.vocabulary)))
    order = rng.permutation(len(plans))
    rows = at.take(at.join(menu, [plan.begin(1) for plan in plans]), order)
    alone = [plan.begin(1) for plan in plans]
    for step in range(menu.length(6)):
        tokens = at.priced(menu, rows, logits[order, step]).argmax(1)
        rows = at.advance(menu, rows, tokens)
        for i in range(len(plans)):
            alone[i] = at.advance(menu, alone[i], at.priced(menu, alone[i], logits[i : i + 1, step]).argmax(1))
    for place, i in enumerate(order):
        mine, other = at.items(menu, at.take(rows, [place])), at.items(menu, alone[i])
        assert mine[0, : plans[i].slots].tolist() == other[0].tolist()


def test_scores_are_the_same_from_logits_and_from_log_probabilities():
    menu, _, rng = world(8)
    rows = Plan.of(menu, policies(menu, 4)[1]).begin(6)
    logits = torch.from_numpy(rng.normal(size=(6, menu.vocabulary)))
    a, b = at.priced(menu, rows, logits), at.priced(menu, rows, logits.log_softmax(1))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_payments_along_an_id_add_up_to_the_items_own():
    """Beams inside an item compare fairly: the sum telescopes to price times value, less what the root is worth."""
    menu, _, _ = world(9, "two", items=60, size=9)
    rows = Plan.of(menu, spdd.WA([Objective("new", "new")], slots=3, weight=0.5)).begin(60)
    paid = torch.zeros(60, dtype=torch.float64)
    for column in torch.from_numpy(menu.spell(np.arange(60))).unbind(1):
        word, _, more = at.branches(menu, rows, torch.zeros(60, menu.vocabulary))
        paid += (more * (word == column[:, None])).sum(1)
        rows = at.advance(menu, rows, column)
    own = np.array([menu.column("new")[at.items(menu, rows)[i, 0]] for i in range(60)])
    ids = {tuple(x) for x in menu.spell(np.arange(60)).tolist()}
    alone = np.array(
        [sum(np.array_equal(x, y) for y in menu.spell(np.arange(60))) == 1 for x in menu.spell(np.arange(60))]
    )
    assert len(ids) > 40
    mean = menu.column("new").mean()
    np.testing.assert_allclose(paid.numpy()[alone], (own - mean)[alone], atol=1e-9)


def test_what_the_host_forbade_stays_forbidden_unless_nothing_is_left():
    menu, _, _ = world(10)
    rows = Plan.of(menu, spdd.Greedy(slots=2)).begin(1)
    legal = torch.isfinite(at.priced(menu, rows, torch.zeros(1, menu.vocabulary)))[0]
    some = torch.zeros(1, menu.vocabulary)
    first = int(legal.nonzero()[0])
    some[0, first] = -torch.inf
    assert torch.isfinite(at.priced(menu, rows, some))[0].sum() == legal.sum() - 1
    for bad in (-torch.inf, torch.nan):
        for where in (rows, at.to(rows, "cpu")):
            left = torch.isfinite(at.priced(menu, where, torch.full((1, menu.vocabulary), bad)))[0]
            assert torch.equal(left, legal)
    assert torch.equal(torch.isfinite(at.priced(menu, rows, torch.full((1, menu.vocabulary), torch.inf)))[0], legal)


def test_an_id_that_names_nothing_loses_the_row_alone():
    menu, _, _ = world(11, end=0)
    rows = Plan.of(menu, spdd.Greedy(slots=2)).begin(2)
    rows = at.advance(menu, rows, np.array([menu.vocabulary - 1, 3]))
    assert rows.stand.over.tolist() == [at.LOST, at.RUNNING]
    scores = at.priced(menu, rows, torch.zeros(2, menu.vocabulary))
    assert torch.isfinite(scores[0]).nonzero().tolist() == [[0]]  # nothing but the end
    assert torch.isfinite(scores[1]).sum() > 1


def test_an_id_stands_for_its_items_one_after_the_other():
    """Three items share an id: the best paid first, then by number, and then the id is used up."""
    catalog = Catalog.of([[0, 0], [0, 0], [0, 0], [1, 1]])
    menu = Menu.of(catalog, first=0, columns={"new": [0, 0, 1, 0]})
    rows = Plan.of(menu, spdd.WA([Objective("new", "new")], slots=4, weight=0.5)).begin(1)
    for _ in range(3):
        assert torch.isfinite(at.priced(menu, rows, torch.zeros(1, 4)))[0].tolist() == [True, True, False, False]
        rows = at.advance(menu, rows, [[0, 2]])
    assert at.items(menu, rows).tolist() == [[2, 0, 1, -1]]
    assert torch.isfinite(at.priced(menu, rows, torch.zeros(1, 4)))[0].tolist() == [False, True, False, False]


def test_more_slots_than_items_ends_early():
    menu, _, rng = world(12, "one", items=4, size=3, depth=2, end=0)
    rows, _ = walk(menu, Plan.of(menu, spdd.Greedy(slots=7)).begin(3), rng, lambda *_: None)
    chosen = at.items(menu, rows)
    assert (np.sort(chosen[:, :4]) == np.arange(4)).all()
    assert (chosen[:, 4:] == -1).all()


def test_wrong_logits_are_refused():
    menu, _, _ = world(13)
    rows = Plan.of(menu, spdd.Greedy(slots=2)).begin(2)
    with pytest.raises(ValueError, match=r"V >= 21"):
        at.priced(menu, rows, torch.zeros(2, 20))
    with pytest.raises(ValueError, match=r"\(2, V\)"):
        at.priced(menu, rows, torch.zeros(3, 30))
