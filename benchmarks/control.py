"""Asked and delivered: the average share of slots that decoders give the objective, before and after `spdd tune`.

    python benchmarks/control.py --work WORK --domain playlists --out benchmarks/results/cpu-2core/control.jsonl

WORK is the folder that `benchmarks/evaluation.py --prepare` made. Tuning sees validation users alone; everything is judged on
test users. Before: what somebody would type who wants a share of the slots. After: the same family once `spdd tune` has
steered it (for a weighted average its weight), and the setting it chooses of all it has tried. Each point is kept on disk.
`plain` is the share that the model gives by itself, below which no floor can bring it.
"""

from __future__ import annotations

import pathlib

import evaluation
import record
from spdd.evaluate import grid
from spdd.evaluate import tune as search
from spdd.evaluate.bootstrap import draw_users, known
from spdd.evaluate.metrics import measure
from spdd.evaluate.sweep import Point, read, sweep

SLOTS = evaluation.SLOTS
ASKED = (0.1, 0.2, 0.3, 0.4, 0.6, 0.8)


def main() -> None:
    options = record.parser(__doc__)
    options.add_argument("--work", type=pathlib.Path, required=True, help="the folder `evaluation.py --prepare` made")
    options.add_argument("--domain", action="append", choices=tuple(evaluation.CASES))
    options.add_argument("--users", type=int, default=2000, help="test users")
    options.add_argument("--tuned-on", type=int, default=1000, help="validation users")
    options.add_argument("--trials", type=int, default=4, help="proposals of each search, beside the usual settings")
    args = options.parse_args()
    for name in args.domain or evaluation.SWEPT:
        folder = args.work / name / "control"
        points = []
        for asked in ASKED:
            after = tuned(name, asked, args, folder / f"search-{asked:g}-{args.tuned_on}")
            points += [("before", p) for p in before(asked)] + [("after", p) for p in after]
            print(f"{name}: {asked:.0%} tuned", flush=True)
        bench = evaluation.bench(name, args.work, args.users)
        where = folder / f"test-{args.users}"
        [plain] = sweep(lambda bench=bench: bench, [search.GREEDY], where)
        sweep(lambda bench=bench: bench, [p for _, p in points], where)
        about = record.origin("control", args)
        about["settings"] = {"slots": SLOTS, "tuned_on": args.tuned_on, "trials": args.trials, "users": args.users}
        told = {"judged_on": args.users, "tuned_on": args.tuned_on, "plain": plain["metrics"]["share"]}
        record.write(about, [x | told for x in lines(name, where, [when for when, _ in points])], args.out)


def before(asked: float) -> list[Point]:
    """What one would type who wants this share of the slots."""
    weight = Point("WA", {"asked": asked}, "wa", {"weight": asked})
    return [
        weight,
        grid.aimed("SPDD as printed", asked, SLOTS, "spdd", **grid.PRINTED),
        grid.aimed("SPDD by default", asked, SLOTS, "spdd"),
        grid.aimed("SPDD over traffic", asked, SLOTS, "spdd", per="traffic"),
    ]


def tuned(name: str, asked: float, args, folder: pathlib.Path) -> list[Point]:
    """The weighted average steered to this share, and what `spdd tune` chooses, found on validation users."""
    bench = evaluation.bench(name, args.work, args.tuned_on, "validation", floor=asked * SLOTS)
    found = search.tune(bench, folder, view="average", trials=args.trials, scales=("logit",), seed=args.seed)
    weight = next(trial for trial in found.rivals if trial.point.curve == "WA")
    best = found.chosen or found.nearest
    return [
        weight.point._replace(curve="WA, steered", knob={"asked": asked}),
        best.point._replace(curve="SPDD tuned", knob={"asked": asked}),
    ]


def lines(name: str, where: pathlib.Path, whens: list[str]) -> list[dict]:
    """Delivered minus asked of every point, with what it cost; over users, so that points can be compared."""
    swept = read(where)
    drawn = draw_users(swept.about["users"])
    found = []
    for record_, when in zip(swept.records, whens, strict=True):
        ratios, asked = measure(swept.outcome(record_), swept.truth), record_["knob"]["asked"]
        share = known(ratios["share"], drawn)
        error = [x - asked for x in share[:3]]
        found.append({
            "domain": name, "part": "asked", "when": when, "curve": record_["curve"], "asked": asked, "decoder": record_["decoder"],
            "settings": record_["settings"], "per": record_["objective"].get("per"), "error": error, "share": list(share),
            "ndcg": list(known(ratios["ndcg"], drawn)), "objective_ndcg": list(known(ratios["objective_ndcg"], drawn)),
        })  # fmt: skip
    return found


if __name__ == "__main__":
    main()
