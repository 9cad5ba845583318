"""How well does a small Llama recommend that spells items in semantic ids, and does it matter which ids?

One model from scratch for each table of ids, the same in all else: trained on all but the last two items of every
user, stopped by the last but one, judged on the last (leave-one-out, all items ranked, seen ones barred, one search
with `--beams` beams). Needs torch, numpy and transformers alone.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import platform
import shutil
import tempfile
import time

import numpy as np
import torch

import spdd
from spdd.catalog import Catalog
from spdd.data import prepared
from spdd.models import lmrec, lmtask
from spdd.models.train import Settings, fit


def main() -> None:
    args = options()
    split = prepared.load(args.data)
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    results = []
    for path in args.ids:
        results.append({"ids": path.stem, **one(args, split, Catalog.load(path), device, path.stem)})
        print(json.dumps(results[-1]), flush=True)
    about = {
        "benchmark": "lmrec",
        "settings": {k: str(v) if isinstance(v, pathlib.Path) else v for k, v in vars(args).items() if k != "ids"},
        "seed": args.seed,
        "commit": args.commit,
        "machine": machine(),
        "versions": {"spdd": spdd.__version__, "torch": torch.__version__, "numpy": np.__version__},
    }
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        with args.out.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps({**about, **result}) + "\n" for result in results)
    print(json.dumps({**about, "results": results}))


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
    histories, target = lmtask.sample(split, "test", args.users, args.seed)
    place = lmtask.ranks(model, histories, target, batch=args.rows)
    popular = np.argsort(-popularity, kind="stable")
    return {
        "recall@10": share(place < 10),
        "ndcg@10": mean(np.where(place < 10, 1 / np.log2(place + 2.0), 0)),
        "popularity_recall@10": share(popular_ranks(popular, histories, target) < 10),
        "seconds_per_slot": per_slot(model, histories[: args.rows]),
        "illegal": illegal(model, histories, args.rows),
        "users": len(target),
        "collisions": catalog.collisions()._asdict(),
        "parameters": sum(p.numel() for p in model.parameters()),
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


def illegal(model, histories, rows: int) -> dict:
    """Share of proposals that name no item, against what the same beams spell when nothing keeps them to the catalog.

    `proposed` must be 0; `unguarded` is the share of free greedy spellings, token by token, that name no item.
    """
    wrong = count = free = 0
    for i in range(0, min(len(histories), 1000), rows):
        state = model.start(histories[i : i + rows])
        items, _ = model.propose(state)
        wrong += int(((items < 0) | (items >= model.items)).sum())
        count += items.numel()
        words, logits = [], state.logits
        for begin, end in zip(model.offsets[:-1], model.offsets[1:], strict=True):
            words.append(logits[:, begin:end].argmax(1))
            mask = torch.cat([state.seen, torch.ones_like(state.seen[:, : len(words)])], 1)
            position = mask.sum(1, keepdim=True) - 1
            logits = model._read(state.tape, model.first + begin + words[-1][:, None], mask[:, None], position, 1)[:, 0]
        free += int((model.catalog.find(torch.stack(words, 1)) < 0).sum())
    return {"proposed": wrong / count, "unguarded": free / min(len(histories), 1000)}


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


def machine() -> str:
    parts = [f"{platform.system()} {platform.machine()}", f"{os.cpu_count()} cores"]
    return ", ".join(parts + ([torch.cuda.get_device_name()] if torch.cuda.is_available() else []))


def options() -> argparse.Namespace:
    words = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    words.add_argument("--data", type=pathlib.Path, required=True, help="a split written by data.prepared")
    words.add_argument("--ids", type=pathlib.Path, required=True, action="append", help="a catalog; give several")
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
    words.add_argument("--device")
    words.add_argument("--commit", default="unknown")
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--out", type=pathlib.Path)
    return words.parse_args()


if __name__ == "__main__":
    main()
