"""The item step at this machine's floor: priced arg-max over given logits, and from hidden states and an item table.

Variants take turns in one process, order drawn anew each round, threads pinned, each run once before. `x floor` is the median over
rounds of the ratio to the floor of the same round: one read of the logits, or of the table on a GPU and the bare matrix
product on a CPU. Before anything is timed, choices are compared with the definition on a few rows.

    python benchmarks/kernels.py [--items 1000000] [--rows 32] [--width 64] [--threads 2] [--rounds 9] [--out FILE]
    python benchmarks/kernels.py --dtype bfloat16 --items 42000000 1000000 --rows 16 64 128 --width 64 80    on a GPU
"""

from __future__ import annotations

import importlib.util
import time

import numpy as np
import torch

import record
from spdd.kernels import Barred, Product, prepare, priced, priced_argmax, reference

SEEN, USED, WANTED = 100, 30, 0.1
EAGER = 1 << 33  # bytes of scores up to which eager torch is run beside ours


def main():
    options = record.parser(__doc__)
    options.add_argument("--items", type=int, nargs="+", default=[1_000_000])
    options.add_argument("--rows", type=int, nargs="+", default=[32])
    options.add_argument("--width", type=int, nargs="+", default=[64])
    options.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float32")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument(
        "--compiled", action="store_true", help="torch.compile beside ours; on a CPU it needs a compiler"
    )
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    results = []
    for items in args.items:
        for width in args.width:
            for rows in args.rows:
                results += compare(rows, items, width, device, args)
    record.table([readable(line) for line in results])
    lost = [line for line in results if line["peer"] and line["over_ours"] < 1]
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
    value = (torch.rand(1, items, generator=g, device=device) < WANTED).float()
    ready, price = prepare(value), torch.rand(rows, 1, generator=g, device=device)
    seen, used = (torch.randint(0, items, (rows, n), generator=g, device=device) for n in (SEEN, USED))
    product = Product(hidden, table)
    product = product._replace(longest=priced.longest(product))
    check(product, ready, price, seen, used)
    small = price * 1e-4  # on the probability scale a chance is about one in M
    lists = {"seen": seen, "used": used}
    variants = {
        "table: ours, logit": lambda: priced_argmax(product, ready, price, **lists),
        "table: ours, probability": lambda: priced_argmax(product, ready, small, scale="probability", **lists),
    }
    fits = 4 * rows * items <= EAGER
    floor = {}
    if device == "cuda":
        floor["table"] = "table: read"
        variants["table: read"] = lambda: table.view(torch.int16 if table.element_size() == 2 else torch.int32).amax()
    elif fits:
        floor["table"] = "table: product alone"
        variants["table: product alone"] = lambda: hidden @ table.T
    if fits:

        def eager(logits, cost, scale):
            scores = logits.softmax(1) if scale == "probability" else logits
            scores = scores + cost * value
            return scores.scatter(1, seen, -torch.inf).scatter(1, used, -torch.inf).argmax(1)

        variants["table: eager, logit"] = lambda: eager((hidden @ table.T).float(), price, "logit")
        variants["table: eager, probability"] = lambda: eager((hidden @ table.T).float(), small, "probability")
        if args.compiled:
            compiled = torch.compile(eager)
            variants["table: compiled, logit"] = lambda: compiled((hidden @ table.T).float(), price, "logit")
            variants["table: compiled, probability"] = lambda: compiled(
                (hidden @ table.T).float(), small, "probability"
            )
        logits = (hidden @ table.T).float()
        floor["logits"] = "logits: read"
        variants["logits: read"] = lambda: logits.amax(1)
        variants["logits: ours, logit"] = lambda: priced_argmax(logits, ready, price, **lists)
        variants["logits: ours, probability"] = lambda: priced_argmax(
            logits, ready, small, scale="probability", **lists
        )
        variants["logits: eager, logit"] = lambda: eager(logits, price, "logit")
        variants["logits: eager, probability"] = lambda: eager(logits, small, "probability")
    if device == "cpu" and args.dtype == "float32" and importlib.util.find_spec("faiss"):
        import faiss  # a flat index over [embedding, value]: the same inner product, without exclusions

        faiss.omp_set_num_threads(args.threads)
        index = faiss.IndexFlatIP(width + 1)
        index.add(torch.cat([table, value.T], 1).numpy())
        query = torch.cat([hidden, price], 1).numpy()
        variants["table: faiss flat, logit, no exclusions"] = lambda: index.search(query, 1)
    taken = timed(variants, args.rounds, args.seed, device)
    lines = []
    for name, seconds in taken.items():
        source, _, what = name.partition(": ")
        ours = f"{source}: ours, {'probability' if 'probability' in what else 'logit'}"
        low, middle, high = np.percentile(seconds, [25, 50, 75])
        lines.append(
            {
                "rows": rows, "items": items, "width": width, "variant": name, "ms": 1e3 * middle,
                "quartiles_ms": [1e3 * low, 1e3 * high],
                "over_floor": ratio(seconds, taken[floor[source]]) if source in floor else None,
                "over_ours": ratio(seconds, taken[ours]),
                "peer": any(word in what for word in ("eager", "compiled", "faiss")),
            }
        )  # fmt: skip
    return lines


def timed(variants, rounds, seed, device) -> dict[str, np.ndarray]:
    for run in variants.values():
        run()
    seconds = {name: [] for name in variants}
    order = np.random.default_rng(seed)
    for _ in record.progress(range(rounds), "rounds"):
        for name in order.permutation(list(variants)):
            if device == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            variants[name]()
            if device == "cuda":
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - began)
    return {name: np.array(x) for name, x in seconds.items()}


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
        "x floor": "" if line["over_floor"] is None else f"{line['over_floor']:.2f}",
        "x ours": f"{line['over_ours']:.2f}",
    }


if __name__ == "__main__":
    main()
