"""What is the analysis of an experiment worth? The same A/A and A/B over and over on listeners whose truth is known.

A SASRec learns from the listeners' log; every listener's visits are played out under the control, a weighted average and
SPDD, with several independent noises. Each run then draws who comes, which noise each of
them lives through, and, by a new salt, who is in which arm, and analyses it as any experiment. So what is validated is
assignment, analysis and correction on outcomes as odd as the simulated ones; the world, the model and its log are the same in
all runs, and users are drawn from a finite world.

    A/A      how often something is found where there is nothing, per metric and at all after the correction
    A/B      how often intervals hold what the arm does to everybody
    looking  how often an A/A that is looked at ten times finds something, with the ordinary test and the sequential one
"""

from __future__ import annotations

import pathlib

import numpy as np
import torch

import record
import spdd
from spdd import experiments
from spdd.evaluate import ab, simulated


def main() -> None:
    options = record.parser(__doc__)
    options.add_argument("--runs", type=int, default=500, help="experiments of each kind")
    options.add_argument("--world", type=int, default=6000, help="listeners there are")
    options.add_argument("--users", type=int, default=1500, help="listeners of an experiment")
    options.add_argument("--visits", type=int, default=4)
    options.add_argument("--noises", type=int, default=2)
    options.add_argument(
        "--weight",
        type=float,
        default=0.58,
        help="of the weighted average; 0 finds one that gives the floor on average",
    )
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
    policy, about_wa = (weighted(on, args.weight)) if args.weight else (None, "")
    arms = experiments.arms_of(on, ["spdd"] if policy else ["wa", "spdd"])
    if policy:
        arms.insert(1, simulated.Arm("wa", simulated.decoded_by(policy, on.model), about_wa))
    played = kept(on, arms, args)
    about["settings"]["arms"] = {arm.name: arm.about for arm in arms}
    same = played.alike(["control", "again", "and again"])
    for kind, outcomes, cuped in (("A/A", same, True), ("A/B", played, True), ("A/B", played, False)):
        found = ab.repeat(outcomes, runs=args.runs, users=args.users, cuped=cuped, seed=args.seed)
        results = told(kind, found, cuped, ab.truth(outcomes))
        print(f"\n{kind}, {'' if cuped else 'no '}covariates, {args.runs} runs of {args.users} users")
        record.table(rows(results[:-1]))
        record.write(about, results, args.out)
    if args.peeked:
        looks, results = 10, []
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
        record.write(about, results, args.out)


def weighted(on: experiments.Stage, weight: float):
    """A weighted average with this weight, and what it is in words."""
    objective = spdd.Objective(experiments.OBJECTIVE, value=on.value, at_least=on.floor)
    return spdd.WA([objective], on.slots, weight=weight), f"a weighted average with weight {weight:g}"


def kept(on: experiments.Stage, arms: list[simulated.Arm], args) -> simulated.Outcomes:
    """What everybody does under every arm: kept in the folder, and the first listeners played out again to see that it holds."""
    settings = {"value": on.value, "floor": on.floor, "visits": args.visits, "noises": args.noises, "seed": args.seed}
    file = args.folder / f"outcomes-{args.world}-{args.visits}-{args.noises}-{args.weight}-{args.seed}.npz"
    if not file.exists():
        found = simulated.outcomes(on.world, arms, on.before, **settings)
        np.savez(file, **found.columns)
    with np.load(file) as held:
        columns = {name: held[name] for name in simulated.NAMES}
    few = on.before._replace(history=on.before.history[:40])
    for name, column in simulated.outcomes(on.world, arms, few, **settings).columns.items():
        # In another batch sums round otherwise, and now and then a model's choice with them: a listener or two may differ.
        if (column != columns[name][:, :, :40]).any((0, 1)).mean() > 0.1:
            raise SystemExit(f"'{file}' is not what these arms do: remove it. Column '{name}' differs.")
    return simulated.Outcomes(tuple(arm.name for arm in arms), columns, on.before.columns)


def told(kind, found, cuped, truth):
    """A line per arm and metric, and one of the whole family."""
    common = {"kind": kind, "runs": found.runs, "users": found.users, "correction": "holm", "cuped": cuped}
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


def rows(lines):
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
