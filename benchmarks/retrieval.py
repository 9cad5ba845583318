"""What an approximate index finds of the truly best items, at prices from none to overwhelming, and how long it takes.

Embeddings around 500 tastes with norms that differ as popularity does; queries are noisy items; values are 0/1 by chance, 0/1 tied to
taste, or real on a scale a thousand times that of embeddings. A price of 1 moves the average row's score by as much as logits spread.
"mixed" is the plain index this replaces: the same clusters over [embedding, value] as they come. Made-up data: look at
`Index.recall` on your own table before you trust it.

    python benchmarks/retrieval.py [--items 100000] [--rows 200] [--probes 64] [--threads 1] [--out FILE]
"""

from __future__ import annotations

import time

import numpy as np
import torch

import record
from spdd.kernels import Product, prepare, priced, priced_topk
from spdd.kernels import index as indexes

PRICES = (0.0, 0.1, 1.0, 10.0, 1000.0)
K = 10
ROUNDS = 5


def main():
    options = record.parser(__doc__)
    options.add_argument("--items", type=int, default=100_000)
    options.add_argument("--rows", type=int, default=200)
    options.add_argument("--width", type=int, default=64)
    options.add_argument("--probes", type=int, default=64)
    options.add_argument("--threads", type=int, default=1)
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    g = torch.Generator().manual_seed(args.seed)
    taste = torch.randint(0, 500, (args.items,), generator=g)
    table = torch.randn(500, args.width, generator=g)[taste] + 0.7 * torch.randn(args.items, args.width, generator=g)
    table *= (0.25 * torch.randn(args.items, 1, generator=g)).exp() / 8
    hidden = 8 * table[torch.randint(0, args.items, (args.rows,), generator=g)]
    hidden += 0.5 * torch.randn(args.rows, args.width, generator=g)
    spread = float((hidden @ table.T).std())
    values = {
        "0/1 by chance": (torch.rand(args.items, generator=g) < 0.1).float(),
        "0/1 by taste": (taste % 10 == 0).float(),
        "real, 0 to 100": 100 * torch.rand(args.items, generator=g),
    }
    lines = []
    for name, value in values.items():
        lines += compare(name, table, hidden, value[None], spread, args)
    record.table([readable(line) for line in lines])
    record.write(record.origin("retrieval", args), lines, args.out)


def compare(name, table, hidden, value, spread, args) -> list[dict]:
    ready, product = prepare(value), Product(hidden, table)
    product = product._replace(longest=priced.longest(product))
    prices = [torch.full((len(hidden), 1), spread / float(value.std()) * price) for price in PRICES]
    exact = [timed(lambda price=price: priced_topk(product, ready, price, K)) for price in prices]
    lines = [{"values": name, "way": "exact", "build_s": 0.0, "recall": [1.0] * len(PRICES), **each(exact, hidden)}]
    for way in ("ivf", "hnsw", "mixed"):
        began = time.perf_counter()
        index = Mixed(table, value, probes=args.probes) if way == "mixed" else None
        index = index or indexes.Index(table, value, kind=way, probes=args.probes)
        build = time.perf_counter() - began
        found = [timed(lambda price=price, index=index: index.topk(hidden, price, K)) for price in prices]
        recall = [share(one.items, other.items) for (_, one), (_, other) in zip(exact, found, strict=True)]
        lines.append({"values": name, "way": way, "build_s": build, "recall": recall, **each(found, hidden)})
    return lines


class Mixed(indexes.Index):
    """What faiss does when it is simply handed [embedding, value]: its own clusters, chosen by their own centres."""

    def _clusters(self, items, lists, seed):
        faiss = indexes.imported()
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(items.shape[1]), items.shape[1], lists, faiss.METRIC_INNER_PRODUCT)
        items = torch.cat([items[:, : -len(self.value)], self.value.T.float()], 1).contiguous()
        self.unit = torch.ones_like(self.unit)
        index.train(items.numpy())
        index.add(items.numpy())
        return index, torch.from_numpy(index.quantizer.reconstruct_n(0, lists))


def timed(run):
    """Seconds of ROUNDS runs, and what the last of them found."""
    run()
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        found = run()
        took.append(time.perf_counter() - began)
    return took, found


def each(runs, hidden) -> dict:
    """Milliseconds of a row, the mean over prices of each round: the median, the quartiles and the least of rounds."""
    rounds = 1e3 * np.mean([took for took, _ in runs], 0) / len(hidden)
    low, middle, high = np.percentile(rounds, [25, 50, 75])
    return {
        "ms_a_row": float(middle),
        "quartiles_ms_a_row": [float(low), float(high)],
        "least_ms_a_row": float(rounds.min()),
    }


def share(exact, found) -> float:
    return float((exact[:, :, None] == found[:, None]).any(2).double().mean())


def readable(line: dict) -> dict:
    at = {f"price {price:g}": f"{x:.3f}" for price, x in zip(PRICES, line["recall"], strict=True)}
    return {
        "values": line["values"],
        "way": line["way"],
        **at,
        "ms a row": f"{line['ms_a_row']:.3f}",
        "quartiles": " to ".join(f"{x:.3f}" for x in line["quartiles_ms_a_row"]),
        "build s": f"{line['build_s']:.1f}",
    }


if __name__ == "__main__":
    main()
