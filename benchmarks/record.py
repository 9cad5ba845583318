"""What the benchmarks share: where a number comes from, how sure it is, and how it is written down.

A result is a dict; `write` puts it beside its origin (commit, machine, versions, settings, seed) as one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import torch

import spdd
from spdd.report import colophon

ROOT = pathlib.Path(__file__).resolve().parents[1]


def parser(doc: str) -> argparse.ArgumentParser:
    """The options every benchmark has."""
    options = argparse.ArgumentParser(description=doc.split("\n")[0])
    options.add_argument("--out", type=committed, help="file to which one JSON line per result is appended")
    options.add_argument("--seed", type=int, default=0)
    return options


def origin(name: str, args: argparse.Namespace) -> dict:
    """Everything a number needs beside it."""
    settings = {k: v for k, v in vars(args).items() if k not in ("out", "seed")}
    return {
        "benchmark": name,
        "settings": settings,
        "seed": args.seed,
        "commit": commit(),
        "machine": machine(),
        "versions": {"spdd": spdd.__version__, "torch": torch.__version__, "numpy": np.__version__},
    }


def committed(out: str | pathlib.Path) -> pathlib.Path:
    """The path, unless it lies among the published results and the code that writes to it is not what its commit says.

    Asked before the work begins and again when it is done; pages and results may differ, for that is what a benchmark changes.
    """
    path = pathlib.Path(out)
    if path.resolve().is_relative_to(ROOT / "benchmarks" / "results") and commit().endswith("-dirty"):
        raise argparse.ArgumentTypeError(
            f"`--out` is {out}, where published numbers are kept, but files differ from the commit: {', '.join(changed())}. "
            "Commit or stash them, or write to a file elsewhere"
        )
    return path


def write(about: dict, results: list[dict], out: pathlib.Path | None) -> None:
    """Print one line for programs with all results, and append one line per result to `out`."""
    results = [{key: _short(x) for key, x in result.items()} for result in results]
    print(json.dumps({**about, "results": results}))
    if out:
        committed(out).parent.mkdir(parents=True, exist_ok=True)
        with out.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps({**about, **result}) + "\n" for result in results)


def _short(x):
    """Six digits of every float: the rest is noise."""
    if isinstance(x, list):
        return [_short(part) for part in x]
    return float(f"{x:.6g}") if isinstance(x, float) and np.isfinite(x) else (None if isinstance(x, float) else x)


def table(rows: list[dict]) -> None:
    """Rows of text under their keys; the first column is flush left."""
    if not rows:
        return
    text = [list(rows[0]), *([str(x) for x in row.values()] for row in rows)]
    width = [max(len(line[i]) for line in text) for i in range(len(text[0]))]
    for line in text:
        cells = (x.ljust(w) if i == 0 else x.rjust(w) for i, (x, w) in enumerate(zip(line, width, strict=True)))
        print("  ".join(cells).rstrip(), flush=True)


def progress(steps, label: str):
    """The steps, with a bar on stderr where a person is watching."""
    from rich.console import Console
    from rich.progress import track

    quiet = not sys.stderr.isatty()
    return track(list(steps), label, console=Console(stderr=True), transient=True, disable=quiet)


# ---- how sure ---------------------------------------------------------------------------------------------------


def bootstrap(values, worlds=None, *, seed=0, draws=2000) -> list[float]:
    """95 % interval of the mean, resampling whole worlds: rows of one world are not independent.

    values: (R,); nan is left out.  worlds: (R,) which world each row is from; each its own if not given
    """
    values = np.asarray(values, dtype=np.float64)
    worlds = np.arange(len(values)) if worlds is None else np.unique(worlds, return_inverse=True)[1]
    there = ~np.isnan(values)
    if not there.any():
        return [float("nan")] * 2
    total = np.bincount(worlds, np.where(there, values, 0))
    count = np.bincount(worlds, there)
    total, count = total[count > 0], count[count > 0]
    drawn = np.random.default_rng(seed).integers(0, len(total), (draws, len(total)))
    means = total[drawn].sum(1) / count[drawn].sum(1)
    return [float(x) for x in np.percentile(means, [2.5, 97.5])]


def share(hits, worlds=None, *, seed=0) -> list[float]:
    """95 % interval of a share. Where all or none hit, resampling knows nothing: Clopper-Pearson over worlds then."""
    hits = np.asarray(hits, dtype=np.float64)
    known = hits[~np.isnan(hits)]
    if len(known) and known.min() < known.max():
        return bootstrap(hits, worlds, seed=seed)
    units = len(known) if worlds is None else len(np.unique(np.asarray(worlds)[~np.isnan(hits)]))
    return clopper_pearson(units * int(known.max(initial=0)), units)


def clopper_pearson(hits: int, of: int) -> list[float]:
    """Exact 95 % interval of hits / of. With no hits its upper end is about 3.7 / of (one-sided: 3 / of).

    >>> [round(x, 4) for x in clopper_pearson(0, 1000)]
    [0.0, 0.0037]
    """
    from scipy.stats import beta

    if not of:
        return [0.0, 1.0]
    low = float(beta.ppf(0.025, hits, of - hits + 1)) if hits else 0.0
    high = float(beta.ppf(0.975, hits + 1, of - hits)) if hits < of else 1.0
    return [low, high]


def percent(value: float, interval: list[float], digits: int = 2) -> str:
    """1.23 (1.10 to 1.40), in per cent."""
    low, high = interval
    return f"{100 * value:.{digits}f} ({100 * low:.{digits}f} to {100 * high:.{digits}f})"


# ---- where from -------------------------------------------------------------------------------------------------


def commit() -> str:
    """The commit, with -dirty where code differs from it; "unknown" outside a repository."""
    try:
        return _git("rev-parse", "HEAD") + "-dirty" * bool(changed())
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def changed() -> list[str]:
    """Tracked files that differ from the commit, and new ones among the code; not results, nor pages made from them."""
    pages = [":!benchmarks/results", ":!*.md"]
    lines = _git("status", "--porcelain", "--untracked-files=no", "--", ".", *pages)
    lines += "\n" + _git("status", "--porcelain", "--", "src", "benchmarks", *pages)
    return sorted({line.split(maxsplit=1)[1] for line in lines.splitlines() if line})


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def machine() -> str:
    """Platform, processor and cores: 'Linux x86_64, <processor>, 2 cores'; the GPU where there is one."""
    gpu = [torch.cuda.get_device_name()] if torch.cuda.is_available() else []
    return ", ".join([colophon.machine(), *gpu])


def slug() -> str:
    """A short name for this machine: cpu-2core, or the GPU's name."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name().lower().replace(" ", "-")
    return f"cpu-{os.cpu_count()}core"
