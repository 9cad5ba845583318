"""How well does a small Llama recommend that spells items in semantic ids, and does it matter which ids?

One model from scratch for each table of ids, the same in all else: trained on all but the last two items of every
user, stopped by the last but one, judged on the last (leave-one-out, all items ranked, seen ones barred, one search
with `--beams` beams). `--run` judges run folders of `spdd train lmrec` instead of training anything. Needs torch, numpy
and transformers alone.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import shutil
import tempfile
import time
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F

import record
from spdd.catalog import Catalog
from spdd.data import prepared
from spdd.models import lmrec, lmtask
from spdd.models.spelling import best_items
from spdd.models.train import Settings, fit
from spdd.trained import open_run


def main() -> None:
    args = options()
    split = prepared.load(args.data)
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    results = []
    for path in args.ids or ():
        results.append({"ids": path.stem, **one(args, split, Catalog.load(path), device, path.stem)})
        print(json.dumps(results[-1]), flush=True)
    for path in args.run or ():
        model = open_run(path, split, device=device.type, beams=args.beams).model
        results.append({"run": path.name, **judged(args, split, model), **trained_as(path)})
        print(json.dumps(results[-1]), flush=True)
    said = {k: v.name if isinstance(v, pathlib.Path) else v for k, v in vars(args).items()}
    about = record.origin("lmrec", args)
    about |= {"settings": {k: v for k, v in said.items() if k not in ("ids", "run", "out", "seed")}}
    about |= {"commit": args.commit or about["commit"]}
    record.write(about, results, args.out)


def one(args, split, catalog: Catalog, device, name: str) -> dict:
    """Train on one table of ids and judge."""
    begun = time.monotonic()
    # Of items that share an id, and so a probability, the one most often seen in training comes first.
    popularity = split.popularity()
    model = lmrec.small_llama(
        catalog.preferring(popularity),
        width=args.width,
        layers=args.layers,
        heads=args.heads,
        dropout=args.dropout,
        history=args.history,
        beams=args.beams,
        seed=args.seed,
    ).to(device)
    task = lmtask.LMTask(
        model, split, batch=args.batch, seed=args.seed, passes=args.passes, validate_on=args.validate_on
    )
    settings = Settings(
        epochs=args.epochs,
        batch=args.batch,
        rate=args.rate,
        decay=args.decay,
        patience=args.patience,
        precision="bf16" if device.type == "cuda" else "float32",
        seed=args.seed,
        optimizer="adamw",
        warmup=args.warmup,
        seconds=args.seconds,
    )
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lmrec-"))
    fitted = fit(task, settings, folder, resume=False)
    curve = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    if args.keep:
        args.keep.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "best.pt", args.keep / f"{name}.pt")
    shutil.rmtree(folder)
    trained = time.monotonic()
    return {
        **judged(args, split, model),
        "epochs": fitted.epochs,
        "best_epoch": fitted.epoch,
        "steps": fitted.steps,
        "why": fitted.why,
        "validation": fitted.best,
        "loss": [round(line["loss"], 4) for line in curve],
        "validation_recall@10": [round(line["metrics"]["recall@10"], 4) for line in curve],
        "train_seconds": round(trained - begun, 1),
        "test_seconds": round(time.monotonic() - trained, 1),
    }


def trained_as(run: pathlib.Path) -> dict:
    """How the ids of a run folder were made, and its way."""
    curve = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    return {
        "ids": json.loads((run / "ids.json").read_text("utf-8")),
        "steps": curve[-1]["steps"],
        "loss": [round(line["loss"], 4) for line in curve],
        "validation_recall@10": [round(line["metrics"]["recall@10"], 4) for line in curve],
        "train_seconds": round(sum(line["seconds"] for line in curve), 1),
    }


def judged(args, split, model) -> dict:
    """What the model's proposals for the test are worth, and whether they are legal."""
    popularity = split.popularity()
    histories, target = lmtask.sample(split, "test", args.users, args.seed)
    place = lmtask.ranks(model, histories, target, batch=args.rows)
    popular = np.argsort(-popularity, kind="stable")
    return {
        "recall@10": share(place < 10),
        "ndcg@10": mean(np.where(place < 10, 1 / np.log2(place + 2.0), 0)),
        "popularity_recall@10": share(popular_ranks(popular, histories, target) < 10),
        "seconds_per_slot": per_slot(model, histories[: args.rows], args.slots),
        "illegal": illegal(model, histories, args.rows, args.seed),
        "users": len(target),
        "collisions": model.catalog.collisions()._asdict(),
        "parameters": sum(p.numel() for p in model.parameters()),
    }


# ---- legal or not -----------------------------------------------------------------------------------------------


@torch.no_grad()
def illegal(model, histories, rows: int, seed: int) -> dict:
    """How many proposals are not what the catalog allows, with every item open, with half of them, and with forty a row.

    Proposals are looked at as they were written, word by word: `strayed` counts words that lead to no node of the tree,
    `unwritten` proposals whose id no beam wrote, `foreign` those that are no item, `barred` those that are not open,
    `twice` those that a row got before. Each must be 0. `apart` is the largest difference of a proposal's log p from
    that of its words when they are read once more, from the history on and without the tree of beams.
    `unguarded` is the share of free greedy spellings, kept to no tree, that name no item.
    """
    random = torch.Generator().manual_seed(seed)
    found = {}
    some = histories[:1000]
    for name in ("all open", "half open", "forty open"):
        count = dict.fromkeys(("proposals", "strayed", "unwritten", "foreign", "barred", "twice"), 0) | {"apart": 0.0}
        for i in range(0, len(some), rows):
            state = model.start(some[i : i + rows])
            chance = torch.rand(len(state.logits), model.items, generator=random)
            least = {"all open": 0.0, "half open": 0.5, "forty open": chance.topk(40, 1).values[:, -1:]}[name]
            open_ = (chance >= least).to(model.device)
            for key, value in looked_at(model, state, open_).items():
                count[key] += value
            if not i:
                few = some[: min(rows, 64)]
                count["apart"] = apart(model, few, open_[: len(few)])
        found[name] = count
    return found | {"unguarded": unguarded(model, some, rows)}


def looked_at(model, state, open_) -> dict[str, int]:
    """The counts of `illegal`, of one batch."""
    items, written = as_written(model, state, open_)
    catalog = model.catalog
    there = items >= 0
    words = model.tokens[items.clamp_min(0)]  # (R, B, L) the ids of what was proposed
    nodes = catalog.find(words)
    own = (catalog.below(catalog.depth, nodes, n=model.shared) == items[..., None]).any(2)
    inside = (written >= 0) & (written < torch.tensor(catalog.sizes[:-1], device=written.device))
    same = (words[:, :, None, :-1] == written[:, None]).all(3)  # (R, B, B') who wrote what
    wrote = same.any(2)
    alive = (same & there[:, :, None]).any(1)  # beams that led to a proposal
    node = torch.zeros_like(written[..., 0])
    for level in range(catalog.depth - 1):
        node = catalog.step(level, node, written[..., level].clamp(0, catalog.sizes[level] - 1))
        node = node.masked_fill(~inside[..., level], -1)
    order = items.sort(1).values
    return {
        "proposals": int(there.sum()),
        "strayed": int((alive & (node < 0)).sum()),
        "unwritten": int((there & ~wrote).sum()),
        "foreign": int((there & ~(own & (items < model.items))).sum()),
        "barred": int((there & ~open_.gather(1, items.clamp(0, model.items - 1))).sum()),
        "twice": int(((order[:, 1:] == order[:, :-1]) & (order[:, 1:] >= 0)).sum()),
    }


def as_written(model, state, open_):
    """(R, B) what is proposed, and (R, B', L - 1) the words that were really given to the language model on the way."""
    written: list[torch.Tensor] = []

    def watched(catalog, logits, extend, *rest):
        def told(parent, word):
            written[:] = [*(x.gather(1, parent) for x in written), word - model.offsets[len(written)]]
            return extend(parent, word)

        return best_items(catalog, logits, told, *rest)

    with mock.patch.object(lmrec, "best_items", watched):
        items, _ = model.propose(state, open_)
    width = max(x.shape[1] for x in written)
    return items, torch.stack([F.pad(x, (0, width - x.shape[1]), value=-1) for x in written], 2)


def apart(model, histories, open_) -> float:
    """The largest difference of a proposal's log p from that of its words after the history, read as any text is."""
    items, logits = model.propose(model.start(histories), open_)
    catalog, worst = model.catalog, 0.0
    held = catalog.levels[-1].first.diff().double()
    for history, own, told in zip(histories, items, logits, strict=True):
        own, told = own[own >= 0][:10], told[own >= 0][:10]
        read = model.spelled[torch.as_tensor(np.asarray(history)[-model.history :], device=model.device)].flatten()
        text = torch.cat([torch.full_like(read[:1], model.bos), read]).expand(len(own), -1)
        text = torch.cat([text, model.spelled[own]], 1)  # (B, 1 + n L + L)
        out = model.lm(input_ids=text[:, :-1], use_cache=False).logits[:, -catalog.depth :].double()
        total, node = torch.zeros(len(own), dtype=torch.float64, device=model.device), torch.zeros_like(own)
        for level, (begin, end) in enumerate(zip(model.offsets[:-1], model.offsets[1:], strict=True)):
            legal = catalog.children(level, node[None])[0] >= 0  # (B, V of this place)
            step = out[:, level, model.first + begin : model.first + end].masked_fill(~legal, -torch.inf).log_softmax(1)
            word = model.tokens[own, level]
            total += step.gather(1, word[:, None])[:, 0]
            node = catalog.step(level, node[None], word[None])[0]
        worst = max(float((total - held[node].log() - told).abs().max()), worst)
    return worst


def unguarded(model, histories, rows: int) -> float:
    """Share of greedy spellings, each place's likeliest word whether or not it leads anywhere, that name no item."""
    free = 0
    for i in range(0, len(histories), rows):
        state = model.start(histories[i : i + rows])
        words, logits = [], state.logits
        for begin, end in zip(model.offsets[:-1], model.offsets[1:], strict=True):
            words.append(logits[:, begin:end].argmax(1))
            mask = torch.cat([state.seen, torch.ones_like(state.seen[:, : len(words)])], 1)
            position = mask.sum(1, keepdim=True) - 1
            logits = model._read(state.tape, model.first + begin + words[-1][:, None], mask[:, None], position, 1)[:, 0]
        free += int((model.catalog.find(torch.stack(words, 1)) < 0).sum())
    return free / len(histories)


# ---- how fast ---------------------------------------------------------------------------------------------------


def per_slot(model, histories, slots: int = 30) -> dict:
    """Seconds the first three and the last three slots take each, reading on and reading everything afresh.

    Also the largest difference of a log-probability between the two, over the slate that reading on gives.
    """
    on = model.start(histories)
    afresh = [list(h)[-model.history :] for h in histories]
    whole = lmrec.LMRec(model.lm, model.catalog, first=model.first, bos=model.bos, history=10**6, beams=model.beams)
    whole.to(model.device).eval()
    used = torch.zeros(len(histories), model.items + 1, dtype=torch.bool, device=model.device)
    spent: dict[str, list[float]] = {"on": [], "afresh": []}
    worst = 0.0
    items = None
    for _ in range(slots):
        begun = clock(model.device)
        if items is not None:
            on = model.advance(on, items)
        found, logits = model.propose(on, ~used[:, :-1])
        halfway = clock(model.device)
        again, truth = whole.propose(whole.start(afresh), ~used[:, :-1])
        spent["on"].append(halfway - begun)
        spent["afresh"].append(clock(model.device) - halfway)
        items = found[:, 0]
        same = again[:, 0] == items
        worst = max(float((logits - truth)[same, 0].abs().max()), worst)
        used = used.scatter(1, items[:, None], True)
        afresh = [[*row, item] for row, item in zip(afresh, items.tolist(), strict=True)]
    short = {k: [round(float(np.median(x)), 5) for x in (v[1:4], v[-3:])] for k, v in spent.items()}
    return {**short, "rows": len(histories), "slots": slots, "largest_difference": worst}


def clock(device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.monotonic()


def popular_ranks(popular: np.ndarray, histories, target: np.ndarray) -> np.ndarray:
    """(U,) rank of each target by popularity, seen items left out."""
    place = np.empty(len(popular), np.int64)
    place[popular] = np.arange(len(popular))
    before = [int((place[np.unique(h)] < place[t]).sum()) for h, t in zip(histories, target, strict=True)]
    return place[target] - np.array(before)


def share(hits: np.ndarray) -> list[float]:
    """A share and its 95 % interval (Wilson)."""
    n, p, z = len(hits), float(hits.mean()), 1.96
    middle, half = (p + z * z / (2 * n)), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return [round(x, 5) for x in (p, (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n))]


def mean(values: np.ndarray) -> list[float]:
    """A mean and its 95 % interval."""
    half = 1.96 * float(values.std()) / math.sqrt(len(values))
    return [round(float(values.mean()) + x, 5) for x in (0.0, -half, half)]


def options() -> argparse.Namespace:
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    words.add_argument("--data", type=pathlib.Path, required=True, help="a split written by data.prepared")
    words.add_argument("--ids", type=pathlib.Path, action="append", help="a catalog to train on; give several")
    words.add_argument("--run", type=pathlib.Path, action="append", help="a run folder to judge; give several")
    words.add_argument("--keep", type=pathlib.Path, help="a folder for the weights")
    words.add_argument("--seconds", type=float, default=90, help="of training, for each table of ids")
    words.add_argument("--width", type=int, default=256)
    words.add_argument("--layers", type=int, default=4)
    words.add_argument("--heads", type=int, default=4)
    words.add_argument("--dropout", type=float, default=0.2)
    words.add_argument("--history", type=int, default=20)
    words.add_argument("--beams", type=int, default=50)
    words.add_argument("--batch", type=int, default=512)
    words.add_argument("--rows", type=int, default=256, help="users asked at once")
    words.add_argument("--rate", type=float, default=1e-3)
    words.add_argument("--decay", type=float, default=0.05)
    words.add_argument("--warmup", type=int, default=200)
    words.add_argument("--epochs", type=int, default=1000)
    words.add_argument("--passes", type=int, default=2, help="passes over the data between validations")
    words.add_argument("--patience", type=int, default=6)
    words.add_argument("--validate-on", type=int, default=3000)
    words.add_argument("--users", type=int, default=5000)
    words.add_argument("--slots", type=int, default=30, help="slots timed, from state and anew")
    words.add_argument("--device")
    words.add_argument("--commit", help="the commit, where there is no repository to ask")
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--out", type=pathlib.Path)
    return words.parse_args()


if __name__ == "__main__":
    main()
