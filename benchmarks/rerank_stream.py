"""How much memory and time does `spdd rerank` need for a table far larger than a chunk?

Makes 100,000 users x 100 candidates (10 million rows) in a temporary folder, as Parquet, as CSV, and as Parquet with
its rows shuffled, and runs the command line on each in a process of its own, whose peak resident memory (libraries
included) is what is reported. Threads are pinned. Prints a table, and last one line of JSON. Fails (exit 1) above 2 GB,
and where a slate is missing.

    python benchmarks/rerank_stream.py [--users 100000] [--candidates 100] [--only parquet]
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl

import record

SLOTS = 10
LIMIT = 2048  # MB: the promise

# A child of its own for each run: the peak of waited-for children is a maximum over all of them.
CHILD = """
import json, resource, subprocess, sys, time
began = time.perf_counter()
done = subprocess.run([sys.executable, "-m", "spdd.cli", *sys.argv[1:]])
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
print(json.dumps({"code": done.returncode, "peak_mb": round(peak), "seconds": time.perf_counter() - began}))
"""


def main():
    parser = record.parser(__doc__)
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--candidates", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=["parquet", "csv", "shuffled"])
    settings = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in [settings.only] if settings.only else ["parquet", "csv", "shuffled"]:
            path = make(Path(folder), kind, settings)
            runs.append({"kind": kind, "input_mb": round(path.stat().st_size / 1e6), **measure(path, kind, settings)})
            path.unlink()
    record.table([{"table": run["kind"], "input MB": f"{run['input_mb']:,}", "peak MB": f"{run['peak_mb']:,}",
                   "seconds": f"{run['seconds']:.1f}", "rows/s": f"{run['rows_per_s']:,}"} for run in runs])  # fmt: skip
    record.write(record.origin("rerank_stream", settings), runs, settings.out)
    sys.exit(any(run["code"] or run["peak_mb"] > LIMIT or not run["whole"] for run in runs))


def make(folder, kind, settings):
    random = np.random.default_rng(settings.seed)
    users, candidates = settings.users, settings.candidates
    rows = users * candidates
    table = pl.DataFrame(
        {
            "user": np.repeat(np.arange(users), candidates),
            "item": np.tile(np.arange(candidates), users) * 7919 + random.integers(0, 7919, rows),
            "score": random.normal(size=rows),
            "new": (random.random(rows) < 0.1).astype(np.int64),
        }
    )
    path = folder / ("candidates.csv" if kind == "csv" else "candidates.parquet")
    if kind == "csv":
        table.write_csv(path)
    else:
        (table.sample(fraction=1, shuffle=True, seed=settings.seed) if kind == "shuffled" else table).write_parquet(
            path
        )
    return path


def measure(path, kind, settings):
    out = path.with_name("slates.csv" if kind == "csv" else "slates.parquet")
    threads = {"POLARS_MAX_THREADS": str(settings.threads)}  # torch: the command decodes in one thread
    command = ["rerank", str(path), "--slots", str(SLOTS), "-o", "new>=3", "--out", str(out), "--quiet"]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *command],
        env={**os.environ, **threads},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    rows = settings.users * settings.candidates
    whole = out.exists() and len(pl.read_csv(out) if kind == "csv" else pl.read_parquet(out)) == settings.users * SLOTS
    out.unlink(missing_ok=True)
    return {**found, "rows_per_s": round(rows / found["seconds"]), "whole": whole}


if __name__ == "__main__":
    main()
