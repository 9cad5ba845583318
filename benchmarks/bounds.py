"""How often the paper's bounds, and ours, are exceeded by the algorithm as printed, in worlds that meet their assumptions.

    python benchmarks/bounds.py --out benchmarks/results/cpu-2core/bounds.jsonl      # seconds

The worlds, and the algorithm written out as printed, are those of `tests/decode/test_bounds.py`; here they are counted.
`benchmarks/claims.py` reads the lines.
"""

from __future__ import annotations

import math
import sys

import torch

import record

sys.path.insert(0, str(record.ROOT / "tests" / "decode"))
import test_bounds as worlds

from spdd.decode import bounds

FAMILY = (150, 300, 600, 1200)  # slots of the worlds whose regret grows like K


def main() -> None:
    args = record.parser(__doc__).parse_args()
    results = [*violation(), *regret(), *family()]
    for rows in (results[:5], results[5:]):
        record.table(
            [{k: f"{x:.4g}" if isinstance(x, float) else x for k, x in r.items() if k != "interval"} for r in rows]
        )
    record.write(record.origin("bounds", args), results, args.out)


def violation() -> list[dict]:
    """Statement 1: value missing to the floor."""
    scores, value, share, rate, start, largest = worlds.violation_worlds()
    run = worlds.printed(worlds.Scores(scores), None, value, share, rate=rate, slots=scores.shape[1], start=start)
    spread = (scores.amax(2) - scores.amin(2)).amax(1)
    short = run.shortfall(share)
    ours = bounds.violation_bound(rate, share, largest, spread=spread, start=start)
    own = start == 1  # the paper's first price
    paper = bounds.paper_violation_bound(rate, share, largest)
    return [
        counted("violation", "paper", short[own], paper[own]),
        counted("violation", "ours", short, ours),
    ]


def regret() -> list[dict]:
    """Lemma 1 as corrected, with and without noise; and the paper's Statement 2, where its condition on the rate holds."""
    found = []
    for name, played, noise in (
        ("regret, still", worlds.static_worlds(), {}),
        ("regret, Gaussian", worlds.gaussian_worlds(), {"items": 7, "sigma": 0.3, "delta": 0.05}),
    ):
        run, share = played.run, played.share
        found.append(counted(name, "ours", played.regret, bounds.regret_bound(run.duals, run.gained, share, **noise)))
        if not noise:
            paper = bounds.regret_bound_paper(run.duals, run.gained, share, rate=played.rate)
            found.append(counted(name, "paper", played.regret, paper))
    return found


def family() -> list[dict]:
    """A family of worlds without noise whose regret grows like K, beside the constants of Statement 2's proof."""
    found = []
    for slots in FAMILY:
        rate = 2 * math.sqrt(0.8 / slots)
        relevance, value = worlds.still_world(slots, rate)
        scores = worlds.Scores(relevance.expand(1, slots, -1))
        run = worlds.printed(scores, None, value[None], 0.5, rate=rate, slots=slots)
        found.append(
            {
                "kind": "regret, family",
                "slots": slots,
                "regret": worlds.certificate_and_slate(relevance, value, slots) - run.relevance.item(),
                "paper": bounds.regret_bound_paper(run.duals, run.gained, 0.5, rate=rate).item(),
                "ours": bounds.regret_bound(run.duals, run.gained, 0.5).item(),
            }
        )
    return found


def counted(kind: str, bound: str, seen: torch.Tensor, allowed: torch.Tensor) -> dict:
    exceeded = int((seen > allowed + 1e-9).sum())
    interval = record.clopper_pearson(exceeded, len(seen))
    return {"kind": kind, "bound": bound, "worlds": len(seen), "exceeded": exceeded, "interval": interval}


if __name__ == "__main__":
    main()
