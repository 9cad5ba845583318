"""Does TransAct know what people will open better than popularity and logistic regression do?

KuaiRand: learnt from 25 to 30 April, asked on 1 to 8 May, with histories from before. Everything is chosen on 30 April
and then learnt anew with that day. Logistic regression reads the same: context, items, traits, what is known of them, and the
last 128 actions, as counts and rates; all numbers are also cut into parts so that it need not be linear in them.

Impressions are judged "ahead", by what was known before the first of a person's test days, as slates are made: no model
sees an answer to what it is judged by. "As it happens" each is judged by all that was known just before it. Its AUC per
person misleads: of two items one of which was taken, the answer to the first betrays the second, and who has learnt that
taking goes with taking, which is true over people, ranks them the wrong way round. It is told all the same.

What a slot costs, `slots.py` says of the run folder that `--keep` leaves.

    python benchmarks/transact.py --prepare FOLDER kuairand.npz       # needs polars; the rest needs torch and numpy
    python benchmarks/transact.py --data kuairand.npz --seconds 90 --keep run --out results.jsonl
    python benchmarks/transact.py --data kuairand.npz --run FOLDER    # a run of `spdd train transact` with offset=8.0
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import shutil
import sys
import tempfile
import time

import numpy as np
import torch
import torch.nn.functional as F

import record
from spdd.data import prepared
from spdd.data.shown import ACTION, LABELS
from spdd.models import train
from spdd.models.actions import HOUR, MOST, Actions, first_of_person, first_of_tie, traits
from spdd.models.shelf_log import rates, shelf_log, with_rates
from spdd.models.transact import Config, Log, Shelves, TransAct, auc, auc_per_person, load, score, taken
from spdd.trained import TRAITS

OFFSET = 8  # hours: people see clocks of China
LAST_DAY, TEST = 1_651_248_000_000, 1_651_334_400_000  # 30 April and 1 May there
MATCH = tuple(TRAITS.index(name) for name in ("author", "tag"))
# As in the paper: Adam, batches of 2048, six epochs. The rest it leaves open; what differs from these is tried out.
PAPER = train.Settings(epochs=6, batch=2048, rate=2e-3, warmup=20, patience=0)
DECAY = {"optimizer": "adamw", "decay": 1e-2}
SHY = {**DECAY, "dropout": 0.2, "forget": 0.3}
GRID = {
    "paper": {},
    "decay": SHY,
    "regression": {**DECAY, "regression": True, "fade": 0.8, "epochs": 4},
}


def main():
    options = record.parser(__doc__)
    options.add_argument("--prepare", nargs=2, type=pathlib.Path, metavar=("FOLDER", "FILE"))
    options.add_argument("--data", type=pathlib.Path)
    options.add_argument("--label", choices=LABELS, default=LABELS[0])
    options.add_argument("--share", type=float, default=1.0, help="of the people, for a quick look")
    options.add_argument("--config", action="append", choices=tuple(GRID), help="try these alone; all when left out")
    options.add_argument("--seconds", type=float, default=90, help="try no further settings after so many")
    options.add_argument("--epochs", type=int, help="at most so many, for a quick look")
    options.add_argument("--seeds", type=int, default=1, help="how many models the chosen settings get")
    options.add_argument("--keep", type=pathlib.Path, help="run folder for the chosen model, as `spdd slate` opens it")
    options.add_argument(
        "--run", type=pathlib.Path, action="append", help="judge a run of `spdd train transact`; nothing is learnt anew"
    )
    options.add_argument("--device", help="cpu or cuda; what there is when left out")
    options.add_argument("--commit", help="of the code, where no git can tell")
    args = options.parse_args()
    if args.prepare:
        return prepare(*args.prepare)
    if not args.data:
        options.error("--data is missing: name what --prepare wrote")
    place = train.device(args.device)
    about = origin(args, place)
    split = prepared.load(args.data)
    log, _, part, labels = shelf_log(
        split, [args.label, *(x for x in LABELS if x != args.label)], some_of(split, args.share)
    )
    learn, check, judged = (np.flatnonzero((part == p) & (log.label >= 0)) for p in range(3))
    both = learn if args.run else np.sort(np.append(learn, check))  # a run has learnt from no later day than that
    tell(
        f"{len(log.start) - 1} people, {len(both)} to learn from, {len(check)} of them to choose by, {len(judged)} to judge by"
    )
    # What is known when everything is chosen, and what is known at the end.
    early = with_rates(log, labels, learn, OFFSET), learn, check
    late = with_rates(log, labels, both, OFFSET), both, judged
    popular = popularity(log, both, judged)
    ahead, happening = regression(split, early, late, args.seed, place)
    scores: dict[str, dict[str, np.ndarray]] = {
        "ahead": {"popularity": popular, "logistic regression": ahead},
        "as it happens": {"popularity": popular, "logistic regression": happening},
    }
    for run in args.run or ():
        model = load(run / "best.pt", split.items.fingerprint()).to(place)
        for when, those in scores.items():
            name = f"TransAct, {run.name}" if "TransAct" in those else "TransAct"
            those[name] = score(model, Log(late[0], judged, model.config, ahead=when == "ahead"))
    results, name, epochs = ([], "", 0) if args.run else chosen(split, early, args, place)
    about["chosen"] = name
    now = rates(log, labels, both, len(split.items.id))
    for seed in () if args.run else range(args.seed, args.seed + args.seeds):
        keep = args.keep if seed == args.seed else None
        model, _ = fit(
            split, *late[:2], judged[:0], GRID[name], epochs, seed, place, now=now, keep=keep, label=args.label
        )
        for when, those in scores.items():
            asked = Log(late[0], judged, model.config, ahead=when == "ahead")
            those["TransAct" if seed == args.seed else f"TransAct, seed {seed}"] = score(model, asked)
    for when, those in scores.items():
        results += [{"judged": when, **line} for line in report(those, log, judged, args.seed)]
    record.write({**about, "config": dataclasses.asdict(model.config)}, results, args.out)


def origin(args: argparse.Namespace, place: torch.device) -> dict:
    about = record.origin("transact", args)
    about["settings"] = json.loads(json.dumps(about["settings"], default=lambda path: path.name))
    about["settings"]["device"] = place.type
    return about | {"commit": args.commit or about["commit"]}


def tell(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


# ---- data -------------------------------------------------------------------------------------------------------


def prepare(folder: pathlib.Path, out: pathlib.Path) -> None:
    """One log of histories and impressions, cut at 30 April and at 1 May."""
    from spdd.data.command import describe
    from spdd.data.command import prepare as prepared_from

    done = prepared_from(
        "kuairand", folder, out, split="time", at=TEST, validation_at=LAST_DAY, options={"actions": True}
    )
    print(describe(done))


def some_of(split, share: float) -> np.ndarray:
    """The names of this share of all people."""
    people = np.unique(np.concatenate([p.user for p in split[1:]]))
    return np.sort(np.random.default_rng(0).permutation(people)[: round(len(people) * share)])


# ---- baselines --------------------------------------------------------------------------------------------------


def popularity(log, learn, judged) -> np.ndarray:
    """The share of an item's impressions that were taken on the train days, with ten average ones added."""
    items = log.item.max() + 2
    shown = np.bincount(log.item[learn] + 1, minlength=items)
    taken = np.bincount(log.item[learn] + 1, log.label[learn] > 0, minlength=items)
    mean = (log.label[learn] > 0).mean()
    return ((taken + 10 * mean) / (shown + 10))[log.item[judged] + 1]


def regression(split, early, late, seed, place) -> list[np.ndarray]:
    """Logistic regression, ahead and as it happens; weight decay and number of epochs are chosen on 30 April, ahead."""
    log, learn, check = early
    inputs, best = asked_about(split, log, learn, check), (-np.inf, 0.0, 0)
    for decay in (1e-4, 1e-3, 1e-2):
        for epoch, (ahead, _) in enumerate(fitted(*inputs, log, learn, decay, 10, seed, place)):
            best = max(best, (quality(ahead, log, check)["mean auc"], decay, epoch))
    tell(f"logistic regression on 30 April: mean auc {best[0]:.4f}, decay {best[1]:g}, epoch {best[2]}")
    log, learn, judged = late
    *_, scores = fitted(*asked_about(split, log, learn, judged), log, learn, best[1], best[2] + 1, seed, place)
    return scores


def asked_about(split, log, learn, judged):
    """Features of all events, how many codes there are, and the features of `judged`: ahead, and as it happens."""
    first = first_of_tie(log)
    codes, size, numbers = features(split, log, learn, first)
    ahead = first.copy()
    ahead[judged] = first[first_of_person(log, judged)]
    early = features(split, log, learn, ahead)
    return (codes, numbers), size, [(early[0][judged], early[2][judged]), (codes[judged], numbers[judged])]


def fitted(inputs, size, asked, log, learn, decay, epochs, seed, place):
    """Scores of each of `asked` after each epoch."""
    codes, numbers = inputs
    generator = torch.Generator().manual_seed(seed)
    table = torch.nn.EmbeddingBag(size, 1, mode="sum")
    linear = torch.nn.Linear(numbers.shape[1], 1)
    torch.nn.init.zeros_(table.weight)
    torch.nn.init.zeros_(linear.weight)
    torch.nn.init.zeros_(linear.bias)
    model = torch.nn.ModuleList([table, linear]).to(place)
    codes, numbers = (torch.from_numpy(x).to(place) for x in (codes, numbers))
    asked = [[torch.from_numpy(x).to(place) for x in one] for one in asked]
    label = torch.from_numpy((log.label > 0).astype(np.float32)).to(place)
    learn = torch.from_numpy(learn).to(place)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=decay / 5e-3)
    for _ in range(epochs):
        for batch in learn[torch.randperm(len(learn), generator=generator).to(place)].split(1024):
            loss = F.binary_cross_entropy_with_logits(
                (table(codes[batch]) + linear(numbers[batch]))[:, 0], label[batch]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            yield [(table(some) + linear(of_some))[:, 0].cpu().numpy() for some, of_some in asked]


def features(split, log: Actions, learn, first) -> tuple[np.ndarray, int, np.ndarray]:
    """(E, F) codes of one table of so many, and (E, G) numbers, of every event of a log.

    first: (E,) the first event that is not known yet
    """
    about = traits(split.items.attributes, TRAITS, items=len(split.items.id))
    codes = np.concatenate([about.codes, np.zeros((1, len(about.sizes)), np.int64)])[log.item]
    hours = log.time // HOUR + OFFSET
    columns = [log.item + 1, *codes.T, log.surface.astype(np.int64), hours % 24, hours // 24 % 7]
    columns.append(columns[-3] * 24 + columns[-2])
    last = np.where(first > log.start[log.rows()], log.action[first - 1], 0).astype(np.int64)
    columns += [last, last * 32 + log.surface]
    gap = np.where(last > 0, np.log2((log.time - log.time[first - 1]).clip(0) / 60_000 + 1), 15)
    numbers = [*log.stats.T, gap / 5]
    row = log.rows()
    for key in (row * 0, log.surface, log.item + 1, codes[:, 0], codes[:, 1]):  # any action, like surface, item, ...
        for kind in range(1, len(ACTION)):
            numbers.append(np.log1p(so_far(row, key, log.action == kind, first)))
        shown = so_far(row, key, log.action >= ACTION.index("passed by"), first)
        opened = so_far(row, key, log.action > ACTION.index("passed by"), first)
        numbers.append((opened + 1) / (shown + 2.3))
    numbers = np.stack(numbers, 1).astype(np.float32)
    sizes = [int(c.max()) + 1 for c in columns[:-2]] + [len(ACTION) + 1, 32 * (len(ACTION) + 1)]
    for column in numbers.T:  # each number in parts, too
        edges = np.unique(np.quantile(column[learn], np.linspace(0, 1, 17)[1:-1]))
        columns.append(np.searchsorted(edges, column, side="right"))
        sizes.append(len(edges) + 1)
    sizes = np.array(sizes)
    codes = np.stack(columns, 1) + np.concatenate([[0], sizes.cumsum()[:-1]])
    spread = numbers[learn].std(0) + 1e-6
    return codes, int(sizes.sum()), (numbers - numbers[learn].mean(0)) / spread


def so_far(row, key, what, first) -> np.ndarray:
    """(E,) of how many of the person's last 128 actions with the same key `what` held. first: (E,) the first not known yet"""
    group = np.unique(row * (int(key.max()) + 1) + key, return_inverse=True)[1] * len(row)
    order = np.argsort(group, kind="stable")
    place, total = (group + np.arange(len(row)))[order], np.append(0, np.cumsum(what[order]))
    return total[np.searchsorted(place, group + first)] - total[np.searchsorted(place, group + (first - MOST).clip(0))]


# ---- the model --------------------------------------------------------------------------------------------------


def chosen(split, early, args, place) -> tuple[list[dict], str, int]:
    """How each of the grid's settings does on 30 April, the best one's name, and for how many epochs it was."""
    found, begun = [], time.monotonic()
    for name in args.config or GRID:
        if found and time.monotonic() - begun > args.seconds:
            break
        since = time.monotonic()
        settings = GRID[name] if args.epochs is None else {**GRID[name], "epochs": args.epochs}
        _, done = fit(split, *early, settings, None, args.seed, place)
        found.append({"settings on 30 April": name, **GRID[name], **done.best, "best epoch": done.epoch,
                      "seconds": round(time.monotonic() - since, 1)})  # fmt: skip
        tell(json.dumps(found[-1]))
    best = max(found, key=lambda one: one["mean auc"])
    return found, best["settings on 30 April"], best["best epoch"] + 1


def fit(
    split, log, learn, check, said, epochs, seed, place, *, now=None, keep=None, label=""
) -> tuple[TransAct, train.Fitted]:
    """A model learnt from `learn`. said: what differs from the paper's settings.  now: what is known of items, for decoding"""
    about = traits(split.items.attributes, TRAITS, items=len(split.items.id), least=2)
    of_model = {name: said[name] for name in ("dropout", "forget", "pairs", "regression") if name in said}
    rest = {name: value for name, value in said.items() if name not in of_model}
    settings = dataclasses.replace(PAPER, **rest, seed=seed)
    settings = settings if epochs is None else dataclasses.replace(settings, epochs=epochs)
    config = Config(
        items=len(split.items.id), sizes=about.sizes, match=MATCH, actions=len(ACTION), surfaces=int(log.surface.max()) + 1,
        stats=log.stats.shape[1], offset=OFFSET, label=label, taken=taken(log, learn, len(ACTION)), **of_model,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = TransAct(config, about.codes, now).to(place)
    task = Shelves(model, log, learn, check, batch=settings.batch, fingerprint=split.items.fingerprint(), seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        done = train.fit(task, settings, folder, progress=False)
        if keep:
            keep.mkdir(parents=True, exist_ok=True)
            for file in ("best.pt", "metrics.jsonl"):
                shutil.copy(pathlib.Path(folder, file), keep / file)
    return model, done


# ---- judging ----------------------------------------------------------------------------------------------------


def quality(scores, log: Actions, judged) -> dict[str, float]:
    """What settings are chosen by."""
    over_all = auc(scores, log.label[judged])
    own = auc_per_person(scores, log.label[judged], log.rows()[judged])[0]
    return {"mean auc": (over_all + own) / 2, "auc": over_all, "auc per person": own}


def report(scores: dict[str, np.ndarray], log: Actions, judged: np.ndarray, seed: int) -> list[dict]:
    """AUC and AUC per person of each, with 95 % intervals over people; and how far TransAct is ahead of the others."""
    labels, people = log.label[judged] > 0, np.unique(log.rows()[judged], return_inverse=True)[1]
    draws = np.random.default_rng(seed).integers(0, people.max() + 1, (400, people.max() + 1))
    weights = np.stack([np.bincount(draw, minlength=people.max() + 1) for draw in draws]).astype(
        np.int32
    )  # how often each is drawn
    results, drawn = [], {}
    for name, values in scores.items():
        own, each, size = auc_per_person(values, labels, people)
        both = np.unique(people[np.isin(people, mixed(people, labels))])
        w = weights[:, both] * size
        drawn[name] = (weighted_auc(values, labels, weights[:, people]), (w * each).sum(1) / w.sum(1))
        results.append({
            "model": name, "auc": auc(values, labels), "auc interval": interval(drawn[name][0]),
            "auc per person": own, "auc per person interval": interval(drawn[name][1]), "people": len(each),
        })  # fmt: skip
    for one, name in (
        (a, b) for a in scores for b in scores if a.startswith("TransAct") and not b.startswith("TransAct")
    ):
        ahead = [interval(a - b) for a, b in zip(drawn[one], drawn[name], strict=True)]
        results.append({f"{one} ahead of": name, "auc interval": ahead[0], "auc per person interval": ahead[1]})
    record.table([
        {"model": r["model"], "AUC": words(r, "auc"), "AUC per person": words(r, "auc per person")}
        for r in results if "model" in r
    ])  # fmt: skip
    return results


def words(result, name):
    return "{:.4f} ({:.4f} to {:.4f})".format(result[name], *result[f"{name} interval"])


def mixed(people, labels):
    """Who took something and left something."""
    taken, all_ = np.bincount(people, labels), np.bincount(people)
    return np.flatnonzero((taken > 0) & (taken < all_))


def weighted_auc(values, labels, weights) -> np.ndarray:
    """(W,) AUC where each event counts as often as `weights` (W, N) says."""
    order = np.argsort(values, kind="stable")
    tie = np.unique(values[order], return_inverse=True)[1]
    start = np.flatnonzero(np.r_[True, tie[1:] != tie[:-1]])
    out = []
    for weight in weights:
        good = np.add.reduceat(weight[order] * labels[order], start)
        bad = np.add.reduceat(weight[order] * ~labels[order], start)
        out.append((good * (bad.cumsum() - bad / 2)).sum() / (good.sum() * bad.sum()))
    return np.array(out)


def interval(drawn) -> list[float]:
    return [float(x) for x in np.percentile(drawn, [2.5, 97.5])]


if __name__ == "__main__":
    main()
