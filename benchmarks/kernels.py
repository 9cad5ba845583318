"""The item step at this machine's floor: priced arg-max over given logits, and from hidden states and an item table.

Variants take turns in one process, order drawn anew each round, threads pinned, each run once before. Before each run 10 ms of rest:
torch's threads spin for some milliseconds after every operation, and would be charged to whoever comes next. `x floor` is the median
over rounds of the ratio to the floor of the same round: one read of the logits, or of the table on a GPU, and on a CPU the bare matrix
product, a few thousand items at a time into memory that is used again. "product into new memory" writes every score down, as
eager torch has to: not a floor, but what torch can do at best. `cpu` is processor time of all threads, which other programs
disturb less. Before anything is timed, choices are compared with the definition on a few rows.

"eager" is what one writes in torch: seen items masked with -inf, softmax where the scale needs it, price · value added, used items
masked, argmax. "compiled" is the same through torch.compile, where there is a C++ compiler.

    python benchmarks/kernels.py [--items 1000000] [--rows 32] [--width 64] [--threads 2] [--rounds 9] [--out FILE]
    python benchmarks/kernels.py --dtype bfloat16 --items 42000000 1000000 --rows 16 64 128 --width 64 80    on a GPU
"""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch

import record
from spdd.kernels import Barred, Product, pool, prepare, priced, priced_argmax, reference, stream

SEEN, USED, WANTED = 100, 30, 0.1
OURS = [(scale, "0/1") for scale in reference.SCALES]
OURS += [(scale, what) for what in ("8 levels", "real") for scale in ("logit", "probability")]
THEIRS = [(scale, "0/1") for scale in ("logit", "relative", "probability")]
THEIRS += [(scale, "real") for scale in ("logit", "probability")]
REST = 0.01  # seconds before each run
EAGER = 1 << 33  # bytes of scores up to which eager torch is run beside ours


def main():
    options = record.parser(__doc__)
    options.add_argument("--items", type=int, nargs="+", default=[1_000_000])
    options.add_argument("--rows", type=int, nargs="+", default=[32])
    options.add_argument("--width", type=int, nargs="+", default=[64])
    options.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float32")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--compiled", action="store_true", help="torch.compile beside ours; needs a C++ compiler")
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    results = first_calls() if device == "cpu" else []
    for items in args.items:
        for width in args.width:
            for rows in args.rows:
                results += compare(rows, items, width, device, args)
    record.table([readable(line) for line in results if "over_ours" in line])
    lost = [line for line in results if line.get("peer") and line["over_ours"] < 1]
    for line in lost:
        print(f"a peer is faster: {line['variant']} at {line['rows']} x {line['items']:,} x {line['width']}")
    record.write(record.origin("kernels", args), results, args.out)


def compare(rows: int, items: int, width: int, device: str, args) -> list[dict]:
    g = torch.Generator(device).manual_seed(args.seed)

    def drawn(*shape):
        return torch.randn(*shape, generator=g, device=device)

    dtype = getattr(torch, args.dtype)
    hidden = drawn(rows, width).to(dtype)
    table = torch.cat([drawn(min(1 << 20, items - at), width).to(dtype) / 8 for at in range(0, items, 1 << 20)])
    drawn_value = torch.rand(1, items, generator=g, device=device)
    value = {"0/1": (drawn_value < WANTED).float(), "8 levels": (8 * drawn_value).floor() / 8, "real": drawn_value}
    ready = {name: prepare(x) for name, x in value.items()}
    price = torch.rand(rows, 1, generator=g, device=device)
    seen, used = (torch.randint(0, items, (rows, n), generator=g, device=device) for n in (SEEN, USED))
    product = Product(hidden, table)
    product = product._replace(longest=priced.longest(product))
    check(product, ready["0/1"], price, seen, used)
    small = price * 1e-4  # on the probability scale a chance is about one in M
    cost = {"logit": price, "relative": price, "log_probability": price, "probability": small}

    def ours(scores, scale, what):
        return lambda: priced_argmax(scores, ready[what], cost[scale], scale=scale, seen=seen, used=used)

    def eager(logits, cost, value, scale):
        scores = logits.scatter(1, seen, -torch.inf)
        if scale != "logit":
            scores = scores.softmax(1) if scale == "probability" else (scores - scores.amax(1, keepdim=True)).exp()
        return (scores + cost * value).scatter(1, used, -torch.inf).argmax(1)

    variants = {}
    for scale, what in OURS:
        variants[f"table: ours, {scale}, {what}"] = ours(product, scale, what)
    fits = 4 * rows * items <= EAGER
    floor = {}
    if device == "cuda":
        floor["table"] = "table: read"
        variants["table: read"] = lambda: table.view(torch.int16 if table.element_size() == 2 else torch.int32).amax()
    else:
        floor["table"] = "table: product alone"
        variants["table: product alone"] = lambda: multiplied(hidden, table)
        if fits:
            variants["table: product into new memory"] = lambda: hidden @ table.T
    if fits:
        logits = (hidden @ table.T).float()
        floor["logits"] = "logits: read"
        variants["logits: read"] = lambda: read(logits)
        for scale, what in OURS:
            variants[f"logits: ours, {scale}, {what}"] = ours(logits, scale, what)
        ways = {"eager": eager} | ({"compiled": torch.compile(eager)} if args.compiled else {})
        for name, way in ways.items():
            for scale, what in THEIRS:
                worth = value[what]
                variants[f"logits: {name}, {scale}, {what}"] = lambda w=way, s=scale, v=worth: w(logits, cost[s], v, s)
                if scale != "relative":
                    variants[f"table: {name}, {scale}, {what}"] = lambda w=way, s=scale, v=worth: w(
                        (hidden @ table.T).float(), cost[s], v, s
                    )
    if device == "cpu" and args.dtype == "float32" and importlib.util.find_spec("faiss"):
        import faiss  # a flat index over [embedding, value]: the same inner product, without exclusions

        faiss.omp_set_num_threads(args.threads)
        index = faiss.IndexFlatIP(width + 1)
        index.add(torch.cat([table, value["0/1"].T], 1).numpy())
        query = torch.cat([hidden, price], 1).numpy()
        variants["table: faiss flat without exclusions, logit, 0/1"] = lambda: index.search(query, 1)
    taken = timed(variants, args.rounds, args.seed, device)
    lines = []
    for name, (seconds, busy) in taken.items():
        source, _, what = name.partition(": ")
        scale = next((s for s in cost if f", {s}," in what), "logit")
        peer = any(word in what for word in ("eager", "compiled", "faiss"))
        # A peer stands beside ours on the same values; ours among themselves, and what has no values, beside the 0/1 case.
        same = taken[f"{source}: ours, {scale}, {'real' if peer and what.endswith('real') else '0/1'}"]
        ground = taken.get(floor.get(source))
        low, middle, high = np.percentile(seconds, [25, 50, 75])
        lines.append(
            {
                "rows": rows, "items": items, "width": width, "variant": name, "ms": 1e3 * middle,
                "quartiles_ms": [1e3 * low, 1e3 * high], "least_ms": 1e3 * float(seconds.min()),
                "cpu_ms": 1e3 * float(np.median(busy)),
                "over_floor": ratio(seconds, ground[0]) if ground else None,
                "cpu_over_floor": ratio(busy, ground[1]) if ground else None,
                "over_ours": ratio(seconds, same[0]), "cpu_over_ours": ratio(busy, same[1]),
                "peer": peer,
            }
        )  # fmt: skip
    return lines


def multiplied(hidden, table):
    """Every score once, none of them kept: the floor of all that come from hidden states and a table, on a CPU."""
    step = max(64, stream.PIECE // max(1, len(hidden)))

    def work(first, end):
        room = torch.empty(len(hidden) * step, dtype=hidden.dtype)
        for at in range(first, end, step):
            part = table[at : min(at + step, end)]
            torch.mm(hidden, part.T, out=room[: len(hidden) * len(part)].view(len(hidden), len(part)))

    pool.in_parts(work, len(hidden), len(table), 512, table.device)


def read(scores):
    """Every score once, on as many threads as torch has: the floor of all that are given."""
    if scores.is_cuda or not importlib.util.find_spec("numba"):
        return scores.amax()
    line = scores.view(-1).numpy()
    return sum(pool.in_parts(lambda first, end: summed()(line[first:end]), 1, len(line), 512, scores.device))


@functools.cache
def summed():
    import numba

    @numba.njit(nogil=True, fastmath=True)
    def total(x):
        found = np.float32(0)
        for j in range(len(x)):
            found += x[j]
        return found

    return total


def first_calls() -> list[dict]:
    """What the first choice of a process costs beyond a later one, where nothing is compiled yet and where all is."""
    if not importlib.util.find_spec("numba"):
        return []
    program = """if True:
        import time, torch
        torch.set_num_threads(1)
        from spdd.kernels import priced_argmax
        took = []
        for _ in range(3):
            began = time.perf_counter()
            priced_argmax(torch.zeros(2, 100), torch.ones(1, 100), torch.ones(2, 1), scale="probability")
            took.append(time.perf_counter() - began)
        print(took[0] - min(took[1:]))"""
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for what in ("nothing compiled", "compiled before"):
            done = subprocess.run(
                [sys.executable, "-c", program],
                env={**os.environ, "NUMBA_CACHE_DIR": folder}, capture_output=True, text=True, check=True,
            )  # fmt: skip
            lines.append({"variant": f"first call, {what}", "seconds": float(done.stdout)})
            print(f"{lines[-1]['variant']}: {lines[-1]['seconds']:.2f} s")
    return lines


def timed(variants, rounds, seed, device) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Seconds by the clock and of processor time: (rounds,) each."""
    for run in variants.values():
        run()
    taken = {name: [] for name in variants}
    order = np.random.default_rng(seed)
    for _ in record.progress(range(rounds), "rounds"):
        for name in order.permutation(list(variants)):
            time.sleep(REST)
            if device == "cuda":
                torch.cuda.synchronize()
            began, busy = time.perf_counter(), time.process_time()
            variants[name]()
            if device == "cuda":
                torch.cuda.synchronize()
            taken[name].append((time.perf_counter() - began, time.process_time() - busy))
    return {name: tuple(np.array(x).T) for name, x in taken.items()}


def ratio(one, other) -> float:
    """Rounds are pairs: the ratio inside a round is steadier than that of two medians on a busy machine."""
    return float(np.median(one / other))


def check(product, ready, price, seen, used):
    """The choices are the definition's, on as many rows as fit."""
    few = max(1, min(2, len(price)))
    mine = product._replace(hidden=product.hidden[:few])
    for scale, cost in (("logit", price[:few]), ("probability", 1e-4 * price[:few])):
        ours = priced_argmax(mine, ready, cost, scale=scale, seen=seen[:few], used=used[:few])
        barred = Barred(seen[:few], used[:few])
        assert torch.equal(ours, reference.priced_topk(mine, ready.value, cost, 1, scale, barred).items[:, 0])


def readable(line: dict) -> dict:
    low, high = line["quartiles_ms"]
    return {
        "variant": line["variant"],
        "shape": f"{line['rows']} x {line['items']:,} x {line['width']}",
        "ms": f"{line['ms']:.2f}",
        "quartiles": f"{low:.2f} to {high:.2f}",
        "least": f"{line['least_ms']:.2f}",
        "cpu": f"{line['cpu_ms']:.2f}",
        "x floor": "" if line["over_floor"] is None else f"{line['over_floor']:.2f}",
        "cpu x floor": "" if line["cpu_over_floor"] is None else f"{line['cpu_over_floor']:.2f}",
        "x ours": f"{line['over_ours']:.2f}",
    }


if __name__ == "__main__":
    main()
