"""Floors in every slate: what was tried to keep more of what users consume, and why it costs nothing on shelves.

    python benchmarks/attainment.py --work WORK --domain playlists --users 4000 --out benchmarks/results/cpu-2core/attainment.jsonl

    python benchmarks/attainment.py --page          # docs/attainment.md, from the results

WORK is the folder that `benchmarks/evaluation.py --prepare` made. Everything is decoded for the same test users and
judged at the same floor; `spdd tune` sees validation users alone. Each point is kept on disk, so a run goes on.

The ideas, each a curve of its own:

    pace, rate, first price, scale     settings `SPDD` has
    price of traffic                   per="both": slates start at the price all traffic shares, the guard keeps the floor
    row's own scale                    logits divided by their row's spread, so that a nat is worth the same to everyone
    looking ahead                      of the best four, the item with the most likely pair of itself and its successor
    order                              the default's items, sorted again: the objective's up or down at the same count (`lift`)
    tuned                              what `spdd tune` finds on validation users; "consumption alone": its other rule, spare 0
"""

from __future__ import annotations

import copy
import functools
import json
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import evaluation
import record
from spdd.decode.decoder import Decoder
from spdd.evaluate import grid
from spdd.evaluate import tune as search
from spdd.evaluate.bootstrap import draw_users, known, quotient
from spdd.evaluate.metrics import Ratio, measure
from spdd.evaluate.sweep import Bench, Point, read, sweep
from spdd.evaluate.verdicts import ATTAINED

FLOOR, SLOTS = evaluation.FLOOR, evaluation.SLOTS
DEFAULT, TUNED, TUNED_ALONE = "SPDD by default", "SPDD tuned", "SPDD tuned, consumption alone"
RIVALS = ("WA", "WA, relative", "SPDD as printed", "must-fill")
RESULTS = record.ROOT / "benchmarks" / "results" / "cpu-2core" / "attainment.jsonl"
PAGE = record.ROOT / "docs" / "attainment.md"
WIDTH = 4  # items that are looked behind
NEAR = 0.004  # above ATTAINED, where the search for a rival's smallest weight ends


# ---- what is tried ------------------------------------------------------------------------------------------------


def points(rivals: bool = False) -> list[Point]:
    """Everything; or rivals and the default alone, weights from where some domains keep the floor to where all do."""
    share = FLOOR / SLOTS
    prices, parts = (grid.PRICES[6:11], grid.PARTS[5:9]) if rivals else (grid.PRICES, grid.PARTS[3:])
    found = [Point("greedy", {}, "greedy"), grid.aimed("must-fill", share, SLOTS, "must-fill")]
    found += [grid.weighed("WA", p, "wa") for p in prices]
    found += [grid.weighed("WA, relative", p, "wa", scale="relative") for p in parts]
    found += [
        grid.aimed("SPDD as printed", share, SLOTS, "spdd", **grid.PRINTED),
        grid.aimed("SPDD as printed, relative", share, SLOTS, "spdd", **{**grid.PRINTED, "scale": "relative"}),
        grid.aimed(DEFAULT, share, SLOTS, "spdd"),
    ]
    if rivals:
        return found
    settings: dict[str, dict[str, Any]] = {
        "pace remaining": {"pace": "remaining"},
        "rate 0": {"rate": 0.0},
        "rate 1": {"rate": 1.0},
        "first price 0.1": {"start": 0.1},
        "first price 0.6": {"start": 0.6},
        "first price warm": {"start": "warm"},
        "relative scale, first price 0.05": {"scale": "relative", "start": 0.05},
        "relative scale, first price 0.1": {"scale": "relative", "start": 0.1},
    }
    found += [grid.aimed(name, share, SLOTS, "spdd", **some) for name, some in settings.items()]
    found.append(grid.aimed("price of traffic", share, SLOTS, "spdd", per="both"))
    found.append(grid.aimed("row's own scale", share, SLOTS, "row's own scale"))
    found += [Point("looking ahead", {"part": part}, "looking ahead", {}, {"at_least": FLOOR}) for part in (0.3, 1.0)]
    orders = {"order, objective last": -1e9, "order, by relevance": 0.0, "order, objective up 1": 1.0}
    return found + [grid.aimed(name, share, SLOTS, "spdd", lift=lift) for name, lift in orders.items()]


def with_ideas(bench: Bench) -> Bench:
    """The bench, which knows the decoders of this file too."""

    def policy(point: Point) -> Callable[[Any], Any]:
        if point.decoder not in IDEAS:
            return bench.policy(point)
        decoder = grid.decoder_of(point._replace(decoder="spdd"), bench.domain.value, SLOTS)
        return lambda batch: IDEAS[point.decoder](decoder, batch, bench.domain.value, point.knob)

    return bench._replace(policy=policy)


class Chosen(NamedTuple):
    """As much of a slate as a sweep looks at."""

    items: torch.Tensor


class RowScaled:
    """A model whose logits are measured in the spread of each row's own plain slate (times its mean over rows)."""

    def __init__(self, model: Any):
        self.model = model

    def start(self, histories):
        state = self.model.start(histories)
        best = self.model.logits(state).double().topk(SLOTS + 1, 1).values
        spread = (best[:, 0] - best[:, -1]).clamp_min(1e-6)
        return state, (spread / spread.mean())[:, None]

    def logits(self, state):
        return self.model.logits(state[0]).double() / state[1]

    def advance(self, state, items):
        return self.model.advance(state[0], items), state[1]


def row_scaled(decoder: Decoder, batch, value, knob):
    return decoder.generate(RowScaled(batch.model), batch.histories, exclude=batch.exclude)


@torch.no_grad()
def looking_ahead(decoder: Decoder, batch, value, knob) -> Chosen:
    """Slot by slot the best of `WIDTH` priced items, each with its log-probability and a part of its best successor's.

    The price moves and the floor is forced as in the default; a floor on 0/1 values needs no more than counting.
    """
    model, worth = batch.model, torch.as_tensor(value, dtype=torch.float64)
    state = model.start(batch.histories)
    logits = model.logits(state).double()
    open_ = _open(decoder, batch, logits)
    rows, chosen = torch.arange(len(logits)), []
    gained = torch.zeros(len(logits), dtype=torch.float64)
    for slot in range(SLOTS):
        price = 0.3 * torch.exp(-0.3 * (gained - slot * FLOOR / SLOTS))
        forced = (FLOOR - gained >= SLOTS - slot)[:, None] & (worth <= 0)
        chance = logits.masked_fill(~open_, -torch.inf).log_softmax(1)
        scores = (chance + price[:, None] * worth).masked_fill(forced, -torch.inf)
        best, items = scores.topk(WIDTH, 1)
        if slot + 1 < SLOTS:
            for n in range(WIDTH):
                after = model.logits(model.advance(copy.deepcopy(state), items[:, n])).double()
                still = open_.clone()
                still[rows, items[:, n]] = False
                next_ = after.masked_fill(~still, -torch.inf).log_softmax(1).amax(1)
                best[:, n] += knob["part"] * next_
        taken = items[rows, best.argmax(1)]
        chosen.append(taken)
        gained += worth[taken]
        open_[rows, taken] = False
        if slot + 1 < SLOTS:
            state = model.advance(state, taken)
            logits = model.logits(state).double()
    return Chosen(torch.stack(chosen, 1))


IDEAS: dict[str, Callable[..., Any]] = {
    "row's own scale": row_scaled,
    "looking ahead": looking_ahead,
}


def _open(decoder: Decoder, batch, logits) -> torch.Tensor:
    from spdd.decode.arrays import eligible_items

    found = eligible_items(batch.exclude, batch.histories, logits)
    return torch.ones_like(logits, dtype=torch.bool) if found is None else found.clone()


# ---- running it ---------------------------------------------------------------------------------------------------


def main() -> None:
    options = record.parser(__doc__)
    options.add_argument("--work", type=pathlib.Path, help="the folder `evaluation.py --prepare` made")
    options.add_argument("--domain", action="append", choices=tuple(evaluation.CASES))
    options.add_argument("--users", type=int, help="test users; all when left out")
    options.add_argument("--tuned-on", type=int, default=2000, help="validation users")
    options.add_argument("--trials", type=int, default=16)
    options.add_argument("--rivals", action="store_true", help="rivals, the default and what tuning finds; no ideas")
    options.add_argument("--without", action="append", default=[], help="a curve that would take too long")
    options.add_argument("--page", action="store_true", help="write docs/attainment.md and end")
    args = options.parse_args()
    if args.page:
        PAGE.write_text(page([json.loads(line) for line in RESULTS.read_text("utf-8").splitlines()]), "utf-8")
        return print(PAGE.relative_to(record.ROOT))
    if not args.work:
        options.error("--work is missing: name the folder that evaluation.py --prepare made")
    for name in args.domain or evaluation.SWEPT:
        folder = args.work / name / f"attainment-{args.users or 'all'}{'-rivals' * args.rivals}"
        tuned = chosen(name, args, args.work / name / f"search-{args.tuned_on}")
        bench = with_ideas(evaluation.bench(name, args.work, args.users))
        done = 0

        def told(points_done: int, name: str = name) -> None:
            nonlocal done
            done += points_done
            print(f"{name}: {done} points", flush=True)

        run = functools.partial(sweep, lambda bench=bench: bench, folder=folder / "sweep", progress=told)
        every = [*(p for p in points(args.rivals) if p.curve not in args.without), *tuned]
        found = run(every)
        for curve in ("WA", "WA, relative"):
            every += narrowed(curve, found, run)
        run(every)  # so that the sweep's last run has all of them
        found = lines(folder / "sweep") + (log(args.work) if name == "shelves" and not args.rivals else [])
        about = record.origin("attainment", args)
        about["settings"] = {"floor": FLOOR, "slots": SLOTS, "tuned_on": args.tuned_on, "trials": args.trials}
        record.write(about, [{"domain": name, **x} for x in found], args.out)


def narrowed(curve: str, found: list[dict], run: Callable[[list[Point]], list[dict]], most: int = 6) -> list[Point]:
    """More prices of a weighted average, down to the smallest that keeps the floor: between two of a grid it may be far from either."""
    tried = sorted((r["knob"]["price"], r["metrics"]["attained"]) for r in found if r["curve"] == curve)
    low = max((price for price, attained in tried if attained < ATTAINED), default=None)
    high = min((one for one in tried if one[1] >= ATTAINED and (low is None or one[0] > low)), default=None)
    more: list[Point] = []
    while low and high and high[1] > ATTAINED + NEAR and len(more) < most:
        price = float(f"{(low * high[0]) ** 0.5:.4g}")
        more.append(grid.weighed(curve, price, "wa", **({"scale": "relative"} if curve != "WA" else {})))
        attained = run([more[-1]])[0]["metrics"]["attained"]
        low, high = (low, (price, attained)) if attained >= ATTAINED else (price, high)
    return more


def chosen(name: str, args, folder: pathlib.Path) -> list[Point]:
    """What `spdd tune` takes on validation users, by its own rule and by consumption alone."""
    bench = evaluation.bench(name, args.work, args.tuned_on, "validation")
    found = search.tune(bench, folder, view="slate", trials=args.trials, seed=args.seed)
    taken = [search.choose(found.trials, spare) for spare in (0.01, 0.0)]
    return [
        trial.point._replace(curve=curve, knob={**trial.point.knob, "spare": spare})
        for trial, curve, spare in zip(taken, (TUNED, TUNED_ALONE), (0.01, 0.0), strict=True)
        if trial is not None
    ]


def lines(folder: pathlib.Path) -> list[dict]:
    """Every point with its metrics, its consumption and objective over the keepers', and what a slot with the objective is worth."""
    swept = read(folder)
    drawn = draw_users(swept.about["users"])
    ratios = {r["key"]: measure(swept.outcome(r), swept.truth, FLOOR) for r in swept.records}
    keepers = {}
    for curve in (*RIVALS, DEFAULT):
        able = [r for r in swept.records if r["curve"] == curve and r["metrics"]["attained"] >= ATTAINED]
        if able:
            keepers[curve] = max(able, key=lambda r: r["metrics"]["ndcg"])["key"]
    found = [{**swept.about["about"], "part": "users", "users": swept.about["users"]}]
    for r in swept.records:
        own = ratios[r["key"]]
        others = {curve: key for curve, key in keepers.items() if key != r["key"]}
        hit = {n: known(x, drawn) for n, x in worth(swept.outcome(r)).items()}
        found.append({
            "part": "tried", "users": r["users"], "curve": r["curve"], "knob": r["knob"], "decoder": r["decoder"], "settings": r["settings"],
            "keeper": r["key"] in keepers.values(),
            **{m: list(known(own[m], drawn)) for m in ("ndcg", "objective_ndcg", "share", "attained")},
            "kept": {c: list(quotient(own["ndcg"], ratios[k]["ndcg"], drawn)) for c, k in others.items()},
            "more": {c: list(quotient(own["objective_ndcg"], ratios[k]["objective_ndcg"], drawn)) for c, k in others.items()},
            "taken": {n: list(x) for n, x in hit.items()},
        })  # fmt: skip
    return found


def worth(outcome) -> dict[str, Ratio]:
    """How many of the slots with an item of the objective were consumed, and of the others."""
    wanted = outcome.filled & (outcome.value > 0)
    other = outcome.filled & (outcome.value <= 0)
    return {
        name: Ratio((outcome.hit & which).sum(-1).astype(float), which.sum(-1).astype(float))
        for name, which in (("objective", wanted), ("other", other))
    }


def log(work: pathlib.Path) -> list[dict]:
    """Shelves: how often what is wanted was shown and taken in the log itself, whatever a model says."""
    import polars as pl

    from spdd.data import prepared
    from spdd.models.shelf_log import shelf_log
    from spdd.trained import by_request

    split = prepared.load(work / "shelves.npz")
    wanted = pl.read_parquet(work / "shelves-items.parquet")["fresh"].to_numpy() > 0
    held = shelf_log(split, ["is_click"])
    judged = (held.part == 2) & (held.log.label >= 0) & (held.log.item >= 0)
    fresh, taken = wanted[held.log.item[judged]], held.log.label[judged] > 0
    pool = by_request(split, "test", label="is_click").histories(slice(0, 2000)).pool.numpy()
    return [
        {
            "part": "log", "shown": int(judged.sum()), "wanted of shown": float(fresh.mean()), "wanted of candidates": float(wanted[pool[pool >= 0]].mean()),
            "taken of wanted": float(taken[fresh].mean()), "taken of others": float(taken[~fresh].mean()),
        }
    ]  # fmt: skip


# ---- the page -----------------------------------------------------------------------------------------------------

WORDS = {"playlists": "Playlists (SASRec)", "sports": "Sports (SASRec)", "shelves": "Shelves (TransAct)", "spelled": "Sports (a small LM-Rec, residual k-means ids)"}  # fmt: skip


def page(results: list[dict]) -> str:
    domains = [d for d in WORDS if any(x["domain"] == d for x in results)]
    groups: dict[str, dict[int, list[dict]]] = {d: {} for d in domains}
    for x in results:
        if x["part"] == "tried":
            groups[x["domain"]].setdefault(x["users"], []).append(x)
    # Ideas are judged where they all are; rivals and the default may stand on more users as well.
    tried = {d: max(groups[d].values(), key=len) for d in domains}
    commits = ", ".join(dict.fromkeys(x["commit"][:7] for x in results))
    parts = [
        "# Floors in every slate: what was tried",
        "Three of ten slots in every slate belong to the objective, and at least 95 % of slates have to keep that. How much of what users "
        "consume is left? This page has every idea that was tried to leave more, with its numbers, whether it helped or not. Slates are "
        "decoded item by item, judged by what users did later; brackets are 95 % intervals over users, the same users on every line. "
        "A rival stands at the weight that leaves most while the floor holds in 95 % of slates, of a grid and of a search between its points, chosen "
        "on these same users: that flatters it a little. "
        f"`python benchmarks/attainment.py`, commit {commits}; this page is made from `benchmarks/results/cpu-2core/attainment.jsonl`.",
        '*Pace, rate, first price, relative scale* are settings of `SPDD`. *Price of traffic*: `per="both"`, slates start at the price that all '
        "traffic shares. *Row's own scale*: logits divided by the spread of their row's plain slate, so that a nat is worth the same to everyone. "
        "*Looking ahead*: of the best four items the one whose log-probability, with a part of its best successor's, is largest. *Order*: `lift` of "
        "`SPDD`, the default's items sorted again by what the model said of them before the first slot, the objective's last, level or 1 nat "
        "up. *Tuned*: what `spdd tune` finds on validation users, by its own rule and by consumption alone.",
    ]
    for d in domains:
        for users in sorted(groups[d], reverse=True):
            parts += [f"## {WORDS[d]}, {users:,} users", _table(groups[d][users])]
    parts += ["## What helped", *_verdicts(tried), "## What a slot is worth", *_worths(results, tried)]
    return "\n\n".join(parts) + "\n"


def _table(tried: list[dict]) -> str:
    rows = [
        "| decoder | consumption | objective | slates with 3 | average share | consumption over the default's | over WA's |",
        "|---|---|---|---|---|---|---|",
    ]
    for x in tried:
        if x["curve"] in ("WA", "WA, relative") and not x["keeper"]:
            continue
        name = x["curve"] + "".join(f", {k} {v:g}" for k, v in x["knob"].items() if k in ("price", "part"))
        if x["curve"] in (TUNED, TUNED_ALONE):
            name += f" ({_settings(x)})"
        name = f"**{name}**" if x["curve"] == DEFAULT else name
        cells = [
            f"{x['ndcg'][0]:.4f}",
            f"{x['objective_ndcg'][0]:.4f}",
            f"{x['attained'][0]:.0%}",
            f"{x['share'][0]:.0%}",
        ]
        cells += [_known(x["kept"].get(c)) for c in (DEFAULT, "WA")]
        rows.append("| " + " | ".join([name, *cells]) + " |")
    return "\n".join(rows)


def _verdicts(tried: dict[str, list[dict]]) -> list[str]:
    """For each idea where it keeps more than the default, where less: by the interval, on consumption and on the objective."""
    known_ = {"greedy", "must-fill", "WA", "WA, relative", "SPDD as printed", "SPDD as printed, relative", DEFAULT}
    rivals_only = known_ | {TUNED, TUNED_ALONE}  # where nothing else was tried, an idea cannot have failed
    tried = {d: rows for d, rows in tried.items() if any(x["curve"] not in rivals_only for x in rows)}
    names = dict.fromkeys((x["curve"], x["knob"].get("part")) for rows in tried.values() for x in rows)
    lines_, more, up = [], [], []
    for curve, part in names:
        if curve in known_:
            continue
        at = {
            d: next((x for x in rows if x["curve"] == curve and x["knob"].get("part") == part), None)
            for d, rows in tried.items()
        }
        at = {d: x for d, x in at.items() if x is not None}
        name = curve + (f", part {part:g}" if part is not None else "")
        kept, gave = ({d: _side(x[field].get(DEFAULT)) for d, x in at.items()} for field in ("kept", "more"))
        lines_.append(
            f"- *{name}*: consumption {_said(kept, len(tried))}; the objective's NDCG {_said(gave, len(tried))}."
        )
        if len(at) == len(tried) and all(side == 1 for side in kept.values()):
            more.append(name)
        if (
            len(at) == len(tried)
            and all(side >= 0 for side in kept.values())
            and all(side == 1 for side in gave.values())
        ):
            up.append(name)
    end = (
        f"Above the default's consumption beyond the interval on every data set: {', '.join(more)}."
        if more else "No idea keeps more consumption than the default beyond the interval on every data set, so the default stays as it is."
    ) + (
        f" Level with it on consumption and above it on the objective's NDCG on every data set: {', '.join(up)}."
        if up else " None is level on consumption and above on the objective's NDCG on every data set."
    )  # fmt: skip
    return ["Against the default, by the interval:", "\n".join(lines_), end]


def _said(sides: dict[str, int], domains: int) -> str:
    """Where something is above, level and below."""
    if len(set(sides.values())) == 1 and len(sides) == domains > 1:
        return {1: "above", 0: "level", -1: "below"}[next(iter(sides.values()))] + " everywhere"
    words = {1: "above", 0: "level", -1: "below"}
    return ", ".join(
        f"{word} on {' and '.join(d for d in sides if sides[d] == side)}"
        for side, word in words.items()
        if side in sides.values()
    )


def _worths(results: list[dict], tried: dict[str, list[dict]]) -> list[str]:
    lines_ = []
    for d, rows in tried.items():
        greedy, ours = (next(x for x in rows if x["curve"] == c) for c in ("greedy", DEFAULT))
        lines_.append(
            f"- {WORDS[d]}: of the slots that the model itself gives to the objective {_known(greedy['taken']['objective'], '.2%')} were consumed, of the "
            f"others {_known(greedy['taken']['other'], '.2%')}; in the default's slates {_known(ours['taken']['objective'], '.2%')} and "
            f"{_known(ours['taken']['other'], '.2%')}."
        )
    parts = ["How many of the slots were consumed, by what stands there:", "\n".join(lines_)]
    held = next((x for x in results if x["part"] == "log"), None)
    if held is not None:
        weights = [x for x in tried["shelves"] if x["curve"] == "WA"]
        weights = weights[
            : 1 + next(n for n, x in enumerate(weights) if x["share"][0] > 0.99)
        ]  # beyond it nothing changes
        by_price = ", ".join(f"{x['knob']['price']:g}: {x['ndcg'][0]:.4f} at {x['share'][0]:.0%}" for x in weights)
        parts.append(
            f"On shelves the log says why. Of {held['shown']:,} impressions of the test days {held['wanted of shown']:.1%} are of the newest uploads, as "
            f"are {held['wanted of candidates']:.1%} of the candidates; {held['taken of wanted']:.1%} of these were opened, and {held['taken of others']:.1%} of the "
            "others. What is wanted is as good as the rest, so that giving it more slots costs next to nothing, at any price. Consumption and "
            f"average share of a weighted average, by its price in nats: {by_price}."
        )
    return parts


def _settings(x: dict) -> str:
    return ", ".join(
        [x["decoder"], *(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in x["settings"].items())]
    )


def _side(known_: list[float] | None) -> int:
    return 0 if known_ is None else (known_[1] > 1) - (known_[2] < 1)


def _known(known_: list[float] | None, form: str = ".2f") -> str:
    if known_ is None or known_[0] is None:
        return "–"
    return f"{known_[0]:{form}} ({known_[1]:{form}} to {known_[2]:{form}})"


if __name__ == "__main__":
    main()
