"""Is the fast way to the best priced items the definition's answer? Random problems against `reference.py` in float64.

Odd sizes, ties, empty groups, all items excluded but one or none, one item, prices from 1e-12 to 1e12, scores at the ends of float32,
float16, bfloat16, float32, float64 and int8 tables with a scale per row, 0/1, few and real values; with numba and in plain torch.
`tests/kernels/test_priced.py` draws them, and runs a few hundred by default.

A different item passes only where float64 cannot tell the scores apart; such are counted. Exits 1 at the first that is wrong.

    python benchmarks/exactness.py [--problems 10000] [--out FILE]
"""

from __future__ import annotations

import importlib.util
import sys
import time
import unittest.mock

import torch

import record

sys.path.insert(0, str(record.ROOT / "tests" / "kernels"))
import test_priced

ROWS = test_priced.ROWS


def main():
    options = record.parser(__doc__)
    options.add_argument("--problems", type=int, default=10_000, help="of each scale and way")
    args = options.parse_args()
    torch.set_num_threads(1)
    lines = []
    for engine in ("numba", "torch"):
        for scale in test_priced.SCALES:
            began, batches = time.perf_counter(), -(-args.problems // ROWS)
            with without_numba() if engine == "torch" else unittest.mock.patch.dict({}):
                other = sum(run(args.seed + batch, scale) for batch in record.progress(range(batches), scale))
            lines.append(
                {
                    "engine": engine, "scale": scale, "problems": batches * ROWS, "wrong": 0, "equal_in_float64": other,
                    "seconds": time.perf_counter() - began,
                }
            )  # fmt: skip
    record.table([{**line, "seconds": f"{line['seconds']:.1f}"} for line in lines])
    record.write(record.origin("exactness", args), lines, args.out)


def run(seed: int, scale: str) -> int:
    """How many of ROWS problems were answered with another item of the same score; raises where one is wrong."""
    scores, value, price, k, barred = test_priced.drawn(seed)
    return test_priced.compare(scores, value, price, k, scale, barred)


def without_numba():
    find = importlib.util.find_spec
    return unittest.mock.patch.object(importlib.util, "find_spec", lambda name: None if name == "numba" else find(name))


if __name__ == "__main__":
    main()
