"""`spdd audit` on the three data sets: what theory promises beside what a trained model's slates did.

    python benchmarks/audits.py --work WORK --out benchmarks/results/cpu-2core/audits.jsonl      # about a minute each

WORK is the folder that `benchmarks/evaluation.py --prepare` made. A line per scale and rate, and one per scale about
Assumption 1; `benchmarks/claims.py` reads them.
"""

from __future__ import annotations

import json
import pathlib

import evaluation
import record


def main() -> None:
    options = record.parser(__doc__)
    options.add_argument("--work", type=pathlib.Path, required=True, help="the folder `evaluation.py --prepare` made")
    options.add_argument("--domain", action="append", choices=tuple(evaluation.CASES))
    options.add_argument("--users", type=int, default=100)
    options.add_argument("--close", type=int, default=20, help="users whose best slate is sought")
    options.add_argument(
        "--rate", type=float, action="append", help="of the printed algorithm; 0.3 and 1 when left out"
    )
    args = options.parse_args()
    for name in args.domain or evaluation.SWEPT:
        out = args.work / name / "audit"
        evaluation.spdd(
            "audit", str(args.work / name), str(args.work / f"{name}.npz"), "--items", str(args.work / f"{name}-items.parquet"),
            "-o", f"{evaluation.CASES[name].wanted}>={evaluation.FLOOR:g}", "--out", str(out), "--users", str(args.users),
            "--close", str(args.close), "--seed", str(args.seed), "--quiet",
            *[word for rate in args.rate or (0.3, 1.0) for word in ("--rate", f"{rate:g}")],
        )  # fmt: skip
        about = record.origin("audits", args)
        about["settings"] = {"users": args.users, "close": args.close, "floor": evaluation.FLOOR}
        record.write(about, lines(name, json.loads((out / "audit.json").read_text("utf-8"))), args.out)


def lines(name: str, found: dict) -> list[dict]:
    """The audit's numbers, flat: means with intervals, and of each bound for how many users it is exceeded or says nothing."""
    rows = []
    for step in found["steps"]:
        for sample in step["samples"]:
            checks = sample["report"]["checks"]
            rows.append({
                "domain": name, "part": "assumption", "scale": step["scale"], "items": sample["items"], "sigma": _known(step["plain"]),
                "holds": sample["report"]["holds"], "failed": [c["name"] for c in checks if not c["holds"]], "checks": len(checks),
            })  # fmt: skip
    for case in found["cases"]:
        row = {"domain": name, "part": "case", "scale": case["scale"], "rate": case["rate"], "users": case["users"]}
        row["missed"] = _known(case["missed"])
        for what in ("shortfall", "still", "moving"):
            row[what] = {
                "seen": _known(case[what]["mean"]), "worst": case[what]["worst"], "users": case[what]["users"],
                **{b["name"]: {"mean": _known(b["mean"]), **{k: b[k] for k in ("vacuous", "idle", "exceeded")}} for b in case[what]["bounds"]},
            }  # fmt: skip
        for best in ("still_best", "moving_best"):
            row[best] = _known(case[best])
        rows.append(row)
    return rows


def _known(known: dict) -> list:
    return [known["value"], known["low"], known["high"]]


if __name__ == "__main__":
    main()
