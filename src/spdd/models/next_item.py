"""What SASRec learns from: at every place of every sequence, the item that came next."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data.interactions import Sequences, Split
from . import losses, ranking
from .histories import aligned
from .sasrec import KIND, SASRec
from .train import Settings

POOL = 16  # batches whose rows are sorted by length together, so that little padding is computed


class Batch(NamedTuple):
    """items: (B, L) flush right, -1 in front.  target: (N,) what came next.  place: (N,) where, in (B, 1 + L) flat"""

    items: Tensor
    target: Tensor
    place: Tensor


class NextItem:
    """The training task of a SASRec.

    judged: at most so many validation users, drawn once, decide when to stop; None takes all
    """

    def __init__(self, model: SASRec, split: Split, settings: Settings, *, judged: int | None = None):
        self.model, self.settings, self.kind = model, settings, KIND
        self.config = {"items": model.items, **asdict(model.config)}
        self.fingerprint = split.items.fingerprint()
        train = split.train
        self.item = train.item
        self.data = hashlib.sha256(train.start.tobytes() + train.item.tobytes()).hexdigest()[:16]
        self.begin, self.end = windows(train, model.config.history)
        self.share = torch.from_numpy(np.bincount(train.item, minlength=model.items) / max(len(train.item), 1)).float()
        self.usual = (self.end - self.begin).mean() * settings.batch  # targets in a batch
        self.histories: Any = split.history("validation").lists()
        self.target = ranking.first_held_out(split.validation)
        if judged is not None and judged < len(self.target):
            rows = np.sort(np.random.default_rng(settings.seed).choice(len(self.target), judged, replace=False))
            self.histories, self.target = [self.histories[row] for row in rows.tolist()], self.target[rows]

    def batches(self, epoch: int, rank: int, world: int) -> Iterator[Batch]:
        """Rows in a new order every epoch; those of one batch are about equally long."""
        rng = np.random.default_rng((self.settings.seed, epoch))
        order = rng.permutation(len(self.begin))
        order = np.concatenate([order, order[: -len(order) % world]])  # every process has its share of the last batch
        many = self.settings.batch * world
        parts = []
        for at in range(0, len(order), many * POOL):
            pool = order[at : at + many * POOL]
            pool = pool[np.argsort(self.end[pool] - self.begin[pool], kind="stable")]
            parts += [pool[i : i + many] for i in range(0, len(pool), many)]
        for part in rng.permutation(len(parts)):
            yield self._batch(parts[part][rank::world])

    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        model, config = self.model, self.model.config
        items, target, place = (x.to(generator.device, non_blocking=True) for x in batch)
        offset = hide = None
        if model.position is not None:
            free = model.position.num_embeddings - items.shape[1]
            # Half of the rows begin at 0, as in decoding; the others train the positions only long rows come to.
            offset = torch.randint(-free, free, (len(items),), generator=generator, device=items.device).clamp_min(0)
        if config.hidden_items:
            hide = torch.rand(items.shape, generator=generator, device=items.device) < config.hidden_items
        hidden = model(items, offset, hide).flatten(0, 1)[place]  # (N, D)
        if config.loss == "softmax":
            each = losses.softmax(hidden, model.table, target)
        elif config.loss == "bce":
            each = losses.bce(hidden, model.table, target, config.negatives, generator)
        else:
            self.share = self.share.to(items.device)
            each = losses.sampled(hidden, model.table, target, self.share, config.negatives, generator)
        return each.sum() / self.usual  # not each.mean(): targets in batches of short rows weigh no more than others

    def validate(self) -> dict[str, float]:
        """NDCG@10 and Recall@10 of the validation item among all items, seen ones masked; nothing where there is none."""
        if not len(self.target):
            return {}
        place = self.model.embedding.weight.device
        self.histories = aligned(self.histories, device=place)  # the first time; then they are there already
        rank = ranking.ranks(self.model, self.histories, self.target)
        return {"ndcg@10": float(ranking.ndcg(rank).mean()), "recall@10": float(ranking.recall(rank).mean())}

    def _batch(self, rows: np.ndarray) -> Batch:
        size = self.end[rows] - self.begin[rows]  # targets: the first comes after the start token
        width = size.max()
        column = np.arange(width) - (width - size)[:, None]  # (B, width) -1 and less before the row begins
        event = np.where(column >= 0, self.item[(self.begin[rows][:, None] + column).clip(0)], -1)
        place = np.flatnonzero(column >= 0)
        inputs = np.ascontiguousarray(event[:, :-1])  # the start token takes the place of the one before the first
        return Batch(*map(torch.from_numpy, (inputs, event.reshape(-1)[place], place)))


def windows(train: Sequences, history: int) -> tuple[np.ndarray, np.ndarray]:
    """Begin and end (W,) of the stretches that are learnt from, as events of `train`.

    A stretch is at most `history` + 1 events, all of them targets. Longer rows are cut from their end.
    """
    begin, end = [], []
    for first, last in zip(train.start[:-1].tolist(), train.start[1:].tolist(), strict=True):
        while last > first:
            end.append(last)
            last = max(first, last - history - 1)
            begin.append(last)
    return np.array(begin, dtype=np.int64), np.array(end, dtype=np.int64)
