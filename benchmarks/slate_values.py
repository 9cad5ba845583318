"""How often is a target that depends on the slate missed, although some slate keeps it?

Small random worlds (10 items, slates of 4) where every slate can be tried, so that what is possible and what the best
slate costs are known; then larger ones (60 items, slates of 8) where a coverage or calibration floor is set at a part
of what greedy selection for that value alone reaches. Relevance prefers few artists, few genres and old items, so
that plain decoding misses nearly everything.

    python benchmarks/slate_values.py [--worlds 250] [--rows 8] [--seed 0] [--only PART_OF_A_NAME]
"""

from __future__ import annotations

import itertools
import math

import torch

import record
import spdd
from spdd import MET, Objective

DECODERS = {
    "Greedy": lambda objectives, slots: spdd.Greedy(objectives, slots=slots),
    "MustFill": lambda objectives, slots: spdd.MustFill(objectives, slots=slots),
    "SPDD": lambda objectives, slots: spdd.SPDD(objectives, slots=slots),
}


class World:
    """Items with an artist, a genre or two and an age; `logits` (R, M) that like the first artists and old items."""

    def __init__(self, seed, items, rows, artists, genres):
        self.random = torch.Generator().manual_seed(seed)
        self.artist = (self.rand(items) ** 1.5 * artists).long()
        self.genre = (self.rand(items, genres) < 0.15).double()
        self.genre[torch.arange(items), (self.rand(items) ** 2 * genres).long()] = 1
        self.new = (self.rand(items) < torch.where(self.artist == 0, 0.7, 0.3)).double()
        self.worth = self.rand(items).double().round(decimals=2)
        self.taste = self.rand(genres) + 0.1
        taste = torch.randn(items, generator=self.random) - 1.5 * self.new - 0.5 * self.artist
        self.logits = taste - 0.5 * self.genre.argmax(1) + torch.randn(rows, items, generator=self.random)
        self.exclude = self.rand(rows, items) < 0.25

    def rand(self, *shape):
        return torch.rand(*shape, generator=self.random)


def one_artist(world, most=1):
    return spdd.at_most_per_group("artists", world.artist, most)


def new(world, least):
    return Objective("new", world.new, at_least=least)


def floor(name, value, world, slots, part):
    """At least `part` of the most any of `slots` items can reach."""
    totals = total(value, sets(len(world.artist), slots)) if callable(value) else value[sets(len(value), slots)].sum(1)
    return Objective(name, value, at_least=part * totals.max().item())


# name -> objectives of a small world
SMALL = {
    "at most 1 per artist": lambda w, k: [one_artist(w)],
    "at most 2 per artist": lambda w, k: [one_artist(w, 2)],
    "artists 2 apart": lambda w, k: [spdd.spacing("apart", w.artist, 2)],
    "artists 3 apart": lambda w, k: [spdd.spacing("apart", w.artist, 3)],
    "coverage >= 90% of best": lambda w, k: [floor("coverage", spdd.coverage(w.genre), w, k, 0.9)],
    "coverage = best": lambda w, k: [floor("coverage", spdd.coverage(w.genre), w, k, 1.0)],
    "calibration >= 90% of best": lambda w, k: [floor("taste", spdd.calibration(w.genre, w.taste), w, k, 0.9)],
    "calibration = best": lambda w, k: [floor("taste", spdd.calibration(w.genre, w.taste), w, k, 1.0)],
    "new >= 2, at most 1 per artist": lambda w, k: [new(w, 2), one_artist(w)],
    "new >= 3, at most 1 per artist": lambda w, k: [new(w, 3), one_artist(w)],
    "new >= 3, at most 2 per artist": lambda w, k: [new(w, 3), one_artist(w, 2)],
    "worth >= 70%, at most 1 per artist": lambda w, k: [floor("worth", w.worth, w, k, 0.7), one_artist(w)],
    "new >= 2, artists 2 apart": lambda w, k: [new(w, 2), spdd.spacing("apart", w.artist, 2)],
    "new >= 3, artists 3 apart": lambda w, k: [new(w, 3), spdd.spacing("apart", w.artist, 3)],
    "new >= 2, coverage >= 90%": lambda w, k: [new(w, 2), floor("coverage", spdd.coverage(w.genre), w, k, 0.9)],
    "coverage >= 90%, at most 1 per artist": lambda w, k: [
        floor("coverage", spdd.coverage(w.genre), w, k, 0.9),
        one_artist(w),
    ],
    "new >= 2, coverage >= 80%, at most 2 per artist": lambda w, k: [
        new(w, 2),
        floor("coverage", spdd.coverage(w.genre), w, k, 0.8),
        one_artist(w, 2),
    ],
}

# name -> the value of a larger world whose floor is a part of what greedy selection reaches
LARGE = {
    "coverage (sqrt)": lambda w: spdd.coverage(w.genre),
    "coverage (genres)": lambda w: spdd.coverage(w.genre, 1),
    "calibration": lambda w: spdd.calibration(w.genre, w.taste),
}
PARTS = (0.8, 0.9, 0.95, 1.0)


def main():
    parser = record.parser(__doc__)
    parser.add_argument("--worlds", type=int, default=250)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="")
    settings = parser.parse_args()
    torch.set_num_threads(settings.threads)
    results = [
        *(small(name, settings) for name in SMALL if settings.only in name),
        *(large(name, part, settings) for name in LARGE for part in PARTS if settings.only in f"{name} large"),
    ]
    print(f"{'':50}{'possible':>9}  missed where possible, in % (95% interval)   relevance lost")
    print(
        f"{'':50}{'rows':>9}{''.join(f'{d:>20}' for d in DECODERS)}{''.join(f'{d:>10}' for d in ('MustFill', 'SPDD'))}"
    )
    for r in results:
        missed = "".join(f"{interval(r['missed'][d], r['possible']):>20}" for d in DECODERS)
        lost = "".join(f"{r['lost'][d]:10.3f}" if r["lost"] else f"{'-':>10}" for d in ("MustFill", "SPDD"))
        print(f"{r['name']:50}{r['possible']:9}{missed}{lost}")
    record.write(record.origin("slate_values", settings), results, settings.out)


def small(name, settings, items=10, slots=4):
    """Against every slate there is: missed where possible, and relevance below the best slate that keeps the targets."""
    missed, lost, met, possible = (
        dict.fromkeys(DECODERS, 0),
        dict.fromkeys(DECODERS, 0.0),
        dict.fromkeys(DECODERS, 0),
        0,
    )
    for seed in range(settings.worlds):
        world = World(settings.seed + seed, items, settings.rows, artists=5, genres=5)
        objectives = SMALL[name](world, slots)
        every = torch.cat([order(s) for s in sets(items, slots)]) if "apart" in name else sets(items, slots)
        keeps = torch.ones(len(every), dtype=torch.bool)
        for o in objectives:
            gained = total(o.value, every) if o.depends_on_slate else o.value[every].sum(1)
            low, high = o.targets(slots)
            keeps &= (gained >= (low or 0) - 1e-6) & (gained <= (math.inf if high is None else high) + 1e-6)
        # A row that may not have its excluded items can only choose among slates without them.
        can = keeps & ~world.exclude[:, every].any(2)  # (R, slates)
        best = world.logits[:, every].sum(2).double().masked_fill(~can, -torch.inf).amax(1)
        possible += int(can.any(1).sum())
        for decoder, make in DECODERS.items():
            slate = make(objectives, slots).rerank(world.logits, exclude=world.exclude)
            kept = (slate.status == MET) & can.any(1)
            missed[decoder] += int((can.any(1) & ~kept).sum())
            lost[decoder] += (best - slate.relevance.sum(1))[kept].sum().item()
            met[decoder] += int(kept.sum())
    lost = {d: round(lost[d] / max(met[d], 1), 4) for d in DECODERS}
    return {"name": name, "possible": possible, "missed": missed, "lost": lost}


def large(name, part, settings, items=60, slots=8):
    """Floors that greedy selection for the value alone is known to reach."""
    missed, possible = dict.fromkeys(DECODERS, 0), 0
    for seed in range(settings.worlds):
        world = World(settings.seed + seed, items, settings.rows, artists=20, genres=10)
        value = LARGE[name](world)
        objective = Objective("floor", value, at_least=(part * selected(value, world.exclude, slots)).tolist())
        possible += settings.rows
        for decoder, make in DECODERS.items():
            slate = make([objective], slots).rerank(world.logits, exclude=world.exclude)
            missed[decoder] += int((slate.status != MET).sum())
    return {"name": f"{name} >= {part:.0%} of greedy", "possible": possible, "missed": missed, "lost": None}


def sets(items, slots):
    return torch.tensor(list(itertools.combinations(range(items), slots)))


def order(items):
    return torch.tensor(list(itertools.permutations(items.tolist())))


def total(value, slates):
    """(N,) the values of each slate's items, added up as it fills. slates: (N, K)"""
    gained, chosen = torch.zeros(len(slates), dtype=torch.float64), torch.full_like(slates, -1)
    for slot in range(slates.shape[1]):
        gained += value(chosen).gather(1, slates[:, slot : slot + 1])[:, 0]
        chosen[:, slot] = slates[:, slot]
    return gained


def selected(value, exclude, slots):
    """(R,) what a slate reaches whose every item adds most to the value."""
    chosen, barred = torch.full((len(exclude), slots), -1), exclude.clone()
    gained = torch.zeros(len(exclude), dtype=torch.float64)
    for slot in range(slots):
        best, item = value(chosen).masked_fill(barred, -1).max(1)
        chosen[:, slot], gained = item, gained + best
        barred = barred.scatter(1, item[:, None], True)
    return gained


def interval(hits, of):
    """Per cent, with Wilson's 95 % interval: rows of a world are not quite independent, so read it as a lower bound."""
    if not of:
        return "-"
    p, z = hits / of, 1.96
    middle, half = p + z * z / (2 * of), z * math.sqrt(p * (1 - p) / of + z * z / (4 * of * of))
    low, high = ((middle + s * half) / (1 + z * z / of) * 100 for s in (-1, 1))
    return f"{100 * p:.1f} ({max(low, 0):.1f}-{high:.1f})"


if __name__ == "__main__":
    main()
