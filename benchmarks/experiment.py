"""What is the analysis of an experiment worth? The same A/A and A/B over and over on listeners whose truth is known.

A SASRec learns from the listeners' log; every listener's visits are played out under the control, a weighted average that
gives as much on average, and SPDD, with several independent noises. Each run then draws who comes, which noise each of
them lives through, and, by a new salt, who is in which arm, and analyses it as any experiment. So what is validated is
assignment, analysis and correction on outcomes as odd as the simulated ones; the world, the model and its log are the same in
all runs, and users are drawn from a finite world.

    A/A      how often something is found where there is nothing, per metric and at all after the correction
    A/B      how often intervals hold what the arm does to everybody
    looking  how often an A/A that is looked at ten times finds something, with the ordinary test and the sequential one
"""

from __future__ import annotations

import pathlib
import sys

import torch

import record
from spdd import experiments
from spdd.evaluate import ab, simulated


def main() -> None:
    options = record.parser(__doc__)
    options.add_argument("--runs", type=int, default=500, help="experiments of each kind")
    options.add_argument(
        "--more", type=int, default=4000, help="experiments of each kind, again, to see it more exactly"
    )
    options.add_argument("--world", type=int, default=6000, help="listeners there are")
    options.add_argument("--users", type=int, default=1500, help="listeners of an experiment")
    options.add_argument("--visits", type=int, default=4)
    options.add_argument("--noises", type=int, default=2)
    options.add_argument("--model", default="sasrec", choices=experiments.MODELS)
    options.add_argument("--peeked", type=int, default=500, help="experiments that are looked at again and again")
    options.add_argument(
        "--folder", type=pathlib.Path, default=pathlib.Path("out/experiment-bench"), help="where the model is kept"
    )
    args = options.parse_args()
    torch.set_num_threads(1)
    about = record.origin("experiment", args)
    about["settings"]["folder"] = str(args.folder.name)
    on = experiments.stage(args.folder, users=args.world, model=args.model, seed=args.seed)
    arms = experiments.arms_of(on)
    played = simulated.outcomes(
        on.world,
        arms,
        on.before,
        value=on.value,
        floor=on.floor,
        visits=args.visits,
        noises=args.noises,
        seed=args.seed,
    )
    about["settings"]["arms"] = {arm.name: arm.about for arm in arms}
    same = played.alike(["control", "again", "and again"])
    results = []
    for runs, seed in ((args.runs, args.seed), (args.more, args.seed + 1)):
        for kind, outcomes, correction, cuped in (
            ("A/A", same, "holm", True),
            ("A/A", same, "holm", False),
            ("A/A", same, "bh", True),
            ("A/B", played, "holm", True),
            ("A/B", played, "holm", False),
        ):
            if not runs or (runs == args.more and (correction == "bh" or not cuped)):
                continue
            found = ab.repeat(outcomes, runs=runs, users=args.users, correction=correction, cuped=cuped, seed=seed)
            results += _told(kind, found, correction, cuped, ab.truth(outcomes))
            print(
                f"\n{kind}, {correction}, {'' if cuped else 'no '}covariates, {runs} runs of {args.users} users",
                file=sys.stderr,
            )
            record.table(_rows(results[-1 - len(found.rates) :]))
    if args.peeked:
        looks = 10
        found = ab.repeat_peeking(same, runs=args.peeked, users=args.users, looks=looks, seed=args.seed)
        for (arm, metric), plain in found.plain.items():
            hits = {"at_the_end": found.end[arm, metric], "ordinary": plain, "sequential": found.guarded[arm, metric]}
            spans = {f"{name}_interval": _interval(x, args.peeked) for name, x in hits.items()}
            results.append(
                {
                    "kind": "A/A looked at",
                    "looks": looks,
                    "runs": args.peeked,
                    "arm": arm,
                    "metric": metric,
                    **hits,
                    **spans,
                }
            )
        print(f"\nA/A looked at {looks} times, {args.peeked} runs", file=sys.stderr)
        record.table([{k: r[k] for k in ("arm", "metric", "at_the_end", "ordinary", "sequential")} for r in results if r["kind"] == "A/A looked at"])  # fmt: skip
    record.write(about, results, args.out)


def _told(kind, found, correction, cuped, truth):
    """A line per arm and metric, and one of the whole family."""
    common = {"kind": kind, "runs": found.runs, "users": found.users, "correction": correction, "cuped": cuped}
    lines = []
    for r in found.rates:
        line = common | r._asdict() | {"true_lift": truth[r.arm, r.metric].lift}
        lines.append(
            line | {f"{n}_interval": _interval(line[n], found.runs) for n in ("found", "covered", "covered_lift")}
        )
    family = {"arm": "all", "metric": "all", "found": found.any, "found_interval": _interval(found.any, found.runs)}
    return [*lines, common | family | {"ratio": found.ratio, "wrong": found.wrong}]


def _interval(share, runs):
    return record.clopper_pearson(round(share * runs), runs)


def _rows(lines):
    names = (
        "arm",
        "metric",
        "true_lift",
        "found",
        "found_interval",
        "covered",
        "covered_lift",
        "covered_lift_interval",
    )
    return [{n: _short(line.get(n, "")) for n in names} for line in lines]


def _short(x):
    return " to ".join(f"{y:.3f}" for y in x) if isinstance(x, list) else f"{x:.3f}" if isinstance(x, float) else x


if __name__ == "__main__":
    main()
