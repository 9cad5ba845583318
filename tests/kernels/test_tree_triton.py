"""The tree step in Triton gives what plain torch gives. Without a GPU it runs in Triton's interpreter: make test-triton"""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import spdd
from spdd.catalog import Catalog
from spdd.engines import rows as at
from spdd.engines.menu import Menu
from spdd.engines.plan import Plan
from spdd.kernels import tree as plain

pytestmark = pytest.mark.triton
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Objective = spdd.Objective

VALUES = {
    "none": lambda rng, M: {},
    "two": lambda rng, M: {"new": rng.random(M) < 0.2, "old": rng.random(M) < 0.5},
    "real": lambda rng, M: {"new": rng.random(M), "old": rng.random(M)},
}
CASES = [
    ("none", 63, 3, 6, {}),
    ("two", 63, 3, 6, {"between": (1, 2), "end": 0}),
    ("two", 507, 2, 9, {"end": 0}),
    ("two", 40, 1, 80, {}),
    ("real", 63, 3, 6, {"between": (1,)}),
    ("real", 900, 2, 5, {"end": 0}),
]


def policies(menu, slots):
    if not menu.columns:
        return [spdd.Greedy(slots=slots)]
    most = np.sort(menu.column("new"))[-slots:].sum()
    new = Objective("new", "new", at_least=0.5 * most)
    return [
        spdd.Greedy(slots=slots),
        spdd.SPDD([new], slots=slots),
        spdd.MustFill([Objective("new", "new", at_most=0.7 * slots)], slots=slots),
        spdd.SPDD([new], slots=slots, start=2.0, rate=1.0, guard=False),
        spdd.SPDD([new, Objective("old", "old", at_most=0.6 * slots)], slots=slots, start=1.0, pace="remaining"),
    ]


@pytest.mark.parametrize(("kind", "items", "depth", "size", "words"), CASES)
def test_every_step_is_that_of_plain_torch(kind, items, depth, size, words):
    from spdd.kernels import tree_gpu

    rng = np.random.default_rng(items)
    catalog = Catalog.of(rng.integers(0, size, (items, depth)), sizes=[size] * depth)
    menu = Menu.of(catalog, first=3, columns=VALUES[kind](rng, items), **words)
    parts = [Plan.of(menu, p).begin(2, [[], rng.choice(items, 20, replace=False)]) for p in policies(menu, 4)]
    rows = at.to(at.join(menu, parts), DEVICE)
    tree = plain.Tree(*(x.to(DEVICE) if isinstance(x, torch.Tensor) else x for x in menu.tensors))
    for step in range(menu.length(4) + 2):
        logits = torch.from_numpy(rng.normal(size=(len(rows), menu.vocabulary + 5))).to(DEVICE)
        logits[::3][torch.from_numpy(rng.random(logits[::3].shape) < 0.2)] = -torch.inf
        logits = logits if step % 2 else logits.float()
        want = plain.scores(tree, rows.terms, rows.stand, logits)
        found = tree_gpu.scores(tree, rows.terms, rows.stand, logits)
        torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-9 if step % 2 else 1e-6)
        tokens = want.argmax(1)
        tokens[step % 5 :: 11] = -1  # nothing was written
        if step > 2:
            tokens[step % 7 :: 13] = int(rng.integers(0, menu.vocabulary + 5))  # anything was
        after = plain.advance(tree, rows.terms, rows.stand, tokens)
        mine = tree_gpu.advance(tree, rows.terms, rows.stand, tokens)
        lost = after.over == at.LOST
        for name, theirs, own in zip(plain.Stand._fields, after, mine, strict=True):
            keep = (
                ~lost if name in ("node", "place") else torch.ones_like(lost)
            )  # where a lost row stands is nobody's business
            torch.testing.assert_close(
                own[keep], theirs[keep], rtol=1e-12, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}"
            )
        rows = at.Rows(rows.terms, after, rows.asked)


COMPILE = """
import numpy as np, torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from spdd.catalog import Catalog
from spdd.engines import rows as at
from spdd.engines.menu import Menu
from spdd.engines.plan import Plan
from spdd.kernels import tree_gpu

KINDS = {
    torch.int32: "*i32", torch.int64: "*i64", torch.uint8: "*u8", torch.bool: "*i1", torch.float64: "*fp64",
    torch.float32: "*fp32", torch.bfloat16: "*bf16",
}

class Compiled:
    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return self.compile

    def compile(self, *args, num_warps, **constants):
        names = self.kernel.arg_names
        kinds = {n: KINDS[x.dtype] if isinstance(x, torch.Tensor) else "i32" for n, x in zip(names, args)}
        source = ASTSource(
            fn=self.kernel, signature=kinds | dict.fromkeys(constants, "constexpr"),
            constexprs={(names.index(n),): x for n, x in constants.items()},
        )
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": num_warps})
        print(self.kernel.__name__, len(made.asm["cubin"]) > 1000)

tree_gpu._scores, tree_gpu._advance = Compiled(tree_gpu._scores), Compiled(tree_gpu._advance)
rng = np.random.default_rng(0)
for columns in ({}, {"new": rng.random(900) < 0.1}, {"new": rng.random(900), "old": rng.random(900)}):
    menu = Menu.of(Catalog.of(rng.integers(0, 256, (900, 3)), sizes=[256] * 3), first=0, columns=columns)
    policy = {"slots": 10, "objectives": [{"name": name, "at_least": 1} for name in columns]}
    rows = at.to(Plan.of(menu, policy).begin(2), "cpu")
    for kind in (torch.float32, torch.bfloat16):
        tree_gpu.scores(menu.tensors, rows.terms, rows.stand, torch.zeros(2, 800, dtype=kind))
    tree_gpu.advance_(menu.tensors, rows.terms, rows.stand, torch.zeros(2, dtype=torch.int64))
"""


@pytest.mark.slow
def test_both_kernels_compile_for_a_gpu_that_is_not_here(tmp_path):
    """The interpreter runs more than the compiler takes. What they are handed is what they are compiled for."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["_scores", "True", "_scores", "True", "_advance", "True"] * 3
