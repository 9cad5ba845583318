"""How good are autoregressive slates? Against every slate there is, in worlds small enough to try them all.

12 items, 4 slots, so up to 11,880 ordered slates a row. Some items of each row are excluded, and the floor is met
by some slate of nearly every row. Worlds (see `spdd.data.worlds`):

- MoodWorld: what is shown moves the scores, as in real models. The objective is a genre. The main one.
- Checkerboard: the other colour wins; starting right decides everything.
- GaussianWorld: scores drift at random, the paper's Assumption 1 to the letter.

A slate is worth the sum of its items' probabilities, each taken when its slot was filled: what a user who picks items
with the model's probabilities is expected to pick. Logits would not do: they are relative to a constant that is
another in every slot, so their sum can be negative and regret has no natural unit. The last two are exceptions:
GaussianWorld's scores are made to be relevance in [0, 1], and Checkerboard counts in scores; both count as they are.

    regret     (best - worth) / best of rows whose slate keeps the floor; best: the best slate that keeps it
    worth      worth / best of all rows that can keep the floor, whether they did or not
    attained   share of rows that keep the floor, of those that can
    share      objective items per slot

All with 95 % intervals, resampling worlds. The bandits learnt from simulated clicks in other worlds; WA, MMR, DPP,
Calibrated and ProviderMaxMin have fixed weights.

    python benchmarks/tiny_worlds.py [--worlds 100] [--rows 4] [--only PART_OF_A_NAME] [--out FILE]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

import record
import spdd
from spdd.data.worlds import Checkerboard, GaussianWorld, MoodWorld
from spdd.decode.bandits import gini
from spdd.decode.oracle import autoregressive_optimum, enumerate_slates

ITEMS, SLOTS, EXCLUDED = 12, 4, 2
TRAINING = 60  # worlds the bandits learn from, a batch of slates each


class Case(NamedTuple):
    """A kind of world, the floor asked in it, and the scale on which its slates are worth something."""

    world: Callable[[int], object]  # seed -> model
    floor: int
    scale: str
    vectors: bool = False  # whether items have embeddings


CASES = {
    "MoodWorld, floor 2": Case(lambda seed: MoodWorld(seed=seed), 2, "probability", True),
    "MoodWorld, floor 3": Case(lambda seed: MoodWorld(seed=seed), 3, "probability", True),
    "MoodWorld (pull 0.6), floor 2": Case(lambda seed: MoodWorld(seed=seed, pull=0.6), 2, "probability", True),
    "Checkerboard, floor 3": Case(lambda seed: Checkerboard(), 3, "identity"),
    "GaussianWorld, floor 2": Case(lambda seed: GaussianWorld(seed=seed), 2, "identity"),
}


def decoders(case, bandits):
    """name -> (world, objectives) -> decoder"""

    def spdd_(**settings):
        return lambda world, o: spdd.SPDD(o, SLOTS, **settings)

    def split(world):
        value = torch.as_tensor(world.value).double()
        return torch.stack([value, 1 - value], 1), [case.floor, SLOTS - case.floor]

    out = {
        "Greedy": lambda world, o: spdd.Greedy(o, SLOTS),
        **{f"WA {w}": lambda world, o, w=w: spdd.WA(o, SLOTS, weight=w) for w in (0.33, 0.5, 0.67, 0.8)},
        "EPR 0.5, pool 8": lambda world, o: spdd.EPR(o, SLOTS, weight=0.5, pool=8),
        "MustFill": lambda world, o: spdd.MustFill(o, SLOTS),
        "SPDD as printed": spdd_(scale=case.scale, start=1.0, rate=1.0, guard=False),
        "SPDD": spdd_(),
        "SPDD, rate 0": spdd_(rate=0.0),
        "SPDD, warm": spdd_(start="warm"),
        "SPDD, start 1": spdd_(start=1.0),
        "BanditUCB": lambda world, o: bandits["UCB"].bind({"wanted": o[0].value}),
        "BanditTS": lambda world, o: bandits["TS"].bind({"wanted": o[0].value}),
        "Calibrated 0.5": lambda world, o: spdd.Calibrated(*split(world), slots=SLOTS, weight=0.5, objectives=o),
    }
    # Distances and providers where a world has none of its own: vectors are the objective's two kinds, providers thirds
    # of the catalogue. ProviderMaxMin learns from world to world, as it would from batch to batch.
    vectors = (lambda world: world.vectors) if case.vectors else (lambda world: split(world)[0])
    for kind in (spdd.MMR, spdd.DPP):
        name = f"{kind.__name__} 0.5"
        out[name] = lambda world, o, kind=kind: kind(vectors(world), slots=SLOTS, weight=0.5, objectives=o)
    fair = spdd.ProviderMaxMin(torch.arange(ITEMS) % 3, slots=SLOTS, weight=0.5, objectives=[whole(case)])
    out["ProviderMaxMin 0.5"] = lambda world, o: fair.bind({"wanted": o[0].value})
    if case.scale != "identity":
        out["SPDD, probability"] = spdd_(scale="probability")
    return out


def whole(case):
    """The objective, for decoders that live longer than a world: its values are bound world by world."""
    return spdd.Objective("wanted", torch.zeros(ITEMS), at_least=case.floor)


def main():
    options = record.parser(__doc__)
    options.add_argument("--worlds", type=int, default=100)
    options.add_argument("--rows", type=int, default=4, help="of each world")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--only", default="", help="cases with this in their name")
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    about = record.origin("tiny_worlds", args)
    results = [line for name in CASES if args.only in name for line in measure(name, args)]
    record.table([{"case": r["case"], "decoder": r["decoder"], "met": f"{r['met']}/{r['runs']}",
                   "regret % (95%)": record.percent(r["regret"], r["interval"]) if r["met"] else "-",
                   "worth % (95%)": record.percent(r["worth"], r["worth_interval"], 1),
                   "attained % (95%)": record.percent(r["attained"], r["attained_interval"], 1),
                   "share % (95%)": record.percent(r["share"], r["share_interval"], 1)} for r in results])  # fmt: skip
    record.write(about, results, args.out)


def measure(name, args):
    """One line per decoder."""
    case = CASES[name]
    makers = decoders(case, {kind: train(kind, case, args.seed) for kind in ("UCB", "TS")})
    found = {decoder: {"regret": [], "worth": [], "attained": [], "share": []} for decoder in makers}
    worlds, impossible = [], 0
    for number in record.progress(range(args.worlds), name):
        seed = args.seed * 1_000_003 + number
        world, histories, excluded = scene(case, seed, args.rows)
        value = torch.as_tensor(world.value).double()
        best = torch.tensor([best_slate(case, world, histories[r : r + 1], excluded[r]) for r in range(args.rows)])
        can = torch.isfinite(best)
        worlds += [number] * int(can.sum())
        impossible += int((~can).sum())
        objective = spdd.Objective("wanted", value, at_least=case.floor)
        for decoder, make in makers.items():
            slate = make(world, [objective]).generate(world, histories, exclude=excluded)
            worth = (worth_of(case, world, histories, excluded, slate.items) / best).round(decimals=12)
            met = slate.status == spdd.MET
            into = found[decoder]
            into["regret"] += (1 - worth).where(met, torch.nan)[can].tolist()
            into["worth"] += worth[can].tolist()
            into["attained"] += met[can].double().tolist()
            into["share"] += (slate.gained[:, 0] / SLOTS)[can].tolist()
    lines = []
    for decoder, columns in found.items():
        regret, worth, attained, share = (np.array(columns[c]) for c in ("regret", "worth", "attained", "share"))
        lines.append({
            "case": name, "decoder": decoder, "runs": len(worth), "impossible": impossible, "met": int(attained.sum()),
            "regret": float(np.nanmean(regret)) if attained.any() else np.nan,
            "interval": record.bootstrap(regret, worlds, seed=args.seed), "interval_of": "mean regret of rows that are met",
            "worth": float(worth.mean()), "worth_interval": record.bootstrap(worth, worlds, seed=args.seed),
            "attained": float(attained.mean()), "attained_interval": record.share(attained, worlds, seed=args.seed),
            "share": float(share.mean()), "share_interval": record.bootstrap(share, worlds, seed=args.seed),
        })  # fmt: skip
    return lines


def scene(case, seed, rows):
    """A world, histories (R, 1) and excluded items (R, M)."""
    random = torch.Generator().manual_seed(seed)
    histories = torch.randint(0, 1 << 30, (rows, 1), generator=random)
    excluded = torch.zeros(rows, ITEMS, dtype=torch.bool)
    out = torch.rand(rows, ITEMS, generator=random).argsort(1)[:, :EXCLUDED]
    return case.world(seed), histories, excluded.scatter(1, out, True)


def relevance(case, logits, excluded):
    """(R, M) what showing an item next is worth."""
    if case.scale == "identity":
        return logits
    return logits.masked_fill(excluded, -torch.inf).softmax(1)


def best_slate(case, world, history, excluded):
    """Worth of the best slate that keeps the floor; -inf if there is none."""
    every = enumerate_slates(
        world,
        history,
        slots=SLOTS,
        exclude=excluded.nonzero()[:, 0].tolist(),
        relevance=lambda logits: relevance(case, logits, excluded),
    )
    return autoregressive_optimum(every, world.value, floor=case.floor).relevance


def worth_of(case, world, histories, excluded, items):
    """(R,) worth of the slates: the model is asked again, so that every decoder is measured alike."""
    state, total = world.start(histories), torch.zeros(len(items), dtype=torch.float64)
    for column in items.unbind(1):
        total += relevance(case, world.logits(state), excluded).gather(1, column[:, None])[:, 0]
        state = world.advance(state, column)
    return total


def train(kind, case, seed):
    """A bandit that has seen simulated clicks: a shown item is clicked with its relative relevance as chance.

    Its reward is the Gini index, weights (0.75, 0.25), of clicks and clicks on the objective's items per slot.
    Worlds and rows are others than those it is measured on.
    """
    first = case.world(0)
    objective = spdd.Objective("wanted", torch.as_tensor(first.value).double(), at_least=case.floor)
    bandit = {"UCB": spdd.BanditUCB, "TS": spdd.BanditTS}[kind]([objective], SLOTS, seed=seed)
    random = torch.Generator().manual_seed(seed)
    for number in range(TRAINING):
        world, histories, excluded = scene(case, -1 - number - seed * 1_000_003, rows=16)
        value = torch.as_tensor(world.value).double()
        slate = bandit.bind({"wanted": value}).generate(world, histories, exclude=excluded)
        clicked = torch.rand(slate.items.shape, generator=random) < slate.relevance
        wanted = value[slate.items] > 0
        bandit.learn(slate, gini([clicked.double().mean(1), (clicked & wanted).double().mean(1)], [0.75, 0.25]))
    return bandit


if __name__ == "__main__":
    main()
