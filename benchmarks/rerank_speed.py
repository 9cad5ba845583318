"""Is a decoder free where scores stand still? Against `torch.topk` on the same matrix, in one process.

One floor on 0/1 values, K = 10, 256 rows. Variants take turns (order drawn anew each round), threads are pinned:

    topk    torch.topk of the scores alone: what plain decoding costs at least
    rerank  `SPDD.rerank`: checks, warm price, guard, prices, status, slate
    greedy  `Greedy.rerank`: the same front door without an objective
    dense   the loop as printed, all M scores priced anew in every slot (timed on fewer rows, said per 256)

Before anything is timed, the slates of `rerank` are compared with those of the dense reference under the same prices
and guard, and their number of wanted items with the floor. Fails (exit 1) where `rerank` takes more than twice `topk`'s time.

    python benchmarks/rerank_speed.py [--rows 256] [--items 10000 100000] [--threads 1] [--rounds 30] [--out FILE]
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch

import record
import spdd

SLOTS, FLOOR, WANTED = 10, 3, 0.1
MOST = 2.0  # times topk: the promise
DENSE_ROWS = 32  # the dense loop is slow: time fewer rows and scale up


def main():
    options = record.parser(__doc__)
    options.add_argument("--rows", type=int, default=256)
    options.add_argument("--items", type=int, nargs="+", default=[10_000, 100_000])
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--rounds", type=int, default=30)
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    results = [line for items in args.items for line in compare(items, args)]
    record.table([readable(line) for line in results])
    record.write(record.origin("rerank_speed", args), results, args.out)
    slow = [line for line in results if line["variant"] == "rerank" and line["over_topk"] > MOST]
    sys.exit("\n".join(f"{x['items']:,} items: {x['over_topk']:.2f} times topk, promised {MOST:g}" for x in slow) or 0)


def compare(items: int, args) -> list[dict]:
    random = torch.Generator().manual_seed(args.seed)
    scores = torch.randn(args.rows, items, generator=random)
    wanted = (torch.rand(items, generator=random) < WANTED).float()
    few = scores[:DENSE_ROWS]
    decoder = spdd.SPDD([spdd.Objective("wanted", wanted, at_least=FLOOR)], slots=SLOTS)
    greedy = spdd.Greedy(slots=SLOTS)
    check(decoder, scores, few, wanted)
    variants = {
        "topk": (lambda: scores.topk(SLOTS, 1), 1.0),
        "rerank": (lambda: decoder.rerank(scores), 1.0),
        "greedy": (lambda: greedy.rerank(scores), 1.0),
        "dense": (lambda: dense(few, wanted), args.rows / len(few)),
    }
    for run, _ in variants.values():
        run()
    seconds = {name: [] for name in variants}
    order = np.random.default_rng(args.seed)
    for _ in record.progress(range(args.rounds), f"{items:,} items"):
        for name in order.permutation(list(variants)):
            run, times = variants[name]
            began = time.perf_counter()
            run()
            seconds[name].append(times * (time.perf_counter() - began))
    lines = []
    for name, taken in seconds.items():
        low, middle, high = np.percentile(taken, [25, 50, 75])
        # Rounds are pairs: the ratio inside a round is steadier than that of two medians on a busy machine.
        ratio = float(np.median(np.array(taken) / np.array(seconds["topk"])))
        lines.append(
            {
                "items": items,
                "variant": name,
                "ms": 1e3 * middle,
                "quartiles_ms": [1e3 * low, 1e3 * high],
                "over_topk": ratio,
            }
        )
    return lines


def check(decoder, scores, few, wanted):
    """The fast path is right before it is timed: same slates as the dense path, every floor kept."""
    slate = decoder.rerank(scores)
    assert (slate.gained[:, 0] >= FLOOR).all()
    # A value per row (R, M) has no groups to share: it takes the dense path.
    own = spdd.Objective("wanted", wanted.expand(len(few), -1).contiguous(), at_least=FLOOR)
    assert torch.equal(spdd.SPDD([own], slots=SLOTS).rerank(few).items, slate.items[: len(few)])


def dense(scores, wanted, rate=0.3, start=1.0):
    """Algorithm 1 as printed, on logits: (R, K) items."""
    scores = scores.clone()
    price = torch.full((len(scores), 1), start)
    chosen = []
    for _ in range(SLOTS):
        item = (scores + price * wanted).argmax(1, keepdim=True)
        chosen.append(item)
        scores.scatter_(1, item, -torch.inf)
        price = price * torch.exp(-rate * (wanted[item] - FLOOR / SLOTS))
    return torch.cat(chosen, 1)


def readable(line: dict) -> dict:
    low, high = line["quartiles_ms"]
    return {
        "variant": line["variant"],
        "items": f"{line['items']:,}",
        "ms": f"{line['ms']:.1f}",
        "quartiles": f"{low:.1f} to {high:.1f}",
        "x topk": f"{line['over_topk']:.2f}",
    }


if __name__ == "__main__":
    main()
