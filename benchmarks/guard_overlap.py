"""Does the guard keep its promise where objectives overlap, and how often does it need the exact solver for that?

Two to four objectives on the same items; floors, caps, or both on each; values 0/1, whole numbers 0 to 4, or real.
Targets are those of an existing slate, tightened until little or nothing is left to spare; every fifth row is asked
for a little more, so that some rows are impossible. Whether a row is feasible is said by integer programming.

Each batch is decoded twice: from scores that stand still (`rerank`), and from a fickle model (`generate`) that draws
new ones, five times larger, after every choice. Counted:

    missed     feasible rows whose status is not MET
    doubted    infeasible rows whose status is not IMPOSSIBLE
    solver     rows for which the fast heuristics found no slate although there was one, so that the exact solver had to
    proofs     rows for which it had to show that there is none
    gave up    rows it could not settle with the branches it has (`guard.NODES`)

Rows that the benchmark's own solver cannot settle in --seconds are left out of "missed" and "doubted", unless the
decoder met them, which settles it. Intervals are Clopper-Pearson's, 95 %.

    python benchmarks/guard_overlap.py [--instances 100] [--items 12 200] [--out FILE]
"""

from __future__ import annotations

import itertools
import time

import numpy as np
import torch

import record
import spdd
from spdd.decode import guard
from spdd.decode.oracle import static_optimum

ROWS = 10  # per batch; they share values, not targets or exclusions
SLOTS = {12: 4}  # else 10
KINDS = ("0/1", "integer", "real")
SIDES = ("floors", "caps", "both")
OF = {"missed": "feasible", "doubted": "infeasible", "solver": "runs", "proofs": "runs", "gave up": "runs"}
COUNTS = tuple(f"{name} {how}" for name in OF for how in ("static", "fickle"))


def main():
    options = record.parser(__doc__)
    options.add_argument("--instances", type=int, default=100, help="rows of each combination")
    options.add_argument("--items", type=int, nargs="+", default=[12, 200])
    options.add_argument("--objectives", type=int, nargs="+", default=[2, 3, 4])
    options.add_argument("--seconds", type=float, default=20, help="for each row's integer program")
    options.add_argument("--threads", type=int, default=1)
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    about = record.origin("guard_overlap", args)
    cells = list(itertools.product(args.items, args.objectives, KINDS, SIDES))
    found = [measure(*cell, args) for cell in record.progress(cells, "combinations")]
    results = [with_intervals(cell) for cell in found]
    for items in args.items:  # a line for all combinations of a size, which is what can be promised
        own = [cell for cell in found if cell["items"] == items]
        results.append(with_intervals(added(own, items=items, slots=SLOTS.get(items, 10), kind="all", side="all")))
    rows = []
    for items, kind, side in itertools.product(args.items, KINDS, SIDES):
        own = [cell for cell in found if (cell["items"], cell["kind"], cell["side"]) == (items, kind, side)]
        rows.append(line(added(own, items=items, kind=kind, side=side)))
    record.table(rows + [line(r) for r in results if r["kind"] == "all"])
    for r in (r for r in results if r["kind"] == "all"):
        known = f"{r['feasible']} feasible, {r['infeasible']} not"
        print(f"\nM = {r['items']}: {r['runs']} rows, {known}; slowest batch of {ROWS} rows {r['slowest']:.1f} s")
        for name, of in OF.items():
            for how in ("static", "fickle"):
                share = r[f"{name} {how}"] / max(1, r[of])
                print(f"  {name} {how}, % (95%): {record.percent(share, r[f'{name} {how} interval'], 3)}")
    record.write(about, results, args.out)


def measure(items, count, kind, side, args):
    """Counts of one combination."""
    slots = SLOTS.get(items, 10)
    random = np.random.default_rng([args.seed, items, count, KINDS.index(kind), SIDES.index(side)])
    cell = {"items": items, "slots": slots, "objectives": count, "kind": kind, "side": side, "runs": 0, "feasible": 0,
            "infeasible": 0, "slowest": 0.0, **dict.fromkeys(COUNTS, 0)}  # fmt: skip
    for _ in range(-(-args.instances // ROWS)):
        value, eligible, floor, cap = batch(random, items, slots, count, kind, side)
        can = np.array([feasible(value, eligible[r], floor[r], cap[r], slots, args.seconds) for r in range(ROWS)])
        objectives = [
            spdd.Objective(
                f"objective {c}",
                value[c],
                at_least=floor[:, c] if np.isfinite(floor[0, c]) else None,
                at_most=cap[:, c] if np.isfinite(cap[0, c]) else None,
            )
            for c in range(count)
        ]
        scores = random.normal(size=(ROWS, items))
        status = {}
        for how in ("static", "fickle"):
            decoder, model = spdd.SPDD(objectives, slots), Fickle(int(random.integers(1 << 30)), items)
            begun = time.perf_counter()
            with Solver() as solver:
                if how == "static":
                    status[how] = decoder.rerank(scores, exclude=~eligible).status
                else:
                    status[how] = decoder.generate(model, np.zeros((ROWS, 1)), exclude=~eligible).status
            cell["slowest"] = max(cell["slowest"], time.perf_counter() - begun)
            for name, number in solver.count.items():
                cell[f"{name} {how}"] += number
            can[status[how] == spdd.MET] = 1
        cell["runs"] += ROWS
        cell["feasible"] += int((can == 1).sum())
        cell["infeasible"] += int((can == 0).sum())
        for how, found in status.items():
            cell[f"missed {how}"] += int(((can == 1) & (found != spdd.MET)).sum())
            cell[f"doubted {how}"] += int(((can == 0) & (found != spdd.IMPOSSIBLE)).sum())
    return cell


def feasible(value, eligible, floor, cap, slots, seconds):
    """1 or 0, or nan where that was not settled in time."""
    nothing = np.zeros(len(eligible))
    try:
        return float(
            static_optimum(
                nothing, value.T, slots=slots, floor=floor, cap=cap, eligible=eligible, seconds=seconds
            ).feasible
        )
    except TimeoutError:
        return np.nan


def batch(random, items, slots, count, kind, side):
    """Values (C, M), eligible (R, M), floors and caps (R, C)."""
    value = {
        "0/1": lambda: (random.random((count, items)) < random.uniform(0.1, 0.5, (count, 1))).astype(float),
        "integer": lambda: random.integers(0, 5, (count, items)).astype(float),
        "real": lambda: random.random((count, items)),
    }[kind]()
    eligible = random.random((ROWS, items)) < 0.85
    floor, cap = np.full((ROWS, count), -np.inf), np.full((ROWS, count), np.inf)
    for row in range(ROWS):
        # The slate that is best in some direction lies at the edge of what can be had; a random one does not.
        direction = random.dirichlet(np.ones(count)) * (-1 if side == "caps" else 1)
        key = direction @ value if random.random() < 0.7 else random.random(items)
        total = value[:, np.argsort(-np.where(eligible[row], key, -np.inf))[:slots]].sum(1)
        spare = random.uniform(0.01, 0.05, count) * total if kind == "real" else random.integers(0, 2, count)
        more = (0.05 * total if kind == "real" else np.ones(count)) * (row % 5 == 0)
        if side != "caps":
            floor[row] = np.maximum(total - spare + more, 0)
        if side != "floors":
            cap[row] = np.maximum(total + spare + (more if side == "both" else -more), 0)
    return value, eligible, floor, cap


class Fickle:
    """A model that changes its mind altogether after every choice."""

    def __init__(self, seed, items):
        self.random, self.items = np.random.default_rng(seed), items

    def start(self, histories):
        return len(histories)

    def logits(self, state):
        return torch.from_numpy(5 * self.random.normal(size=(state, self.items)))

    def advance(self, state, items):
        return state


class Solver:
    """Counts what the exact solver is asked inside a `with` block, by what it finds."""

    def __enter__(self):
        self.count = {"solver": 0, "proofs": 0, "gave up": 0}
        self.exact = guard._exact

        def counted(value, eligible, floor, cap, size):
            place, reach, settled = self.exact(value, eligible, floor, cap, size)
            kept = False
            if place is not None:
                total = (value[:, place] * eligible[place]).sum(1)
                kept = bool(((total >= floor - guard.slack_of(floor)) & (total <= cap + guard.slack_of(cap))).all())
            self.count["solver" if kept else "proofs" if settled else "gave up"] += 1
            return place, reach, settled

        guard._exact = counted
        return self

    def __exit__(self, *error):
        guard._exact = self.exact


def added(cells, **about):
    """Cells counted together."""
    counts = {name: sum(c[name] for c in cells) for name in ("runs", "feasible", "infeasible", *COUNTS)}
    return {**about, **counts, "slowest": max(c["slowest"] for c in cells)}


def with_intervals(cell):
    sure = {f"{n} interval": record.clopper_pearson(cell[n], cell[OF[n.rsplit(" ", 1)[0]]]) for n in COUNTS}
    return {**cell, "interval": sure["missed static interval"], "interval_of": "missed static / feasible", **sure}


def line(cell):
    """A row of the table; two numbers are for static and fickle scores."""
    pairs = {name: f"{cell[f'{name} static']} {cell[f'{name} fickle']}" for name in OF}
    return {"values": cell["kind"], "targets": cell["side"], "M": cell["items"], "rows": cell["runs"],
            "feasible": cell["feasible"], "infeasible": cell["infeasible"], **pairs,
            "slowest batch, s": f"{cell['slowest']:.2f}"}  # fmt: skip


if __name__ == "__main__":
    main()
