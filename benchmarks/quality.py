"""How far are static slates from the best there is? Against integer programming, instance by instance.

(a) One 0/1 floor and a warm start: on every scale the slate's relevance has to equal the optimum's. Half the worlds
have many equal scores, half of the floors are percentages, some do not bind, and each row has a fifth of the items
excluded.

(b) Real and integer values, two to four overlapping 0/1 objectives, floors with caps: share of feasible rows that
keep their targets, and regret, (optimum - relevance) / optimum, of those that do. Relevance is a softmax of Gaussian
logits, each floor lies above (each cap below) what the plain slate has, and rows of a world share their values.
A decoder that misses targets is compared on the rows it met, which flatters it. "WA tuned" is one weight per kind:
the smallest of 40 that keeps the targets of 95 % of the feasible rows of other worlds, or the one that keeps most.

Fails (exit 1) where an exception is found in (a), or SPDD leaves a feasible row unmet or 1 % of regret in (b).

    python benchmarks/quality.py [--instances 250] [--items 200] [--slots 10] [--only PART_OF_A_NAME] [--out FILE]
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np
import torch

import record
import spdd
from spdd.decode.oracle import static_optimum

ROWS = 5  # per world
SCALES = ("probability", "logit", "relative", "identity")
EQUAL = 1e-9
MOST_REGRET = 0.01  # of the optimum, on average: the promise


class World(NamedTuple):
    """R rows of logits (R, M); per objective its value (M,), floors and caps (R,), None where there are none."""

    logits: np.ndarray
    value: list
    floor: list
    cap: list


class NoExchanges(spdd.SPDD):
    """SPDD as its walk leaves the slate."""

    def polished(self, value):
        return False


def main():
    options = record.parser(__doc__)
    options.add_argument("--instances", type=int, default=250, help="rows of each kind (and of each scale)")
    options.add_argument("--items", type=int, default=200)
    options.add_argument("--slots", type=int, default=10)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--only", default="", help="kinds and scales with this in their name")
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    about = record.origin("quality", args)
    results = [
        *(one_floor(scale, args) for scale in SCALES if args.only in f"one 0/1 floor, {scale}"),
        *(line for kind in KINDS if args.only in kind for line in against_optimum(kind, args)),
    ]
    exact = [r for r in results if r["part"] == "one 0/1 floor"]
    record.table([{"one 0/1 floor, scale": r["scale"], "rows": r["runs"], "of them impossible": r["impossible"],
                   "exceptions": r["exceptions"], "95% at most": f"{r['interval'][1]:.4f}",
                   "largest gap": f"{r['largest_gap']:.1e}"} for r in exact])  # fmt: skip
    print()
    record.table([{"kind": r["kind"], "decoder": r["decoder"], "rows": r["runs"], "met %": f"{100 * r['met']:.1f}",
                   "regret %: mean (95%)": record.percent(r["mean"], r["interval"], 3),
                   "median": f"{100 * r['median']:.3f}", "p95": f"{100 * r['p95']:.3f}",
                   "max": f"{100 * r['max']:.2f}"} for r in results if r["part"] == "kinds"])  # fmt: skip
    wrong = [claim for claim, holds in claims(results).items() if not holds]
    record.write(about, results, args.out)
    sys.exit("\n".join(f"does not hold: {claim}" for claim in wrong) or 0)


def claims(results):
    """What docs/guarantees.md says of these numbers, and whether it holds."""
    ours = [r for r in results if r["part"] == "kinds" and r["decoder"] == "SPDD"]
    return {
        **{f"one 0/1 floor on scale {r['scale']} costs what the optimum does": r["exceptions"] == 0
           for r in results if r["part"] == "one 0/1 floor"},
        **{f"{r['kind']}: every feasible row is met": r["met"] == 1 for r in ours},
        **{f"{r['kind']}: mean regret is below {MOST_REGRET:.0%}": r["mean"] < MOST_REGRET for r in ours},
    }  # fmt: skip


# ---- (a) ----------------------------------------------------------------------------------------------------------


def one_floor(scale, args):
    """How many of the rows are not exactly as good as the optimum."""
    random = np.random.default_rng([args.seed, 1, SCALES.index(scale)])
    exceptions, impossible, largest, runs = 0, 0, 0.0, 0
    for world in record.progress(range(-(-args.instances // ROWS)), scale):
        logits = random.normal(size=(ROWS, args.items)) * random.uniform(0.5, 3)
        logits = logits.round(1) if world % 2 else logits  # many equal scores
        value = (random.random(args.items) < random.uniform(0.02, 0.5)).astype(float)
        least = int(random.integers(0, args.slots + 1))
        said = f"{100 * least / args.slots:.6f}%" if world % 4 < 2 else least
        eligible = random.random(logits.shape) < 0.8
        decoder = spdd.SPDD([spdd.Objective("wanted", value, at_least=said)], args.slots, scale=scale, start="warm")
        slate = decoder.rerank(logits, exclude=~eligible)
        for row in range(ROWS):
            worth = on_scale(scale, logits[row], eligible[row])
            best = static_optimum(worth, value, slots=args.slots, floor=least, eligible=eligible[row])
            runs += 1
            if not best.feasible:
                impossible += 1
                exceptions += int(slate.status[row] != spdd.IMPOSSIBLE)
                continue
            gap = abs(worth[slate.items[row]].sum() - best.relevance) / max(1.0, abs(best.relevance))
            largest = max(largest, gap)
            exceptions += int(gap > EQUAL or slate.status[row] != spdd.MET)
    interval = record.clopper_pearson(exceptions, runs)
    return {"part": "one 0/1 floor", "scale": scale, "runs": runs, "impossible": impossible, "exceptions": exceptions,
            "largest_gap": largest, "interval": interval, "interval_of": "share of exceptions"}  # fmt: skip


def on_scale(scale, logits, eligible):
    """Relevance by the book."""
    if scale in ("logit", "identity"):
        return logits
    odds = np.where(eligible, np.exp(logits - logits[eligible].max()), 0)
    return odds if scale == "relative" else odds / odds.sum()


# ---- (b) ----------------------------------------------------------------------------------------------------------


def against_optimum(kind, args):
    """One line per decoder."""
    random = np.random.default_rng([args.seed, 2, list(KINDS).index(kind)])
    tuned = tune(kind, [KINDS[kind](random, args) for _ in range(8)], args)
    met = {name: [] for name in decoders(tuned)}
    regret = {name: [] for name in met}
    worlds, impossible = [], 0
    for number in record.progress(range(-(-args.instances // ROWS)), kind):
        world = KINDS[kind](random, args)
        worth = np.stack([on_scale("probability", row, np.ones(len(row), bool)) for row in world.logits])
        best = [optimum(world, worth, row, args.slots) for row in range(ROWS)]
        feasible = np.array([b.feasible for b in best])
        top = np.array([b.relevance for b in best])
        worlds += [number] * feasible.sum()
        impossible += int((~feasible).sum())
        for name, make in decoders(tuned).items():
            slate = make(objectives(world), args.slots).rerank(world.logits)
            total = np.take_along_axis(worth, slate.items, 1).sum(1)
            kept = slate.status == spdd.MET
            met[name] += kept[feasible].tolist()
            regret[name] += np.where(kept, (1 - total / top).round(12) + 0.0, np.nan)[feasible].tolist()
    lines = []
    for name in met:
        lost = np.array(regret[name])
        known = lost[~np.isnan(lost)]
        middle, high = np.percentile(known, [50, 95]) if len(known) else (np.nan, np.nan)
        lines.append({
            "part": "kinds", "kind": kind, "decoder": name, "runs": len(met[name]), "impossible": impossible,
            "met": float(np.mean(met[name])), "met_interval": record.share(met[name], worlds, seed=args.seed),
            "mean": float(known.mean()) if len(known) else np.nan,
            "interval": record.bootstrap(lost, worlds, seed=args.seed), "interval_of": "mean regret of rows that are met",
            "median": float(middle), "p95": float(high), "max": float(known.max(initial=-np.inf)),
            "optimal": float((known < EQUAL).mean()) if len(known) else np.nan,
            **({"weight": tuned} if name == "WA tuned" else {}),
        })  # fmt: skip
    return lines


def decoders(weight):
    return {
        "SPDD": lambda o, k: spdd.SPDD(o, k, scale="probability"),
        "SPDD, no exchanges": lambda o, k: NoExchanges(o, k, scale="probability"),
        "MustFill": lambda o, k: spdd.MustFill(o, k, scale="probability"),
        "SPDD as printed": lambda o, k: spdd.SPDD(o, k, scale="probability", start=1.0, rate=1.0, guard=False),
        "WA tuned": lambda o, k: spdd.WA(o, k, scale="probability", weight=weight),
    }


def tune(kind, worlds, args):
    """The smallest weight that keeps the targets of 95 % of the feasible rows, or else the one that keeps most."""
    weights = [price / (1 + price) for price in np.logspace(-4, 1, 40)]
    kept = []
    for weight in record.progress(weights, f"{kind}: WA's weight"):
        status = np.concatenate(
            [
                spdd.WA(objectives(w), args.slots, scale="probability", weight=weight).rerank(w.logits).status
                for w in worlds
            ]
        )
        kept.append((status == spdd.MET).sum() / max(1, (status != spdd.IMPOSSIBLE).sum()))
    enough = [w for w, share in zip(weights, kept, strict=True) if share >= 0.95]
    return float(enough[0] if enough else weights[int(np.argmax(kept))])


def objectives(world):
    parts = zip(world.value, world.floor, world.cap, strict=True)
    return [spdd.Objective(f"objective {c}", v, at_least=f, at_most=u) for c, (v, f, u) in enumerate(parts)]


def optimum(world, worth, row, slots):
    floor, cap = (
        [none if t is None else t[row] for t in targets]
        for targets, none in ((world.floor, -np.inf), (world.cap, np.inf))
    )
    return static_optimum(worth[row], np.stack(world.value, 1), slots=slots, floor=floor, cap=cap)


# ---- kinds of instances: (random, args) -> World ------------------------------------------------------------------


def floors(draw, count=1, cap=None):
    """`count` objectives with values from `draw`, each with a floor above what the plain slate has.

    cap: with caps too: this many times the floor, on the same objective
    """

    def make(random, args):
        logits = random.normal(size=(ROWS, args.items))
        values = [draw(random, args.items) for _ in range(count)]
        low = [raised(random, logits, v, args.slots) for v in values]
        return World(logits, values, low, [None if cap is None else cap * x for x in low])

    return make


def floor_and_cap(draw, other):
    """A floor on one objective and a cap, below what the plain slate has, on another."""

    def make(random, args):
        logits = random.normal(size=(ROWS, args.items))
        values = [draw(random, args.items), other(random, args.items)]
        low = raised(random, logits, values[0], args.slots)
        return World(logits, values, [low, None], [None, lowered(random, logits, values[1], args.slots)])

    return make


def raised(random, logits, value, slots):
    """(R,) floors between what the plain slate has and the most there is: one to three items' worth for 0/1 values."""
    plain = value[np.argsort(-logits, 1)[:, :slots]].sum(1)
    most = np.sort(value)[::-1][:slots].sum()
    if set(value) <= {0.0, 1.0}:
        return np.minimum(plain + random.integers(1, 4, len(plain)), most)
    floor = plain + random.uniform(0.1, 0.7, len(plain)) * (most - plain)
    return np.ceil(floor) if np.all(value == value.round()) else floor


def lowered(random, logits, value, slots):
    """(R,) caps between the least there is and what the plain slate has."""
    plain = value[np.argsort(-logits, 1)[:, :slots]].sum(1)
    least = np.sort(value)[:slots].sum()
    cap = plain - random.uniform(0.1, 0.7, len(plain)) * (plain - least)
    return np.floor(cap) if np.all(value == value.round()) else cap


def binary(random, items):
    return (random.random(items) < random.uniform(0.1, 0.3)).astype(float)


def integer(random, items):
    return random.integers(0, 5, items).astype(float)


def real(random, items):
    return random.random(items)


KINDS = {
    "one 0/1 floor": floors(binary),
    "integer floor": floors(integer),
    "real floor": floors(real),
    "real window (cap = 1.02 floor)": floors(real, cap=1.02),
    "two 0/1 floors": floors(binary, 2),
    "three 0/1 floors": floors(binary, 3),
    "four 0/1 floors": floors(binary, 4),
    "two real floors": floors(real, 2),
    "0/1 floor, 0/1 cap": floor_and_cap(binary, binary),
    "real floor, real cap": floor_and_cap(real, real),
}


if __name__ == "__main__":
    main()
