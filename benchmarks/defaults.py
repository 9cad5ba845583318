"""Which settings should SPDD have when nobody says anything? Measured on two public data sets, not chosen.

A small autoregressive model (a decayed mean of item embeddings, full-softmax cross-entropy) is trained on the
first four fifths of every sequence; slates of 10 are decoded item by item and compared with the last fifth.
Objective: items of two categories (Sports) or of long-tail artists (playlists), floor 3 of 10.

    python benchmarks/defaults.py --data DIR [--out FILE] [--users 8000] [--seeds 3] [--device cuda]
"""

from __future__ import annotations

import argparse
import collections
import csv
import gzip
import json
import pathlib
import platform
import subprocess
import time

import numpy as np
import torch

import spdd
from spdd.histories import pad_front

SLOTS, FLOOR, DECAY, WIDTH, LENGTH = 10, 3, 0.8, 64, 50


def table(path, delimiter=","):
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter, quoting=csv.QUOTE_NONE))


def sports(folder):
    items = table(folder / "amazon-sports/items.tsv.gz", "\t")
    index = {row["item_id"]: i for i, row in enumerate(items)}
    rows = table(folder / "amazon-sports/sequences.tsv.gz", "\t")
    wanted = {"Camping & Hiking", "Cycling"}
    value = np.array([bool(wanted & set((row["categories"] or "").split("|"))) for row in items])
    return [[index[x] for x in row["item_ids"].split(" ")] for row in rows], value


def playlists(folder):
    artist = {row["track_id"]: row["artist_id"] for row in table(folder / "polimi-playlists/tracks.csv.gz")}
    rows = table(folder / "polimi-playlists/playlists.csv.gz")
    rows.sort(key=lambda row: (int(row["playlist_id"]), int(row["pos"])))
    tracks = sorted({row["track_id"] for row in rows})
    index = {track: i for i, track in enumerate(tracks)}
    sequences = {}
    for row in rows:
        sequences.setdefault(row["playlist_id"], []).append(index[row["track_id"]])
    # Long tail: the artists with fewest plays that together have 15 % of them.
    plays = collections.Counter(artist[row["track_id"]] for row in rows)
    tail, total = set(), 0
    for name, count in sorted(plays.items(), key=lambda x: (x[1], x[0])):
        total += count
        if total <= 0.15 * len(rows):
            tail.add(name)
    return list(sequences.values()), np.array([artist[track] in tail for track in tracks])


class MeanModel(torch.nn.Module):
    """h <- decay h + e(item); logits = LayerNorm(h) W + b. On the seam: state is h."""

    def __init__(self, items, width=WIDTH):
        super().__init__()
        self.embedding = torch.nn.Embedding(items + 1, width, padding_idx=items)
        self.norm = torch.nn.LayerNorm(width)
        self.out = torch.nn.Linear(width, items)
        torch.nn.init.normal_(self.embedding.weight, std=0.1)

    def start(self, histories):  # (R, L), padded in front with -1
        items = histories.where(histories >= 0, self.out.out_features)
        state = torch.zeros(len(items), WIDTH, device=items.device)
        for column in self.embedding(items).unbind(1):
            state = DECAY * state + column
        return state

    def logits(self, state):
        return self.out(self.norm(state))

    def advance(self, state, items):
        return DECAY * state + self.embedding(items)


def train(sequences, items, device, seed, epochs=12):
    torch.manual_seed(seed)
    model = MeanModel(items).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    cut = [s[-LENGTH:] for s in sequences if len(s) > 1]
    for _ in range(epochs):
        for batch in torch.randperm(len(cut)).split(512):
            rows = pad_front([cut[i] for i in batch.tolist()]).to(device)
            state, loss, count = torch.zeros(len(rows), WIDTH, device=device), 0.0, 0
            for before, after in zip(rows[:, :-1].unbind(1), rows[:, 1:].unbind(1), strict=True):
                state = DECAY * state + model.embedding(before.where(before >= 0, items))
                live = before >= 0
                if bool(live.any()):
                    loss = loss + torch.nn.functional.cross_entropy(
                        model.logits(state[live]), after[live], reduction="sum"
                    )
                    count += int(live.sum())
            optimiser.zero_grad()
            (loss / count).backward()
            optimiser.step()
    return model.eval().requires_grad_(False)


def candidates(objective):
    """Every decoder that is compared, by name."""
    out = {"greedy": spdd.Greedy([objective], slots=SLOTS), "must-fill": spdd.MustFill([objective], slots=SLOTS)}
    for weight in (0.2, 0.33, 0.5, 0.6, 0.67, 0.75):
        out[f"WA {weight}"] = spdd.WA([objective], slots=SLOTS, weight=weight)
    for scale in ("probability", "relative"):
        out[f"printed {scale}"] = spdd.SPDD([objective], slots=SLOTS, scale=scale, start=1.0, rate=1.0, guard=False)
    out["spdd default"] = spdd.SPDD([objective], slots=SLOTS)
    for start in ("warm", 0.1, 0.3, 0.5, 1.0, 2.0):
        for rate in (0.0, 0.1, 0.3, 1.0):
            out[f"spdd logit start={start} rate={rate}"] = spdd.SPDD([objective], slots=SLOTS, start=start, rate=rate)
    for scale in ("probability", "relative"):
        for start in ("warm", 0.3):
            for rate in (0.0, 0.3):
                name = f"spdd {scale} start={start} rate={rate}"
                out[name] = spdd.SPDD([objective], slots=SLOTS, scale=scale, start=start, rate=rate)
    name = "spdd logit start=0.3 rate=0.3 toward what is missing"
    out[name] = spdd.SPDD([objective], slots=SLOTS, start=0.3, rate=0.3, pace="remaining")
    return out


def ndcg(hits):
    """(R,) against the best order of the relevant items of the row. hits: (hit (R, K) bool, relevant (R,))"""
    hit, relevant = hits
    gain = 1 / np.log2(np.arange(2, SLOTS + 2))
    ideal = np.concatenate([[0], gain.cumsum()])[np.minimum(relevant, SLOTS)]
    return np.where(relevant > 0, (hit * gain).sum(1) / np.maximum(ideal, 1e-12), np.nan)


def measure(name, decoder, model, histories, future, value):
    items = np.concatenate(
        [decoder.generate(model, part, exclude="seen").items.cpu().numpy() for part in histories.split(500)]
    )
    hit = np.array([np.isin(row, list(f)) for row, f in zip(items, future, strict=True)])
    own = value[items] > 0
    wanted = np.array([sum(value[i] > 0 for i in f) for f in future])
    consumption = ndcg((hit, np.array([len(f) for f in future])))
    objective = ndcg((hit & own, wanted))
    spread = 1.96 * np.nanstd(consumption) / np.sqrt(len(consumption))
    return {
        "decoder": name,
        "consumption": float(np.nanmean(consumption)),
        "interval": float(spread),
        "objective": float(np.nanmean(objective)),
        "attained": float((own.sum(1) >= FLOOR).mean()),
        "share": float(own.mean()),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--users", type=int, default=8000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--commit", help="where git is not at hand")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    commit = (
        args.commit
        or subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    )
    machine = torch.cuda.get_device_name() if args.device == "cuda" else platform.processor() or platform.machine()
    lines = []
    for domain, load in {"playlists": playlists, "sports": sports}.items():
        sequences, value = load(args.data)
        sequences = [s for s in (list(dict.fromkeys(s)) for s in sequences) if len(s) >= 5]
        cut = [len(s) - max(1, len(s) // 5) for s in sequences]
        rows = collections.defaultdict(list)
        for seed in range(args.seeds):
            begun = time.time()
            model = train([s[:c] for s, c in zip(sequences, cut, strict=True)], len(value), args.device, seed)
            print(f"{domain}: {len(sequences)} sequences, {len(value)} items, {value.mean():.1%} in the objective, "
                  f"seed {seed} trained in {time.time() - begun:.0f} s", flush=True)  # fmt: skip
            chosen = np.random.default_rng(seed).permutation(len(sequences))[: args.users]
            histories = pad_front([sequences[i][: cut[i]][-LENGTH:] for i in chosen]).to(args.device)
            future = [set(sequences[i][cut[i] :]) for i in chosen]
            for name, decoder in candidates(spdd.Objective("wanted", value, at_least=FLOOR)).items():
                rows[name].append(measure(name, decoder, model, histories, future, value))
                lines.append({"benchmark": "defaults", "domain": domain, "seed": seed, "users": len(chosen), "commit": commit,
                              "machine": machine, "torch": torch.__version__, **rows[name][-1]})  # fmt: skip
        print(f"\n{domain}, mean of {args.seeds} seeds")
        print(f"{'decoder':54s} {'consumption':>12s} {'+-':>6s} {'objective':>10s} {'attained':>9s} {'share':>6s}")
        for name, measured in rows.items():
            mean = {key: np.mean([m[key] for m in measured]) for key in measured[0] if key != "decoder"}
            print(f"{name:54s} {mean['consumption']:12.4f} {mean['interval']:6.4f} {mean['objective']:10.4f} "
                  f"{mean['attained']:9.3f} {mean['share']:6.3f}", flush=True)  # fmt: skip
    if args.out:
        args.out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(json.dumps(lines[-1]))


if __name__ == "__main__":
    main()
