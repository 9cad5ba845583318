"""The paper's evaluation on three public data sets: what each decoder costs and delivers, in both views, with verdicts.

    sports      Amazon Sports, SASRec, leave-one-out; objective: items of Camping & Hiking or Cycling
    playlists   PoliMi playlists, SASRec, leave-one-out; objective: tracks of the artists with fewest plays who make 15 % of them
    spelled     Amazon Sports, a small LM-Rec on residual k-means ids; not swept here, see `attainment.py`
    shelves     KuaiRand, TransAct, out of what was shown to each person from 1 May on; objective: uploads of the newest day, 18 % of all

Three steps, each of which goes on where it was stopped:

    python benchmarks/evaluation.py --prepare DATA WORK            # prepared files, items' columns, trained models (an hour)
    python benchmarks/evaluation.py --work WORK --users 3000       # sweeps, then the results and the report
    python benchmarks/evaluation.py --work WORK --results-only     # the results and the report alone

Results are a line per point, area, keeper, asked share and slot; `benchmarks/claims.py` reads them.
"""

from __future__ import annotations

import functools
import json
import pathlib
import shlex
import sys
from typing import Any, NamedTuple

import numpy as np

import record
from spdd.evaluate import grid
from spdd.evaluate.positions import by_position
from spdd.evaluate.sweep import Swept, read, sweep
from spdd.evaluate.verdicts import nearest, verdict

FLOOR, SLOTS = 3.0, 10
FRESH = 0.2  # of all videos, by date of upload
LEFT_OUT = ("SPDD over traffic, relative", "SPDD priced, rate 0.1")  # level with the curves they are variants of
TAIL = 0.15  # of all plays
CHINA = 8 * 3_600_000
FIRST_OF_MAY = 1_651_334_400_000
LAST_OF_APRIL = 1_651_248_000_000


class Case(NamedTuple):
    """A domain: how its file is prepared and its model trained, in the words of the command line, and what is wanted."""

    prepare: list[str]
    train: list[str]
    objective: str
    wanted: str
    data: str | None = None  # the domain whose prepared file this one shares


CASES = {
    "sports": Case(
        ["amazon", "amazon-sports"],
        ["sasrec", "--set", "batch=256", "--set", "epochs=13", "--set", "patience=3"],
        "items of Camping & Hiking or Cycling",
        "categories=Camping & Hiking|Cycling",
    ),
    "playlists": Case(
        ["playlists", "polimi-playlists"],
        ["sasrec", "--set", "batch=64", "--set", "epochs=16", "--set", "patience=3"],
        "tracks of long-tail artists",
        "long tail",
    ),
    "shelves": Case(
        [
            "kuairand",
            "kuairand",
            "--split",
            "time",
            "--at",
            str(FIRST_OF_MAY),
            "--validation-at",
            str(LAST_OF_APRIL),
            "--set",
            "actions=true",
        ],
        ["transact", "--set", "offset=8.0"],
        "uploads of the newest day",
        "fresh",
    ),
    "spelled": Case(
        ["amazon", "amazon-sports"],
        ["lmrec", "--set", 'text=["brand","categories","text"]', "--set", "method=residual_kmeans", "--set", "width=96",
         "--set", "layers=2", "--set", "heads=4", "--set", "history=12", "--set", "dropout=0.2", "--set", "batch=256",
         "--set", "rate=3e-3", "--set", "optimizer=adamw", "--set", "decay=0.05", "--set", "warmup=150", "--set", "fade=0.96",
         "--set", "epochs=40", "--set", "patience=0", "--set", "seconds=900"],
        "items of Camping & Hiking or Cycling",
        "categories=Camping & Hiking|Cycling",
        data="sports",
    ),
}  # fmt: skip
SWEPT = (
    "sports",
    "playlists",
    "shelves",
)  # a model that spells takes hours for all of it: floors alone, in attainment.py


def main() -> None:
    options = record.parser(__doc__)
    options.add_argument("--prepare", nargs=2, type=pathlib.Path, metavar=("DATA", "WORK"))
    options.add_argument("--work", type=pathlib.Path, help="the folder --prepare made")
    options.add_argument("--domain", action="append", choices=tuple(CASES), help="these alone; all when left out")
    options.add_argument("--users", type=int, help="only the first so many of each domain")
    options.add_argument("--seeds", type=int, default=1, help="runs of each bandit")
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--coarse", action="store_true", help="every other setting, for a domain that is slow")
    options.add_argument("--swept-at", help="the commit the sweeps were run at, where it is not this one")
    options.add_argument("--results-only", action="store_true", help="judge the sweeps that are there")
    args = options.parse_args()
    if args.prepare:
        return prepare(*args.prepare, args.domain or CASES)
    if not args.work:
        options.error("--work is missing: name the folder that --prepare made")
    results, sections = [], []
    for name in args.domain or SWEPT:
        folder = args.work / name / "evaluation"
        if not args.results_only:
            swept(name, args, folder)
        found = read(folder / "sweep")
        results += lines(name, found)
        rates = read(folder / "rates") if (folder / "rates" / "records.jsonl").exists() else None
        results += [
            {"domain": name, "part": "rate", "curve": r["curve"], "knob": r["knob"], **r["metrics"]}
            for r in ([] if rates is None else rates.records)
        ]
        sections += report_of(name, found, rates)
    about = record.origin("evaluation", args)
    about["settings"] = {
        "floor": FLOOR,
        "slots": SLOTS,
        "seeds": args.seeds,
        "swept_at": args.swept_at or about["commit"],
    }
    write_report(args, sections)
    record.write(about, results, args.out)


# ---- data and models ------------------------------------------------------------------------------------------------


def prepare(data: pathlib.Path, work: pathlib.Path, names) -> None:
    """Everything the sweeps need, by the same commands that anyone would type."""
    for name in names:
        case, file = CASES[name], file_of(name, work)
        work.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            kind, folder, *more = case.prepare
            spdd("data", "prepare", kind, str(data / folder), "--out", str(file), *more)
        items_table(name, file, file.with_name(f"{file.stem}-items.parquet"))
        spdd("train", case.train[0], str(file), "--out", str(work / name), *case.train[1:])


def file_of(name: str, work: pathlib.Path) -> pathlib.Path:
    return work / f"{CASES[name].data or name}.npz"


def spdd(*words: str) -> None:
    from spdd.cli import app

    print("$", shlex.join(["spdd", *words]), flush=True)
    app(list(words), standalone_mode=False)


def items_table(name: str, file: pathlib.Path, out: pathlib.Path) -> None:
    """A table of the items with the columns that objectives name, made of train events and what items say of themselves."""
    import polars as pl

    from spdd.data import prepared

    split = prepared.load(file)
    columns: dict[str, Any] = {"item": split.items.id}
    if name == "playlists":
        artist = np.array([str(x) for x in split.items.attributes["artist"]])
        _names, which = np.unique(artist, return_inverse=True)
        plays = np.bincount(which, split.popularity())
        rising = np.argsort(plays, kind="stable")
        tail = rising[plays[rising].cumsum() <= TAIL * plays.sum()]
        columns["long tail"] = np.isin(which, tail).astype(np.int8)
    if name == "shelves":
        uploaded = np.array([str(x) for x in split.items.attributes["upload_date"]])
        # Uploads are dated by day, and most are of two days: the newest days that hold at most so many.
        since = next(day for day in np.unique(uploaded) if (uploaded >= day).mean() <= FRESH)
        columns["fresh"] = (uploaded >= since).astype(np.int8)
    pl.DataFrame(columns).write_parquet(out)


def bench(name: str, work: pathlib.Path, users: int | None, part: str = "test", floor: float = FLOOR):
    """The bench of a domain: a function of this module, so that workers can make their own."""
    from spdd.data import prepared
    from spdd.domains import bench_of
    from spdd.wish import wish_of

    file = file_of(name, work)
    split = prepared.load(file)
    items = file.with_name(f"{file.stem}-items.parquet")
    wish = wish_of(split, [f"{CASES[name].wanted}>={floor:g}"], slots=SLOTS, items=items)
    return bench_of(
        work / name, split, values=wish.value, floor=wish.floor, slots=SLOTS, users=users, part=part, name=name
    )


# ---- sweeps ---------------------------------------------------------------------------------------------------------


def swept(name: str, args, folder: pathlib.Path) -> None:
    coarse = {"asked": (*grid.ASKED[1::2], 1.0), "prices": grid.PRICES[::2]} if args.coarse else {}
    points = grid.points(FLOOR, SLOTS, seeds=range(args.seeds), **coarse)
    points = [p for p in points if p.curve not in LEFT_OUT]
    rates = grid.rates(SLOTS, asked=(0.1, 0.2, 0.3, 0.4, 0.6, 0.8), speeds=(0.1, 1.0, 3.0))
    extra = rates if name == "playlists" else []
    load = functools.partial(bench, name, args.work, args.users)
    done = 0

    def told(points_done: int) -> None:
        nonlocal done
        done += points_done
        print(f"{name}: {done} of {len(points) + len(extra)} points", file=sys.stderr, flush=True)

    sweep(load, points, folder / "sweep", workers=args.workers, progress=told)
    if extra:
        sweep(load, extra, folder / "rates", workers=args.workers, progress=told)


# ---- what they say --------------------------------------------------------------------------------------------------


def lines(name: str, found: Swept) -> list[dict]:
    """Everything that is claimed anywhere, with intervals."""
    said = verdict(found)
    out: list[dict] = [{**found.about["about"], "domain": name, "part": "users", "users": found.about["users"]}]
    for r in found.records:
        out.append(
            {
                "domain": name,
                "part": "point",
                "curve": r["curve"],
                "knob": r["knob"],
                "policy_seed": r["seed"],
                **r["metrics"],
            }
        )
    for a in said.areas:
        row = {"domain": name, "part": "area", "plane": a.plane, "curve": a.curve, "area": list(a.area)}
        out.append(row | ({} if a.ahead is None else {"rival": a.rival, "ahead": list(a.ahead)}))
    for k in said.keepers:
        out.append({
            "domain": name, "part": "keeper", "curve": k.curve, "knob": dict(k.knob),
            **{metric: list(x) for metric, x in k.metrics.items()},
            "kept": {o: list(x) for o, x in k.kept.items()}, "more": {o: list(x) for o, x in k.more.items()},
        })  # fmt: skip
    out.append({"domain": name, "part": "out of reach", "curves": said.out_of_reach})
    for d in said.delivered:
        out.append(
            {
                "domain": name,
                "part": "asked",
                "curve": d.curve,
                "asked": d.asked,
                "share": list(d.share),
                "error": list(d.error),
            }
        )
    for curve in ("greedy", "must-fill", "WA", "SPDD as printed", "SPDD by default", "SPDD over traffic"):
        result = nearest(found, curve, FLOOR / SLOTS)
        out.append({
            "domain": name, "part": "positions", "curve": curve, "knob": result.record["knob"],
            "average share": result.record["metrics"]["share"], **by_position(result.outcome, said.draws),
        })  # fmt: skip
    return out


def report_of(name: str, found: Swept, rates: Swept | None) -> list:
    from spdd.report import evidence

    [section] = evidence.sections(found, rates, objective=CASES[name].objective)
    return [section._replace(parts=[*section.parts, *controlled(name)])]


def controlled(name: str) -> list:
    """A table of `control.py`'s results: delivered minus asked, before and after `spdd tune`. None where it has not been run."""
    from spdd.evaluate.bootstrap import Known
    from spdd.report.page import Column, Table

    file = record.ROOT / "benchmarks" / "results" / "cpu-2core" / "control.jsonl"
    told = [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []
    told = [x for x in told if x["domain"] == name]
    if not told:
        return []
    asked = sorted({x["asked"] for x in told})
    errors = {(x["when"], x["curve"], x["asked"]): Known(*x["error"], float("nan")) for x in told}
    rows = [
        [curve, when, *(errors.get((when, curve, a)) for a in asked)]
        for when, curve in dict.fromkeys((x["when"], x["curve"]) for x in told)
    ]
    return [
        Table(
            f"{name}-tuned",
            "Delivered minus asked, before and after `spdd tune`",
            ["decoder", "when", *(Column(f"{a:.0%}", "+.3f") for a in asked)],
            rows,
            f"Averages over {told[0]['judged_on']:,} test users; tuned on {told[0]['tuned_on']:,} validation users. WA before: its weight is the share.",
        )
    ]


def write_report(args, sections) -> None:
    from spdd.report import evidence
    from spdd.report.colophon import colophon
    from spdd.report.page import Page, write

    lead = [
        "What each decoder costs and delivers on three public data sets, each with a model trained for it. "
        + evidence.HOW
    ]
    made = colophon(
        [f"python benchmarks/evaluation.py {shlex.join(sys.argv[1:])}"], seeds=f"bandits {args.seeds}, models 0"
    )
    print(
        write(
            Page("Slates that keep promises: the evidence", lead, sections, made), args.work / "report" / "report.html"
        )
    )


if __name__ == "__main__":
    main()
