"""How well SASRec ranks the next item, and what a slot of decoding costs.

Every user's last item is the test, the one before it is validation; all items are ranked, seen ones masked. Beside it:
popularity, and item-kNN on co-occurrence. The named configs are trained one after another in equal shares of the time
that is left, each until validation stops improving, and the best one on validation is the chosen one. Intervals (95 %)
resample users. Needs torch and numpy alone; `--make-data` needs the loaders' packages too.

    python benchmarks/sasrec.py --make-data FOLDER OUT           # FOLDER/amazon-sports, FOLDER/polimi-playlists
    python benchmarks/sasrec.py --data OUT/sports.npz --seconds 160 --out results.jsonl
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
import tempfile
import time
import warnings

import numpy as np
import torch

import record
from spdd.data import prepared
from spdd.models import neighbours, ranking, train
from spdd.models.histories import aligned
from spdd.models.next_item import NextItem
from spdd.models.sasrec import Config, SASRec

SLOTS = 30
PAPER = Config(), train.Settings(batch=256, rate=1e-3, precision="bf16", seconds=70)
TUNED = Config(
    width=128, heads=4, history=50, inner=2, dropout=0.5, positions="rotary", loss="softmax", temperature=0.08
)
WIDE = dataclasses.replace(TUNED, width=192, hidden_items=0.1)
SHY = dataclasses.replace(TUNED, hidden_items=0.1)  # playlists are few: 105,553 events
STEADY = train.Settings(batch=256, rate=3e-3, decay=0.01, optimizer="adamw", warmup=50, precision="bf16", patience=12)
CONFIGS = {
    "sports": {
        "paper": PAPER,
        "cosine": (TUNED, dataclasses.replace(STEADY, rate=1.5e-3)),
        "cosine-soft": (dataclasses.replace(TUNED, temperature=0.1), dataclasses.replace(STEADY, batch=512, rate=2e-3)),
        "cosine-wide": (WIDE, dataclasses.replace(STEADY, batch=512, rate=2e-3)),
    },
    "polimi": {
        "paper": (PAPER[0], dataclasses.replace(PAPER[1], batch=64)),
        "cosine": (SHY, dataclasses.replace(STEADY, batch=64)),
        "cosine-wide": (dataclasses.replace(SHY, width=192), dataclasses.replace(STEADY, batch=64, rate=2e-3)),
    },
}


def main() -> None:
    options = record.parser(__doc__)
    options.add_argument("--data", type=pathlib.Path, help="a prepared split: sports.npz or polimi.npz")
    options.add_argument("--config", action="append", help="one of its configs; all of them when left out")
    options.add_argument("--seconds", type=float, default=160, help="time for everything")
    options.add_argument("--commit", help="the commit, where there is no repository to ask")
    options.add_argument("--device", help="cpu or cuda; what there is when left out")
    options.add_argument("--judged", type=int, help="validation users that decide when to stop; all when left out")
    options.add_argument("--keep", type=pathlib.Path, help="folder for the best weights of every config")
    options.add_argument("--make-data", nargs=2, type=pathlib.Path, metavar=("FOLDER", "OUT"))
    args = options.parse_args()
    if args.make_data:
        make_data(*args.make_data)
        return
    end = time.monotonic() + args.seconds
    split = prepared.load(args.data)
    name, out, place = args.data.stem, args.out, train.device(args.device)
    configs = CONFIGS[name] if args.config is None else {c: CONFIGS[name][c] for c in args.config}
    about = record.origin("sasrec", args)
    settings = {"data": name, "seconds": args.seconds, "device": place.type, "judged": args.judged}
    about |= {"settings": settings, "commit": args.commit or about["commit"]}
    size = {"users": len(split.train), "items": len(split.items.id), "events": len(split.train.item)}
    print(name, size, "test items unknown to train:", int((split.test.item < 0).sum()), flush=True)
    rows = []

    def note(model, **result):
        rows.append({"model": model, **result})
        with (out or pathlib.Path("/dev/null")).open("a", encoding="utf-8") as file:  # at once: time may run out
            file.write(json.dumps({**about, **rows[-1]}) + "\n")
        if "test" in result:
            record.table([{"model": model, **spoken(result)}])

    note("popularity", **judge(split, neighbours.Popularity(torch.from_numpy(split.popularity()).to(place)), place))
    note("item-kNN", **judge(split, neighbours.item_knn(split.train, size["items"]).to(place), place))
    for left, (config, what) in zip(range(len(configs), 0, -1), configs.items(), strict=True):
        share = (end - time.monotonic() - 8) / left
        keep = args.keep and args.keep / f"{name}-{config}.pt"
        note(config, **trained(split, *what, share, args.seed, place, args.judged, keep))
    fitted = rows[2:]
    if fitted:
        best = max(fitted, key=lambda row: row["validation"]["ndcg@10"])["model"]
        print(f"chosen on validation: {best}", flush=True)
        note("timing", chosen=best, **timing(SASRec(size["items"], configs[best][0]).to(place).eval()))
    print(json.dumps({**about, "results": rows}))


# ---- how well ---------------------------------------------------------------------------------------------------


def trained(split, config, settings, seconds, seed, place, judged, keep=None) -> dict:
    """What came of one config: its settings, its way, and how it ranks."""
    settings = dataclasses.replace(settings, seed=seed, seconds=max(min(seconds, settings.seconds), 1.0))
    torch.manual_seed(seed)
    model = SASRec(len(split.items.id), config).to(place)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        fitted = train.fit(NextItem(model, split, settings, judged=judged), settings, folder)
        lines = [json.loads(line) for line in (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()]
        if keep:
            keep.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(pathlib.Path(folder) / "best.pt", keep)
    seconds = time.monotonic() - begun
    return {
        **judge(split, model, place),
        "config": dataclasses.asdict(config),
        "training": {**dataclasses.asdict(settings), "why": fitted.why, "epoch": fitted.epoch, "epochs": fitted.epochs},
        "seconds": round(seconds, 1),
        "curve": [round(line["metrics"]["ndcg@10"], 5) for line in lines],
        "losses": [round(line["loss"], 4) for line in lines],
    }


def judge(split, model, place) -> dict:
    """Recall@10 and NDCG@10 of both held-out items, with intervals."""
    found = {}
    for part in ("validation", "test"):
        histories = aligned(split.history(part).lists(), device=place)
        rank = ranking.ranks(model, histories, ranking.first_held_out(getattr(split, part)))
        each = {"recall@10": ranking.recall(rank).numpy(), "ndcg@10": ranking.ndcg(rank).numpy()}
        found[part] = {name: round(float(x.mean()), 5) for name, x in each.items()}
        found[part] |= {f"{name} interval": interval(x) for name, x in each.items()}
    return found


def interval(values, draws=2000) -> list[float]:
    """95 % interval of the mean over users. Few distinct values: how often each is drawn is one multinomial."""
    value, count = np.unique(values, return_counts=True)
    means = np.random.default_rng(0).multinomial(len(values), count / len(values), draws) @ value / len(values)
    return [round(float(x), 5) for x in np.percentile(means, [2.5, 97.5])]


def spoken(result) -> dict:
    """A row of the table for people."""
    told = {}
    for part in ("validation", "test"):
        for metric in ("recall@10", "ndcg@10") if part in result else ():
            low, high = result[part][f"{metric} interval"]
            told[f"{part} {metric}"] = f"{result[part][metric]:.4f} ({low:.4f} to {high:.4f})"
    if "training" in result:
        told["epochs"] = (
            f"{result['training']['epoch'] + 1} of {result['training']['epochs']}, {result['training']['why']}"
        )
        told["seconds"] = f"{result['seconds']:.0f}"
    return told


# ---- how fast ---------------------------------------------------------------------------------------------------


@torch.no_grad()
def timing(model, repeats=3) -> dict:
    """Milliseconds of every slot, from the cache and by reading everything again, for rows with full histories."""
    place = model.embedding.weight.device
    rows = 256 if place.type == "cuda" else 16
    rng = torch.Generator().manual_seed(0)
    history = torch.randint(model.items, (rows, model.config.history), generator=rng).to(place)
    chosen = torch.randint(model.items, (SLOTS, rows), generator=rng).to(place)
    spent = {"incremental": np.zeros((repeats + 1, SLOTS)), "full": np.zeros((repeats + 1, SLOTS))}
    apart = 0.0
    for repeat in range(repeats + 1):  # the first one warms up
        state, read = model.start(history), history
        for slot in range(SLOTS):
            begun = _now(place)
            state = model.advance(state, chosen[slot])
            cached = model.logits(state)
            between = _now(place)
            read = torch.cat([read, chosen[slot][:, None]], 1)
            again = model(read)[:, -1] @ model.table.T
            spent["incremental"][repeat, slot] = between - begun
            spent["full"][repeat, slot] = _now(place) - between
            apart = max(float((cached - again).abs().max()), apart)  # in this order, nan comes through
    medians = {name: np.median(x[1:], 0) * 1000 for name, x in spent.items()}
    record.table(
        [{"slot": k + 1, **{f"{n} ms": f"{x[k]:.2f}" for n, x in medians.items()}} for k in (0, 4, 9, 14, 19, 24, 29)]
    )
    waits = _waits(model, history, chosen) if place.type == "cuda" else None
    print(
        f"{rows} rows, history {model.config.history}; scores at most {apart:.1e} apart; host waits: {waits}",
        flush=True,
    )
    slots = {f"{name} ms": [round(float(t), 3) for t in x] for name, x in medians.items()}
    return {"rows": rows, "history": model.config.history, "apart": apart, "host waits": waits, **slots}


def _waits(model, history, chosen) -> int:
    """How often the host waited for the GPU in all slots together."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        state = model.start(history)
        for items in chosen:
            model.logits(state)
            state = model.advance(state, items)
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(x.message) for x in told)


def _now(place) -> float:
    if place.type == "cuda":
        torch.cuda.synchronize(place)
    return time.perf_counter()


# ---- data -------------------------------------------------------------------------------------------------------


def make_data(folder: pathlib.Path, out: pathlib.Path) -> None:
    """Both data sets, each user's last two items held out, as files that numpy alone can read."""
    from spdd.data import amazon, playlists, split

    for name, data in (
        ("sports", amazon.read(folder / "amazon-sports", name="sports")),
        ("polimi", playlists.read(folder / "polimi-playlists", name="polimi")),
    ):
        prepared.save(split.leave_last(data), out / f"{name}.npz", name=name)
        print(data, "->", out / f"{name}.npz")


if __name__ == "__main__":
    main()
