"""Every benchmark this machine can run, one after the other, none on a red test.

Tests first: a number about broken code is worth nothing. Then each benchmark in a process of its own, one thread each,
its table shown as it comes and its lines kept in `benchmarks/results/<machine>/<name>.jsonl`, which is replaced only
when the benchmark ended well. Prints what ran, and last one line of JSON.

    python benchmarks/run.py [--only rerank_speed] [--full] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import record

HERE = pathlib.Path(__file__).resolve().parent

# name -> options of a run of a few minutes; --full leaves them out, and takes the numbers the pages show
QUICK = {
    "rerank_speed": ["--rounds", "9"],
    "kernels": ["--rounds", "5", "--items", "200000", "--threads", "1"],
    "slate_speed": ["--rounds", "3", "--items", "50000"],
    "retrieval": ["--items", "20000"],
    "exactness": ["--problems", "1000"],
    "rerank_stream": ["--users", "10000"],
    "quality": ["--instances", "50"],
    "tiny_worlds": ["--worlds", "20"],
    "guard_overlap": ["--instances", "20"],
    "slate_values": ["--worlds", "20"],
    "tree_step": ["--rounds", "50"],
    "bounds": [],
}


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--only", choices=list(QUICK), action="append", help="this one; may be said again")
    options.add_argument("--full", action="store_true", help="as long as the published numbers took: half an hour")
    options.add_argument("--out", type=pathlib.Path, default=HERE / "results" / record.slug())
    args = options.parse_args()
    names = args.only or list(QUICK)
    print("tests first ...", flush=True)
    if subprocess.run([sys.executable, "-m", "pytest", "-q", "-x"], cwd=record.ROOT).returncode:
        sys.exit("benchmarks: a test is red, so nothing was measured. Mend it first: make test")
    ran = [measured(name, [] if args.full else QUICK[name], args.out) for name in names]
    print()
    record.table(ran)
    print(json.dumps({"benchmark": "run", "commit": record.commit(), "machine": record.machine(), "ran": ran}))
    sys.exit(any(line["code"] for line in ran))


def measured(name: str, options: list[str], folder: pathlib.Path) -> dict:
    """Run one benchmark and keep its results."""
    print(f"\n== {name} {' '.join(options)}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=folder) as fresh:
        out = pathlib.Path(fresh) / "lines.jsonl"
        command = [sys.executable, str(HERE / f"{name}.py"), *options, "--out", str(out)]
        done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if not done.returncode and out.exists():
            out.replace(folder / f"{name}.jsonl")
    return {"benchmark": name, "seconds": round(time.perf_counter() - began, 1), "code": done.returncode}


if __name__ == "__main__":
    main()
