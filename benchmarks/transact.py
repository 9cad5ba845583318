"""Does TransAct know what people will open better than popularity and logistic regression do?

KuaiRand: learnt from 25 to 30 April, asked on 1 to 8 May, with histories from before. Everything is chosen on 30 April
and then learnt anew with that day. Each impression is judged by what was known just before it: the person's actions so
far, items' rates on earlier days of the train part. Logistic regression gets the same context, items, traits and
actions, the latter as counts and rates, all numbers also cut into parts so that it need not be linear in them.

    python benchmarks/transact.py --prepare FOLDER kuairand.npz       # needs polars; the rest needs torch and numpy
    python benchmarks/transact.py --data kuairand.npz --dev --only transact --rate 0.004 --out dev.jsonl    # as many as wanted
    python benchmarks/transact.py --data kuairand.npz --best-of dev.jsonl --slots 30 --out results.jsonl
"""

from __future__ import annotations

import json
import pathlib
import sys
import tempfile
import time
from dataclasses import asdict

import numpy as np
import torch
import torch.nn.functional as F

import record
from spdd.data import prepared
from spdd.data.shown import ACTION, LABELS
from spdd.models import train
from spdd.models.actions import HOUR, Actions, first_of_tie, traits
from spdd.models.shelf_log import shelf_log, with_rates
from spdd.models.transact import Config, Log, Shelves, TransAct, auc, auc_per_person, score

OFFSET = 8  # hours: people see clocks of China
LAST_DAY, TEST = 1_651_248_000_000, 1_651_334_400_000  # 30 April and 1 May there
NAMES = ("author", "tag", "tags", "upload_type", "music_type", "video_duration", "upload_date")
CHOSEN = ("epochs", "rate", "decay", "batch", "dropout", "forget", "hide", "fade", "pairs")  # on 30 April
MATCH = (0, 1)  # author and tag


def main():
    options = record.parser(__doc__)
    options.add_argument("--prepare", nargs=2, type=pathlib.Path, metavar=("FOLDER", "FILE"))
    options.add_argument("--data", type=pathlib.Path)
    options.add_argument("--label", choices=LABELS, default=LABELS[0])
    options.add_argument("--share", type=float, default=1.0, help="of the people, for a quick look")
    options.add_argument("--epochs", type=int, default=6)
    options.add_argument("--rate", type=float, default=2e-3)
    options.add_argument("--decay", type=float, default=1e-2)
    options.add_argument("--batch", type=int, default=2048)
    options.add_argument("--dropout", type=float, default=0.2)
    options.add_argument("--forget", type=float, default=0.3)
    options.add_argument("--layers", type=int, default=4)
    options.add_argument("--hide", type=float, default=0.0)
    options.add_argument("--fade", type=float, default=1.0)
    options.add_argument("--pairs", type=float, default=0.0)
    options.add_argument("--seeds", type=int, default=1)
    options.add_argument("--slots", type=int, default=0, help="also time decoding so many slots, anew and by state")
    options.add_argument("--dev", action="store_true", help="judge on 30 April, leave the test alone")
    options.add_argument("--best-of", type=pathlib.Path, help="results of --dev; the settings of the best are taken")
    options.add_argument("--only", choices=("baselines", "transact"))
    options.add_argument("--commit", help="of the code, where no git can tell")
    args = options.parse_args()
    args.device = str(train.device())
    if args.prepare:
        return prepare(*args.prepare)
    if args.best_of:
        lines = [json.loads(line) for line in args.best_of.read_text().splitlines()]
        best = max(
            (x for x in lines if x.get("model") == "TransAct" and x["settings"]["dev"]),
            key=lambda x: x["auc"] + x["auc per person"],
        )
        vars(args).update({name: best["settings"][name] for name in CHOSEN})
    about = record.origin("transact", args)
    about["settings"] = {k: str(v) if isinstance(v, pathlib.Path) else v for k, v in about["settings"].items()}
    about["commit"] = args.commit or about["commit"]
    split = prepared.load(args.data)
    log, _, part, labels = shelf_log(
        split, [args.label, *(x for x in LABELS if x != args.label)], some_of(split, args.share)
    )
    learn, check, test = (np.flatnonzero((part == p) & (log.label >= 0)) for p in range(3))
    both = np.sort(np.append(learn, check))
    judged, known = (check, learn) if args.dev else (test, both)
    # What is known when everything is chosen, and what is known at the end.
    logs = [(with_rates(log, labels, learn, OFFSET), learn, check)]
    logs += [] if args.dev else [(with_rates(log, labels, both, OFFSET), both, test)]
    print(
        f"{len(log.start) - 1} people, {len(learn)} + {len(check)} to learn from, {len(judged)} to judge by",
        file=sys.stderr,
    )
    scores, config, timings = {}, {}, []
    if args.only != "transact":
        scores["popularity"] = popularity(log, known, judged)
        scores["logistic regression"] = regression(split, logs, args)
    if args.only != "baselines":
        scores["TransAct"], model = transact(split, logs, args)
        config = asdict(model.config)
        timings = decoding(model, log, judged, args) if args.slots else []
    record.write({**about, "config": config}, report(scores, log, judged, args.seed) + timings, args.out)


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


def regression(split, logs, args) -> np.ndarray:
    """Logistic regression; weight decay and number of epochs are chosen on 30 April."""
    log, learn, check = logs[0]
    inputs, best = features(split, log, learn), (-np.inf, 0.0, 0)
    for decay in (1e-4, 1e-3, 1e-2):
        for epoch, scores in enumerate(fitted(*inputs, log, learn, check, decay, 10, args)):
            best = max(best, (auc(scores, log.label[check]), decay, epoch))
    print(f"logistic regression on 30 April: auc {best[0]:.4f}, decay {best[1]:g}, epoch {best[2]}", file=sys.stderr)
    log, learn, judged = logs[-1]
    *_, scores = fitted(*features(split, log, learn), log, learn, judged, best[1], best[2] + 1, args)
    return scores


def fitted(codes, size, numbers, log, learn, judged, decay, epochs, args):
    """Scores of `judged` after each epoch."""
    generator = torch.Generator().manual_seed(args.seed)
    table = torch.nn.EmbeddingBag(size, 1, mode="sum")
    linear = torch.nn.Linear(numbers.shape[1], 1)
    torch.nn.init.zeros_(table.weight)
    torch.nn.init.zeros_(linear.weight)
    model = torch.nn.ModuleList([table, linear]).to(args.device)
    codes, numbers = (torch.from_numpy(x).to(args.device) for x in (codes, numbers))
    label = torch.from_numpy((log.label > 0).astype(np.float32)).to(args.device)
    learn, judged = (torch.from_numpy(x).to(args.device) for x in (learn, judged))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=decay / 5e-3)
    for _ in range(epochs):
        for batch in learn[torch.randperm(len(learn), generator=generator).to(args.device)].split(1024):
            loss = F.binary_cross_entropy_with_logits(
                (table(codes[batch]) + linear(numbers[batch]))[:, 0], label[batch]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            yield (table(codes[judged]) + linear(numbers[judged]))[:, 0].cpu().numpy()


def features(split, log: Actions, learn) -> tuple[np.ndarray, int, np.ndarray]:
    """(E, F) codes of one table of so many, and (E, G) numbers, of every event of a log."""
    about = traits(split.items.attributes, NAMES)
    codes = np.concatenate([about.codes, np.zeros((1, len(about.sizes)), np.int64)])[log.item]
    hours = log.time // HOUR + OFFSET
    columns = [log.item + 1, *codes.T, log.surface.astype(np.int64), hours % 24, hours // 24 % 7]
    columns.append(columns[-3] * 24 + columns[-2])
    first = first_of_tie(log)
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
    for column in numbers.T:  # each number in parts, too
        edges = np.unique(np.quantile(column[learn], np.linspace(0, 1, 17)[1:-1]))
        columns.append(np.searchsorted(edges, column, side="right"))
    sizes = np.array([int(c.max()) + 1 for c in columns])
    codes = np.stack(columns, 1) + np.concatenate([[0], sizes.cumsum()[:-1]])
    spread = numbers[learn].std(0) + 1e-6
    return codes, int(sizes.sum()), (numbers - numbers[learn].mean(0)) / spread


def so_far(row, key, what, first) -> np.ndarray:
    """(E,) how often `what` held among the person's earlier events with the same key. Ties in time are not earlier."""
    order = np.lexsort((np.arange(len(row)), key, row))
    total = np.cumsum(what[order]) - what[order]
    new = np.ones(len(row), dtype=bool)
    new[1:] = (row[order][1:] != row[order][:-1]) | (key[order][1:] != key[order][:-1])
    start = np.maximum.accumulate(np.where(new, np.arange(len(row)), 0))
    # Of several events with one key at one time, the first knows what all may know.
    tied = new.copy()
    tied[1:] |= first[order][1:] != first[order][:-1]
    known = np.maximum.accumulate(np.where(tied, np.arange(len(row)), 0))
    out = np.zeros(len(row))
    out[order] = total[known] - total[start]
    return out


# ---- the model --------------------------------------------------------------------------------------------------


def transact(split, logs, args) -> tuple[np.ndarray, TransAct]:
    """The mean log-odds of `args.seeds` models, each learnt anew on all train days for as long as was best; the last."""
    about = traits(split.items.attributes, NAMES, least=2)
    items = len(split.items.id)
    config = Config(
        items=items, sizes=about.sizes, match=MATCH, actions=len(ACTION), surfaces=int(logs[0][0].surface.max()) + 1,
        stats=logs[0][0].stats.shape[1], offset=OFFSET, dropout=args.dropout, forget=args.forget, layers=args.layers,
        hide=args.hide, pairs=args.pairs,
    )  # fmt: skip

    def fit(seed, log, learn, check, epochs):
        torch.manual_seed(seed)
        model = TransAct(config, about.codes).to(args.device)
        settings = train.Settings(
            epochs=epochs, batch=args.batch, rate=args.rate, decay=args.decay, optimizer="adamw", warmup=20, seed=seed,
            patience=0, fade=args.fade,
        )  # fmt: skip
        task = Shelves(model, log, learn, check, batch=args.batch, fingerprint=split.items.fingerprint(), seed=seed)
        with tempfile.TemporaryDirectory() as folder:
            begun = time.monotonic()
            done = train.fit(task, settings, folder, progress=False)
            for line in pathlib.Path(folder, "metrics.jsonl").read_text().splitlines():
                print(line, file=sys.stderr)
        print(f"{time.monotonic() - begun:.1f} s, best epoch {done.epoch}", file=sys.stderr)
        return model, done

    total = np.zeros(len(logs[-1][2]))
    for seed in range(args.seed, args.seed + args.seeds):
        model, done = fit(seed, *logs[0], args.epochs)
        if not args.dev:
            model, _ = fit(seed, *logs[1][:2], np.zeros(0, np.int64), done.epoch + 1)
        total += score(model, Log(logs[-1][0], logs[-1][2], config))
    return total / args.seeds, model


def decoding(model: TransAct, log: Actions, judged: np.ndarray, args) -> list[dict]:
    """Milliseconds per slot for 16 people and all items: from the state, and anew from all actions and shelves so far.

    The same slates are decoded both ways; the largest difference of scores is reported. The median of five runs.
    """
    asked = np.sort(np.random.default_rng(args.seed).choice(judged, 16, replace=False))
    requests = log.requests(asked).to(args.device)
    runs, worst = [], 0.0
    for _ in range(5):
        state, used, run = model.start(requests), [], []
        for _ in range(args.slots):
            slate = torch.stack(used, 1) if used else requests.items[:, :0]
            begun = clock(args)
            scores = model.logits(state)
            middle = clock(args)
            afresh = model.logits(model.start(placed(requests, slate, model.config.actions)))
            end = clock(args)
            worst = max(float((scores - afresh).abs().max()), worst)
            used.append(scores.scatter(1, slate, -torch.inf).argmax(1))
            again = clock(args)
            state = model.advance(state, used[-1])
            run.append((middle - begun + clock(args) - again, end - middle))
        runs.append(run)
    took = 1000 * np.median(runs, 0)  # (K, 2)
    shown = sorted({1, 2, 10, 20, args.slots} & set(range(1, args.slots + 1)))
    record.table([
        {"slot": k, "ms from state": f"{took[k - 1, 0]:.2f}", "ms anew": f"{took[k - 1, 1]:.2f}"} for k in shown
    ])  # fmt: skip
    print(f"largest difference of scores: {worst:.2g}")
    return [
        {"slots": args.slots, "ms from state": took[:, 0].tolist(), "ms anew": took[:, 1].tolist(), "difference": worst}
    ]


def placed(requests, slate, kind):
    """Requests whose actions end with these shelves (R, k)."""
    one = torch.ones_like(slate)
    more = (slate, kind * one, requests.now[:, None] * one, requests.surface[:, None] * one)
    past = [torch.cat(pair, 1) for pair in zip(requests[:4], more, strict=True)]
    return requests._replace(**dict(zip(requests._fields, past, strict=False)))


def clock(args) -> float:
    if args.device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


# ---- judging ----------------------------------------------------------------------------------------------------


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
    for name in scores:
        if "TransAct" in scores and name != "TransAct":
            ahead = [interval(a - b) for a, b in zip(drawn["TransAct"], drawn[name], strict=True)]
            results.append({"TransAct ahead of": name, "auc interval": ahead[0], "auc per person interval": ahead[1]})
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
