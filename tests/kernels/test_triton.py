"""The Triton pass gives what the plain pass gives. Without a GPU it runs in Triton's interpreter: make test-triton"""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_priced import compare
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from spdd.kernels import Barred, Product, priced, reference
from spdd.kernels.reference import Groups, group_items
from spdd.kernels.stream import group_topk

pytestmark = pytest.mark.triton
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COMPILED = Path(__file__).with_name("compiled.py")
PROBLEMS = int(os.environ.get("SPDD_PROBLEMS", "200"))  # a scale; 10000 takes some minutes in the interpreter
ROWS = 50
sys.path.append(str(Path(__file__).parents[1] / "decode"))  # for what stands guard over the loop there


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


def any_problem(seed, rows=ROWS):
    """One of everything that may come, and tiles whose items are barred for everybody."""
    g = torch.Generator().manual_seed(seed)

    def pick(*options):
        return options[int(torch.randint(0, len(options), (1,), generator=g))]

    count, width, levels = pick(1, 2, 63, 507, 1025), pick(1, 5, 16, 20), pick(1, 2, 2, 3, 8)
    hidden, table = torch.randn(rows, width, generator=g), torch.randn(count, width, generator=g)
    if pick(True, False, False):  # exact products, many of them equal
        hidden, table = hidden.round(), (2 * table).round()
    hidden = hidden * pick(1, 1, 20, 1e-4)
    kind = pick(*KINDS)
    if kind == "int8":
        few = pick(torch.float32, torch.float16)
        scores = Product(
            hidden.to(few), (table * 10).clamp(-127, 127).to(torch.int8), torch.rand(count, generator=g) * pick(1, 1e30)
        )
    else:
        scores = Product(hidden.to(kind), table.to(kind))
    objectives = pick(1, 1, 2) if levels < 4 else 1
    value = torch.randint(0, levels, (objectives, count), generator=g).float() / levels
    price = torch.randn(rows, objectives, generator=g) * pick(1, 0.01, 1e-9, 1e12, 0)
    hot = torch.arange(min(count, pick(1, 9, 40))).expand(rows, -1)  # what everybody has seen
    seen = pick(None, torch.randint(-1, count, (rows, 6), generator=g), hot)
    used = pick(None, torch.randint(-1, count, (rows, 4), generator=g), hot[:, :30])
    eligible = pick(None, None, None, torch.rand(count, generator=g) < 0.7, torch.arange(count) == pick(0, count // 2))
    given = (scores.hidden, scores.table, scores.row_scale, value, price, seen, used, eligible)
    hidden, table, row_scale, value, price, *lists = (None if x is None else x.to(DEVICE) for x in given)
    return Product(hidden, table, row_scale), value, price, pick(1, 1, 3, 10), Barred(*lists)


@pytest.mark.parametrize("scale", reference.SCALES)
def test_choices_are_the_definition_s(scale, monkeypatch):
    """PROBLEMS rows of random problems; a different item passes only where float64 cannot tell the two scores apart."""
    from spdd.kernels import gpu

    passes = []
    monkeypatch.setattr(priced, "group_topk", lambda *args: passes.append(1) or gpu.group_topk(*args))
    seeds = range(-(-PROBLEMS // ROWS))
    different = 0
    for seed in seeds:
        scores, value, price, k, barred = any_problem(seed)
        different += compare(scores, value, price, k, scale, barred)
    assert len(passes) == len(seeds)
    print(f"{scale}: {len(seeds) * ROWS} problems, the same items or, {different} times, ones with the same score")


@pytest.mark.skipif(DEVICE == "cuda", reason="tests/decode/test_gpu.py does it there")
@pytest.mark.parametrize("name", ["Greedy", "SPDD", "SPDD as printed", "SPDD from a number", "SPDD two"])
@pytest.mark.parametrize("kind", [torch.float32, torch.float16], ids=str)
def test_whole_slates_are_those_of_written_scores(name, kind, monkeypatch):
    from test_contract import DECODERS, world
    from test_products import Written, drifting, near

    from spdd.decode import products
    from spdd.kernels import gpu

    passes = []
    monkeypatch.setattr(products, "WORTH", 0)
    monkeypatch.setattr(priced, "group_topk", lambda *args: passes.append(1) or gpu.group_topk(*args))
    w, model = world(items=700), drifting(items=700, kind=kind)
    exclude = [list(range(0, 60)), [], [3], [1, 1], list(range(200))]
    ours, theirs = (DECODERS[name](w, 8).generate(x, [[]] * 5, exclude=exclude) for x in (model, Written(model)))
    near(ours, theirs)
    assert len(passes) == 9


def test_nothing_asks_the_device(monkeypatch):
    """The launch is left out: what stands around it takes the ways of a GPU, on a device that has no numbers to ask for."""
    from test_products import NoWaiting, on_meta

    from spdd.kernels import gpu

    with monkeypatch.context() as patch:
        patch.setattr(gpu, "_tile_best", Launched())
        scores, value, _, barred = drawn(7, 1025, 20, 33, 2, torch.float16)
        groups = group_items(value, 8)
        scores, groups, barred = on_meta((scores, groups, barred))
        with NoWaiting():
            for k in (1, 3, 4, 32):
                found = gpu.group_topk(scores, groups, k, barred, True)
                assert found.items.shape == (33, 2 * k)


class Launched:
    """A kernel that does nothing."""

    def __getitem__(self, grid):
        return lambda *args, **named: None


@pytest.mark.parametrize("depth", [3, 32])
def test_forty_two_million_items_take_less_than_a_gigabyte(depth, monkeypatch):
    """What one pass for 128 rows holds at most; not counted is what comes in: the table and a byte per item.

    Values made ready take 13 bytes an item more for one objective (`Groups`, and the values in float64): 546 MB.
    """
    from spdd.kernels import gpu

    monkeypatch.setattr(gpu, "_tile_best", Launched())
    monkeypatch.setattr(gpu, "_multiprocessors", lambda device: 132)
    rows, count = 128, 42_000_000
    here = {"device": "meta"}
    scores = Product(
        torch.empty(rows, 64, dtype=torch.bfloat16, **here), torch.empty(count, 64, dtype=torch.bfloat16, **here)
    )
    member = torch.empty(count, dtype=torch.uint8, **here)
    groups = Groups(torch.empty(2, 1, **here), member, (count // 10 * 9, count // 10), member, member, (0, 0, 0))
    seen, used = (torch.empty(rows, n, dtype=torch.int64, **here) for n in (100, 30))
    with Room() as made:
        gpu.group_topk(scores, groups, depth, Barred(seen, used), True)
    print(f"{made.bytes / 1e6:.0f} MB")
    assert 1 << 20 < made.bytes < {3: 50_000_000, 32: 400_000_000}[depth]


class Room(TorchDispatchMode):
    """The most bytes in storage that operations made and somebody still holds."""

    def __init__(self):
        super().__init__()
        self.held, self.bytes = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(x, torch.Tensor) and not func.is_view:
                storage = x.untyped_storage()
                self.held[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.held = {name: held for name, held in self.held.items() if not held[0].expired()}
        self.bytes = max(self.bytes, sum(size for _, size in self.held.values()))
        return out


def test_all_but_one_excluded():
    from spdd.kernels import gpu

    scores = Product(torch.ones(2, 4, device=DEVICE), torch.ones(300, 4, device=DEVICE))
    value = torch.zeros(1, 300, device=DEVICE)
    only = torch.arange(300, device=DEVICE) == 77
    found = gpu.group_topk(scores, group_items(value, 2), 1, Barred(eligible=only), True)
    assert found.items.tolist() == [[77], [77]]
    torch.testing.assert_close(found.mass, torch.full((2, 1), 4.0, dtype=torch.float64, device=DEVICE))


def compiled(*words):
    asked = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TRITON_INTERPRET": "0"}
    told = subprocess.run([sys.executable, COMPILED, *words], env=asked, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert told.stdout
    return [line.split() for line in told.stdout.splitlines()]


def test_the_compiler_says_it_fits_a_hopper():
    """No GPU is needed to ask: loads run ahead of the products (cp.async), and registers hold what they must."""
    for line in compiled():
        _, size, ahead, spilled = (int(x) for x in line)
        assert ahead > 0
        assert spilled <= {2: 64, 4: 1024}[size], line


def test_shared_memory_is_no_more_than_we_say():
    """At every width, number of groups and type, or at some of them; where there is none too little, a Hopper launches it."""
    from spdd.kernels import gpu

    for line in compiled("shared", "1" if PROBLEMS >= 10_000 else "37"):
        took, said = int(line[-2]), int(line[-1])
        assert took <= said <= gpu.HOPPER, line


@pytest.mark.parametrize("room", [232_448, 101_376, 65_536])
def test_a_setting_fits_or_there_is_none(room):
    """Of a Hopper's shared memory, a desktop's, and an old one's."""
    from spdd.kernels import gpu

    for size, rows, width in itertools.product((2, 4), (1, 16, 33, 128, 500), (1, 64, 80, 256, 512, 1024, 4096)):
        found = gpu.fitting(rows, width, size, size, room)
        if found:
            block, setting = found
            assert gpu.shared(block, width, size, setting, size) <= room
            assert setting.items >= gpu.LEAST_ITEMS
            assert setting.programs >= 1
        assert found or width >= 512
    assert gpu.fitting(16, 64, 2, 2, 232_448) == (16, gpu.SETTINGS[2][16])
    assert gpu.fitting(16, 8192, 4, 4, 232_448) is None


def test_what_fits_nowhere_is_left_to_torch():
    from spdd.kernels import gpu

    def takes(rows, width, groups=2, kind=torch.bfloat16):
        here = {"dtype": kind, "device": "meta"}
        scores = Product(torch.empty(rows, width, **here), torch.empty(9, width, **here))
        return gpu.takes(scores, Groups(None, None, (1,) * groups, None, None, ()))

    assert all(takes(*shape) for shape in ((16, 64), (16, 256), (32, 512), (128, 512)))
    assert takes(128, 512, kind=torch.float32)
    assert not takes(16, 64, groups=gpu.MOST_GROUPS + 1)
    assert not takes(16, 8192, kind=torch.float32)
