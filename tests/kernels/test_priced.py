"""The fast ways to the best priced items against the definition, which writes down every score in float64.

A different item passes only where float64 cannot tell the two scores apart.
"""

import importlib.util
import itertools

import numpy as np
import pytest
import torch

from spdd.kernels import Barred, Product, prepare, priced, priced_argmax, priced_topk, reference, stream

SCALES = reference.SCALES
SIZES = (1, 63, 507, 1025, 2, 4999)
ROWS = 10  # problems of one draw of sizes, types, values and exclusions
PROBLEMS = 10_000


@pytest.fixture(autouse=True)
def one_thread():
    """On small tensors faster, and far faster beside other programs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["numba", "torch"])
def engine(request, monkeypatch):
    """With numba's inner loop, and with the plain one."""
    if request.param == "torch":
        find = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "numba" else find(name))
    elif not importlib.util.find_spec("numba"):
        pytest.skip("needs numba: pip install 'spdd[fast]'")
    return request.param


def drawn(seed, rows=ROWS):
    """Scores, values, prices, k and exclusions: one of everything that may come, by turns and by chance."""
    g = torch.Generator().manual_seed(seed)

    def whole(low, high):
        return int(torch.randint(low, high + 1, (1,), generator=g))

    count, width, objectives = SIZES[seed % len(SIZES)], whole(1, 12), whole(0, 3)
    hidden, table = torch.randn(rows, width, generator=g), torch.randn(count, width, generator=g)
    if whole(0, 2) == 0:  # products of whole numbers are exact, and many are equal
        hidden, table = hidden.round(), (2 * table).round()
    hidden = hidden * [1, 1, 20, 1e-4][whole(0, 3)]
    whole_bytes = (table * 10).round().clamp(-127, 127).to(torch.int8)
    scores = [
        lambda: hidden @ table.T,
        lambda: (hidden @ table.T).double(),
        lambda: (hidden @ table.T).bfloat16(),
        lambda: (hidden @ table.T).half(),
        lambda: (hidden @ table.T).sign() * torch.tensor(3e38),  # the ends of float32
        lambda: Product(hidden, table),
        lambda: Product(hidden.bfloat16(), table.bfloat16()),
        lambda: Product(hidden, table.half()),
        lambda: Product(hidden, whole_bytes, torch.rand(count, generator=g)),
        lambda: Product(hidden.double(), table.double()),
    ][whole(0, 9)]()
    value = torch.rand(objectives, count, generator=g)
    value = [(value < 0.2).float(), (3 * value).round() / 3, value, value * (value < 0.02)][whole(0, 3)]
    price = torch.randn(rows, objectives, generator=g) * [1, 0.01, 1e-12, 1e12, 1e30, 0][whole(0, 5)]
    seen = torch.randint(-1, count, (rows, 6), generator=g) if whole(0, 1) else None
    used = torch.randint(-1, count, (rows, 4), generator=g) if whole(0, 1) else None
    eligible = torch.rand(count, generator=g) < 0.7 if whole(0, 3) == 0 else None
    if whole(0, 5) == 0:  # all but one, or none
        eligible = torch.arange(count) == whole(0, count)
    return scores, value, price, [1, 1, 3, 10][whole(0, 3)], Barred(seen, used, eligible)


def terms(scores, value, price, items):
    """How large what a score of these items (R, k) is summed from is, and with it what float64 may be wrong by."""
    at = items.clamp_min(0)
    return (price.double().abs()[:, :, None] * value.double().abs()[:, at].transpose(0, 1)).sum(1)


def compare(scores, value, price, k, scale, barred):
    ours = priced_topk(scores, value, price, k, scale=scale, **barred._asdict())
    twin = reference.priced_topk(scores, value, price, k, scale, barred)
    other = ours.items != twin.items
    assert torch.equal(ours.items < 0, twin.items < 0)
    if bool(other.any()):
        total = reference.priced_topk(scores, value, price, value.shape[1], scale, barred)
        place = (total.items[:, None] == ours.items[:, :, None]).double().argmax(2)
        mine = total.score.gather(1, place)  # what the definition says of the item we chose
        size = (terms(scores, value, price, items) for items in (ours.items, twin.items))
        largest = sum(size, mine.abs() + twin.score.abs())[other]
        gap = (twin.score - mine)[other].abs()
        assert bool((gap <= 4e-15 * largest).all()), (scale, k, (gap / largest).max())
        assert all(len(set(row)) == len(row) for row in ours.items[other.any(1)].tolist() if -1 not in row)
    rough = 1e-5 + torch.as_tensor(priced.error_of(scores))
    same = ~other  # of two items with one score the more relevant may have been taken
    for mine, theirs, alike in zip(ours[1:], twin[1:], (True, same, True), strict=True):
        if theirs is not None:
            there = (theirs > -1e300) & alike
            mine = mine.where(torch.as_tensor(alike, device=mine.device), -torch.inf)
            assert torch.equal(mine > -1e300, there)
            assert bool(((mine - theirs).masked_fill(~there, 0).abs() <= rough * (1 + theirs.abs())).all())
    return int(other.sum())


@pytest.mark.slow
@pytest.mark.parametrize("scale", SCALES)
def test_ten_thousand_problems(scale):
    seeds = range(-(-PROBLEMS // ROWS))
    different = 0
    for seed in seeds:
        scores, value, price, k, barred = drawn(seed)
        found = compare(scores, value, price, k, scale, barred)
        # Beside prices of 1e12 and 1e30 float64 loses the relevance: there any item of equal value is as good as another.
        different += found if bool((price.abs() < 1e9).all()) else 0
    assert different < PROBLEMS / 100  # elsewhere nearly all choices are the very same items


@pytest.mark.parametrize(("scale", "seed"), list(itertools.product(SCALES, range(1000, 1020))))
def test_both_engines(engine, scale, seed):
    scores, value, price, k, barred = drawn(seed, rows=5)
    compare(scores, value, price, k, scale, barred)


def test_the_exponential_is_as_near_as_it_says():
    numba = pytest.importorskip("numba")
    from spdd.kernels import cpu_stream

    @numba.njit
    def each(x, out):
        for j in range(len(x)):
            out[j] = cpu_stream._exp(x[j])

    x = np.linspace(-86, 0, 200_001, dtype=np.float32)
    each(x, found := np.empty_like(x))
    assert (np.abs(found / np.exp(x.astype(float)) - 1) <= 3e-7 - 1.5e-8 * x).all()
    each(np.float32([-200, -np.inf]), far := np.empty(2, np.float32))
    assert (far < 1e-37).all()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("levels", [2, 1000])
@pytest.mark.parametrize("given", [True, False])
def test_equal_items_come_lowest_number_first(engine, scale, levels, given):
    value = torch.randint(0, levels, (1, 3000), generator=torch.Generator().manual_seed(0)).float() / levels
    value[0, [7, 1900, 2500]] = 1.0
    hidden, table = torch.tensor([[1.0, 1.0]]), torch.zeros(3000, 2)
    table[[7, 1900, 2500]] = 2.0
    scores = Product(hidden, table)
    chosen = priced_topk(hidden @ table.T if given else scores, value, torch.ones(1, 1), 3, scale=scale).items
    assert chosen.tolist() == [[7, 1900, 2500]]


def test_what_is_near_is_settled_by_float64(monkeypatch):
    """Two scores one float32 cannot tell apart; the pass alone would take the first."""
    hidden = torch.ones(1, 2)
    table = torch.tensor([[1.0, 0.0], [1.0, 2.0**-26]] + [[0.0, 0.0]] * 40)
    assert (hidden @ table.T)[0, 0] == (hidden @ table.T)[0, 1]
    assert priced_argmax(Product(hidden, table), torch.zeros(0, 42), torch.zeros(1, 0)).tolist() == [1]


def test_many_equal_items_send_a_row_to_the_definition(monkeypatch):
    ran = []
    full = reference.priced_topk
    monkeypatch.setattr(reference, "priced_topk", lambda *args: ran.append(1) or full(*args))
    scores = Product(torch.ones(2, 1), torch.ones(3000, 1))
    assert priced_argmax(scores, torch.zeros(1, 3000), torch.ones(2, 1)).tolist() == [0, 0]
    assert ran


def test_a_small_group_is_settled_too():
    """Its columns are as many as it has items, also where all scores are looked at."""
    value = torch.zeros(1, 200)
    value[0, 150] = 1
    scores = Product(torch.ones(2, 1), torch.ones(200, 1))
    best = priced.group_best(scores, reference.group_items(value, 2), 3, scale="logit", barred=Barred())
    assert best.items.tolist() == [[0, 1, 2, 150]] * 2
    assert best.group.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("empty", ["no items", "none open"])
@pytest.mark.parametrize("mass", [True, False])
def test_a_group_without_items_keeps_no_block_from_being_quiet(empty, mass, monkeypatch):
    pytest.importorskip("numba")
    from spdd.kernels import cpu_stream

    made = []
    monkeypatch.setattr(cpu_stream, "Stream", lambda *args, new=cpu_stream.Stream: made.append(new(*args)) or made[-1])
    member = torch.arange(3000) % 2
    eligible = None if empty == "no items" else member == 0
    member = torch.zeros(3000, dtype=torch.int64) if empty == "no items" else member
    groups = reference.laid_out(torch.tensor([[0.0], [1.0]]), member)
    scores = torch.randn(2, 3000, generator=torch.Generator().manual_seed(0))
    found = stream.group_topk(scores, groups, 3, Barred(eligible=eligible), mass)
    assert all((one.least > 0).all() for one in made)
    assert made
    open_ = scores if eligible is None else scores.masked_fill(~eligible, -torch.inf)
    assert torch.equal(found.items[:, :3], open_.topk(3).indices)
    assert (found.items[:, 3:] == -1).all()
    if mass:
        torch.testing.assert_close(found.mass[:, 0], open_.double().logsumexp(1), rtol=1e-6, atol=0)


def test_seen_items_are_in_no_probability_and_used_ones_are():
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    nothing, free = torch.zeros(0, 4), torch.zeros(1, 0)
    item = torch.tensor([[0]])
    seen = priced_topk(logits, nothing, free, 1, scale="probability", seen=item)
    used = priced_topk(logits, nothing, free, 1, scale="probability", used=item)
    assert seen.items.tolist() == used.items.tolist() == [[1]]
    torch.testing.assert_close(seen.score, logits[:, 1:].double().softmax(1)[:, :1], rtol=1e-6, atol=0)
    torch.testing.assert_close(used.score, logits.double().softmax(1)[:, 1:2], rtol=1e-6, atol=0)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("levels", [2, 1000])
def test_threads_change_nothing(threads, levels, monkeypatch):
    from spdd.kernels import pool

    g = torch.Generator().manual_seed(1)
    hidden, table = torch.randn(3, 8, generator=g), torch.randn(5000, 8, generator=g)
    value = (torch.rand(1, 5000, generator=g) * levels).floor() / levels
    price, used = torch.rand(3, 1, generator=g), torch.randint(0, 5000, (3, 9), generator=g)
    one = priced_topk(Product(hidden, table), value, price, 7, scale="probability", used=used)
    monkeypatch.setattr(pool, "WORTH", 100)
    monkeypatch.setattr(stream, "PIECE", 2000)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    ran = []
    inside = pool.pool
    monkeypatch.setattr(pool, "pool", lambda n: ran.append(n) or inside(n))
    two = priced_topk(Product(hidden, table), value, price, 7, scale="probability", used=used)
    assert ran == ([2] if threads == 2 else [])
    assert torch.equal(one.items, two.items)
    torch.testing.assert_close(one.score, two.score, rtol=1e-6, atol=1e-9)


def test_torch_keeps_its_threads():
    from spdd.kernels import pool

    before = torch.get_num_threads()
    assert set(pool.pool(2).map(lambda _: torch.get_num_threads(), range(8))) == {1}
    assert torch.get_num_threads() == before


def test_a_table_that_learns_and_strided_scores():
    g = torch.Generator().manual_seed(2)
    table = torch.nn.Parameter(torch.randn(900, 4, generator=g))
    hidden = torch.randn(2, 4, generator=g, requires_grad=True)
    value, price = torch.rand(1, 900, generator=g), torch.rand(2, 1)
    chosen = priced_argmax(Product(hidden, table), value, price)
    assert not chosen.requires_grad
    logits = (hidden @ table.T).detach()
    for same in (logits.T.contiguous().T, logits.repeat(1, 2)[:, :900], logits.repeat_interleave(2, 1)[:, ::2]):
        assert torch.equal(
            priced_argmax(same, (value > 0.5).float(), price), priced_argmax(logits, (value > 0.5).float(), price)
        )


def test_scores_are_not_written_to():
    scores = torch.randn(2, 3000)
    before = scores.clone()
    for value in (torch.rand(1, 3000), (torch.rand(1, 3000) < 0.5).float()):
        for scale in SCALES:
            priced_topk(scores, value, torch.ones(2, 1), 3, scale=scale, seen=torch.tensor([[1, 2], [3, -1]]),
                        eligible=torch.rand(3000) < 0.5)  # fmt: skip
    assert torch.equal(scores, before)


def test_no_rows():
    assert priced_topk(torch.zeros(0, 5), torch.zeros(1, 5), torch.zeros(0, 1), 2).items.shape == (0, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": "odds"}, "`scale` must be one of"),
        ({"k": 0}, "`k` must be a whole number"),
        ({"price": torch.zeros(2, 3)}, "`price` must have shape"),
        ({"price": torch.full((2, 1), torch.inf)}, "`price` must be finite"),
        ({"value": torch.zeros(1, 9)}, "`value` must have a column"),
        ({"value": torch.full((1, 8), torch.nan)}, "`value` must be finite"),
        ({"seen": torch.tensor([[8], [0]])}, "`seen` must name items from 0 to 7"),
        ({"used": torch.tensor([[1.0], [0.0]])}, "`used` must be item numbers"),
        ({"eligible": torch.ones(2, 8, dtype=torch.bool)}, "`eligible` must be bool of shape"),
        ({"scores": Product(torch.zeros(2, 3), torch.zeros(8, 4))}, "equally wide"),
        ({"scores": torch.zeros(2, 8, dtype=torch.int64)}, "must be floats"),
    ],
)
def test_bad_input_is_named(change, message):
    given = {"scores": torch.zeros(2, 8), "value": torch.zeros(1, 8), "price": torch.zeros(2, 1), "k": 1} | change
    with pytest.raises(ValueError, match=message):
        priced_topk(given.pop("scores"), given.pop("value"), given.pop("price"), given.pop("k"), **given)


def test_prepared_values_are_the_same():
    value = torch.rand(2, 700)
    scores, price = torch.randn(4, 700), torch.rand(4, 2)
    assert torch.equal(priced_argmax(scores, prepare(value), price), priced_argmax(scores, value, price))
