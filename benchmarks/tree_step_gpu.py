"""What a step along a tree of ids costs on a GPU, played back from a CUDA graph: mask, price and next state of all rows.

140 rows, 1M ids of 3 tokens, V = 256 and 2048. Each graph holds one operation many times over; a time is that of one, the least
and the median over rounds, variants in an order drawn anew each round. `advance` changes rows in place, so each one in a graph
is preceded by putting them back; what putting back costs alone is measured beside it and taken off.

    fill          writing -inf to a (R, V) matrix, alone: what any dense mask costs at least
    mask          Triton, nothing promised: legal tokens, log p over the children, used items out
    one floor     Triton, a floor on a 0/1 value: the same, and a price and a guard on every child
    advance       Triton, the next state from the tokens written
    torch         `one floor` in plain torch, operation by operation
    torch advance the next state in plain torch

Levels are 0 (first token of an item), 1, and 2 (last token), after two items each. Triton is held against plain torch before
anything is timed. Without a GPU that is all it does, under TRITON_INTERPRET=1, and it says so.

    python benchmarks/tree_step_gpu.py [--rows 140] [--items 1000000] [--rounds 100] [--out FILE]
"""

from __future__ import annotations

import sys

import numpy as np
import torch

import record
from spdd.catalog import Catalog
from spdd.engines import rows as at
from spdd.engines.menu import Menu
from spdd.engines.plan import Plan
from spdd.kernels import tree as plain
from spdd.kernels import tree_gpu

L, SLOTS, REPEAT = 3, 10, 20
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FLOOR = [{"name": "new", "at_least": 3}]


def main():
    options = record.parser(__doc__)
    options.add_argument("--rows", type=int, default=140)
    options.add_argument("--items", type=int, default=1_000_000)
    options.add_argument("--rounds", type=int, default=100)
    args = options.parse_args()
    rng, results = np.random.default_rng(args.seed), []
    for size in (256, 2048):
        ids = rng.integers(0, size, (args.items, L))
        columns = {"new": rng.random(args.items) < 0.1}
        menu = Menu.of(Catalog.of(ids, sizes=[size] * L), words=[np.arange(size)] * L, columns=columns)
        tree = plain.Tree(*(x.to(DEVICE) if isinstance(x, torch.Tensor) else x for x in menu.tensors))
        for level in range(L):
            found = compare(menu, tree, size, level, rng, args)
            results += [{"V": size, "level": level, **line} for line in found]
    if DEVICE == "cpu":
        sys.exit("Triton gives what plain torch gives, in its interpreter. To measure, run this beside a CUDA device.")
    record.table([{k: f"{x:.2f}" if isinstance(x, float) else str(x) for k, x in line.items()} for line in results])
    about = record.origin("tree_step_gpu", args)
    about["machine"] += f", {torch.cuda.get_device_name()}"
    record.write(about, results, args.out)


def compare(menu: Menu, tree: plain.Tree, size: int, level: int, rng, args) -> list[dict]:
    written = menu.spell(rng.choice(len(menu), (args.rows, 3), replace=False).ravel()).reshape(args.rows, -1)
    rows = {
        name: at.to(
            at.advance(
                menu,
                Plan.of(menu, {"slots": SLOTS, "objectives": wanted}).begin(args.rows),
                written[:, : 2 * L + level],
            ),
            DEVICE,
        )
        for name, wanted in (("mask", []), ("one floor", FLOOR))
    }
    logits = torch.from_numpy(rng.normal(size=(args.rows, size)).astype(np.float32)).to(DEVICE)
    out, floor = torch.empty_like(logits), rows["one floor"]
    for r in rows.values():
        want = plain.scores(tree, r.terms, r.stand, logits)
        torch.testing.assert_close(tree_gpu.scores(tree, r.terms, r.stand, logits), want, rtol=1e-5, atol=1e-5)
        tokens = want.argmax(1)
        pair = (step(tree, r.terms, r.stand, tokens) for step in (plain.advance, tree_gpu.advance))
        for name, theirs, own in zip(plain.Stand._fields, *pair, strict=True):
            torch.testing.assert_close(own, theirs, rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")
    if DEVICE == "cpu":
        return []
    stand = plain.Stand(*(x.clone() for x in floor.stand))

    def put_back():
        for here, there in zip(stand, floor.stand, strict=True):
            here.copy_(there)

    def in_place():
        put_back()
        tree_gpu.advance_(tree, floor.terms, stand, tokens)

    variants = {
        "fill": lambda: out.fill_(-torch.inf),
        **{name: lambda r=r: tree_gpu.scores(tree, r.terms, r.stand, logits, out) for name, r in rows.items()},
        "put back": put_back,
        "advance": in_place,
        "torch": lambda: plain.scores(tree, floor.terms, floor.stand, logits),
        "torch advance": lambda: plain.advance(tree, floor.terms, floor.stand, tokens),
    }
    graphs = {name: captured(run) for name, run in variants.items()}
    micros = {name: [] for name in graphs}
    order = np.random.default_rng(args.seed)
    for _ in range(args.rounds):
        for name in order.permutation(list(graphs)):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graphs[name].replay()
            end.record()
            end.synchronize()
            micros[name].append(1e3 * begin.elapsed_time(end) / REPEAT)
    least = {name: min(x) for name, x in micros.items()}
    median = {name: float(np.median(x)) for name, x in micros.items()}
    for told in (least, median):
        told["advance"] -= told.pop("put back")
    return [{"variant": name, "us": median[name], "least_us": least[name]} for name in median]


def captured(run) -> torch.cuda.CUDAGraph:
    """A graph that does it many times over. Capturing fails where anything waits for the device."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEAT):
            run()
    return graph


if __name__ == "__main__":
    main()
