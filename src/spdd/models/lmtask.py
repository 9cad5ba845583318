"""LM-Rec in training: every item of every user's sequence is spelled after those before it. And how it is judged."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.interactions import Split
from .histories import aligned
from .lmrec import KIND, LMRec


class LMTask:
    """What `train.fit` is to teach an `LMRec`.

    batch, seed: of the settings it is trained with
    passes:      how often an epoch goes through the data; validation and checkpoints come once an epoch
    validate_on: how many users of the validation part are asked for their next item
    """

    kind = KIND

    def __init__(self, model: LMRec, split: Split, *, batch=256, seed=0, passes=1, validate_on=2000):
        fingerprint = split.items.fingerprint()
        if len(split.items.id) != model.items or model.config["items"] not in ("", fingerprint):
            raise ValueError(
                f"the ids are of {model.items} items (vocabulary '{model.config['items']}'), the split has "
                f"{len(split.items.id)} ('{fingerprint}'). Build the ids for this split's items."
            )
        model.config["items"] = fingerprint
        self.model, self.config, self.fingerprint = model, model.config, fingerprint
        self.batch, self.seed, self.passes = batch, seed, passes
        train = split.train
        item = train.item[train.item >= 0]
        stop = np.concatenate([[0], np.cumsum(train.item >= 0)])[train.start]
        self.begin, self.size = _windows(stop, model.history + 1)  # the last is only ever a target
        self.item = torch.from_numpy(item).to(model.device)
        self.data = hashlib.sha256(stop.tobytes() + item.tobytes()).hexdigest()[:16]
        self.histories, self.target = sample(split, "validation", validate_on, seed)

    def batches(self, epoch: int, rank: int, world: int) -> Iterator[tuple[Tensor, Tensor, int]]:
        """(begin (B,), size (B,), longest) of windows of about one length."""
        for turn in range(self.passes):
            random = np.random.default_rng([self.seed, epoch, turn])
            order = random.permutation(len(self.begin))
            order = order[rank::world][: max(len(order) // world, 1)]
            parts = []
            for pool in np.array_split(order, max(len(order) // (50 * self.batch), 1)):
                pool = pool[self.size[pool].argsort(kind="stable")]
                parts += [pool[i : i + self.batch] for i in range(0, len(pool), self.batch)]
            for part in random.permutation(len(parts)):
                rows = parts[part]
                begin, size = (torch.from_numpy(x[rows]).to(self.model.device) for x in (self.begin, self.size))
                yield begin, size, int(self.size[rows].max())

    def loss(self, batch, generator) -> Tensor:
        begin, size, longest = batch
        place = torch.arange(longest, device=begin.device)
        items = self.item[(begin[:, None] + place).clamp_max(len(self.item) - 1)]
        return self.model.loss(items.masked_fill(place >= size[:, None], -1))

    def validate(self) -> dict[str, float]:
        if not len(self.target):
            return {}
        found = ranks(self.model, self.histories, self.target)
        return {"recall@10": float((found < 10).mean()), "ndcg@10": ndcg(found)}


def sample(split: Split, part: str, most: int, seed=0) -> tuple[list[np.ndarray], np.ndarray]:
    """Histories and next items (U,) of at most so many users of a part, whose next item is known."""
    before, held = split.history(part), getattr(split, part)
    there = np.flatnonzero(np.diff(held.start) > 0)
    there = there[held.item[held.start[there]] >= 0]
    if len(there) > most:
        there = np.sort(np.random.default_rng(seed).choice(there, most, replace=False))
    return [before.item[before.of(row)] for row in there], held.item[held.start[there]]


@torch.no_grad()
def ranks(model: LMRec, histories: Any, target: np.ndarray, *, batch: int = 256) -> np.ndarray:
    """(U,) place of each target among the items proposed, 0 the best; behind all items where it is not. Items seen are barred."""
    found = []
    for i in range(0, len(target), batch):
        rows = histories[i : i + batch]
        seen = aligned(rows, device=model.device)
        open_ = torch.ones(len(rows), model.items + 1, dtype=torch.bool, device=model.device)
        open_ = open_.scatter(1, seen.remainder(model.items + 1), False)[:, :-1]
        items, _ = model.propose(model.start(rows), open_)
        hit = items == torch.from_numpy(target[i : i + batch]).to(items.device)[:, None]
        place = torch.where(hit.any(1), hit.int().argmax(1), model.items)
        found.append(place.cpu().numpy())
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def ndcg(place: np.ndarray, k: int = 10) -> float:
    """Mean of 1 / log2(place + 2) where place < k."""
    return float(np.where(place < k, 1 / np.log2(place + 2.0), 0).mean())


def _windows(start: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Where windows of at most `most` items begin and how long they are: each row cut from its end, every item once."""
    length = np.diff(start)
    count = -(-length // most)
    row = np.repeat(np.arange(len(length)), count)
    turn = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)  # 0 is the last window of its row
    stop = start[1:][row] - turn * most
    begin = np.maximum(stop - most, start[:-1][row])
    return begin, stop - begin
