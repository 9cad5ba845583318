"""Slates with the scores they were chosen from: for every user what bounds said, and what became of the slate.

One floor, one decoder, a few users at a time, because all scores of all slots are held. `audit.py` sums it up.
Letters: R rows, K slots, M items.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..decode.arrays import check_logits, eligible_items
from ..decode.bounds import certificate, paper_violation_bound, regret_bound, regret_bound_paper, violation_bound
from ..decode.decoder import Decoder
from ..decode.hindsight import moving_certificate, undominated
from ..decode.oracle import autoregressive_optimum, enumerate_slates, static_optimum
from ..decode.spdd import SPDD
from ..objective import TOLERANCE, Objective
from ..relevance import normaliser, relevance
from .grid import PRINTED

PATHS = 20_000  # slates of one user that are tried one by one, where that is all there are


class Goal(NamedTuple):
    """What is audited: a floor. value: (M,) what items give.  floor: value units a slate should have"""

    name: str
    value: np.ndarray
    floor: float


class Setting(NamedTuple):
    """A decoder under audit. scale: what relevance is measured on.  rate: of the printed algorithm"""

    name: str
    scale: str
    rate: float | None = None

    def decoder(self, goal: Goal, slots: int) -> Decoder:
        objective = Objective(goal.name, goal.value, at_least=goal.floor)
        own: dict[str, Any] = {}
        if self.rate is not None:
            own = {**PRINTED, "scale": self.scale, "rate": self.rate}
        return SPDD([objective], slots=slots, **own)


class Watched:
    """A model that remembers the scores it gave."""

    def __init__(self, model: Any):
        self.model, self.seen = model, []

    def start(self, histories):
        return self.model.start(histories)

    def logits(self, state):
        found = check_logits(self.model.logits(state), "what `model.logits` returned")
        self.seen.append(found)
        return found

    def advance(self, state, items):
        return self.model.advance(state, items)


class Walk(NamedTuple):
    """Slates and the scores they were chosen from. logits: (R, K, M).  open: (R, M) bool.  duals: (R, K+1)"""

    items: Tensor
    logits: Tensor
    open: Tensor
    duals: Tensor


def walk(decoder: Decoder, model: Any, histories: Any, exclude: Any) -> Walk:
    watched = Watched(model)
    slate = decoder.generate(watched, histories, exclude=exclude, trace=True)
    logits = torch.stack(watched.seen, 1)
    open_ = eligible_items(exclude, histories, logits[:, 0])
    open_ = torch.ones_like(logits[:, 0], dtype=torch.bool) if open_ is None else open_
    return Walk(torch.as_tensor(slate.items).cpu(), logits.cpu(), open_.cpu(), _duals(slate))


def on_scale(scale: str, logits: Tensor, open_: Tensor) -> Tensor:
    """(R, K, M) relevance as the decoder sees it. logits: (R, K, M)"""
    rows = [relevance(scale, x, normaliser(scale, x, open_)) for x in logits.unbind(1)]
    return torch.stack(rows, 1)


def _duals(slate) -> Tensor:
    """(R, K+1) the price before each slot and after the last; none for a decoder that has none."""
    before, after = torch.as_tensor(slate.trace.dual).cpu(), torch.as_tensor(slate.dual).cpu()
    return torch.cat([before, after[:, None]], 1)[:, :, 0] if after.shape[1] else before.sum(2)


# ---- what became of slates ---------------------------------------------------------------------------------------------


def judged(model, batch, goal: Goal, setting: Setting, slots, sigma, delta, near) -> dict[str, np.ndarray]:
    """By name, a number for each of these users: what happened and what bounds said. near: of the first so many the best is sought"""
    histories, exclude = batch
    decoder = setting.decoder(goal, slots)
    run = walk(decoder, model, histories, exclude)
    value = torch.as_tensor(goal.value, dtype=torch.float64)
    scores = on_scale(setting.scale, run.logits, run.open)
    may = value.where(run.open, -torch.inf)  # (R, M)
    most = may.topk(slots, 1).values
    kept = torch.isfinite(most).all(1) & (most.sum(1) >= goal.floor * (1 - TOLERANCE))
    share, rate = goal.floor / slots, setting.rate or 0.0
    items = run.items.clamp_min(0)  # rows with an empty slot are not kept
    gained = value[items]
    shortfall = (goal.floor - gained.sum(1)).clamp(min=0)
    low, high, spread = _range(scores, run.open, items)
    # The most that is left while a floor is missed, whatever is shown: all better items together fall short of it.
    short = (most.cumsum(1) < goal.floor * (1 - TOLERANCE)).sum(1).clamp(max=slots - 1)
    lasting = most.gather(1, short[:, None])[:, 0]
    found: dict[str, Any] = {
        "kept": kept,
        "shortfall": shortfall.where(shortfall > TOLERANCE * goal.floor, 0),
        "unit": (low >= -1e-9) & (high <= 1 + 1e-9),
        "spread": spread,
        "lasting": lasting >= most[:, 0] * (1 - TOLERANCE),
    }

    still = decoder.rerank(run.logits[:, 0], exclude=~run.open, trace=True)
    still_items = torch.as_tensor(still.items).clamp_min(0)
    found["still"], found["still best"], found["still exact"] = _still(
        scores[:, 0], run.open, value, goal, still_items, slots, near
    )
    found["moving"], found["moving best"] = _moving(scores, run.open, goal, items, near, kept)
    found["moving exact"] = _tried(model, histories, run, goal, setting.scale, scores, items, near)
    if setting.rate is not None:
        below = may.where(may < share, -torch.inf).amax(1).clamp(min=0)
        before = torch.where(found["unit"], 1.0, torch.inf)
        left = _left(may, items, gained, goal.floor)
        steps = torch.cat([gained, value[still_items]], 1) - share
        paper = torch.as_tensor(paper_violation_bound(rate, share, most[:, 0]))
        found |= {
            "violation paper": paper.nan_to_num(nan=torch.inf),
            "violation ours": violation_bound(rate, share, lasting, spread=before, below=below),
            "violation seen": violation_bound(rate, share, left, spread=spread, below=below),
            "step": rate * steps.abs().amax(1),
        }
        runs = {"still": (_duals(still), value[still_items]), "moving": (run.duals, gained)}
        small = found["step"] <= 1
        noise = {"items": int(run.open.sum(1).max()), "sigma": sigma, "delta": delta}
        for name, (duals, got) in runs.items():
            more = noise if name == "moving" else {}
            paper = torch.full_like(below, torch.nan)
            if small.any():
                some = {**more, "sigma": sigma[small]} if more else {}
                paper[small] = regret_bound_paper(duals[small], got[small], share, rate=rate, **some)
            found[f"{name} paper"] = paper
            found[f"{name} ours"] = regret_bound(duals, got, share, **more)
    return {name: np.asarray(x) for name, x in found.items()}


def _range(scores, open_, items):
    """Smallest and largest relevance of items free at any slot, and the largest difference at one: (R,) each."""
    free, lows, highs = open_.clone(), [], []
    for slot, now in enumerate(scores.unbind(1)):
        lows.append(now.masked_fill(~free, torch.inf).amin(1))
        highs.append(now.masked_fill(~free, -torch.inf).amax(1))
        free = free.scatter(1, items[:, slot, None], False)
    low, high = torch.stack(lows, 1), torch.stack(highs, 1)
    return low.amin(1), high.amax(1), (high - low).amax(1)


def _left(value, items, gained, floor):
    """The largest value still free, at the slot where it is least, until the floor is met: (R,). value: (R, M), -inf barred"""
    left, free = value.amax(1), value
    for slot in range(items.shape[1]):
        missing = gained[:, :slot].sum(1) < floor * (1 - TOLERANCE)
        left = torch.minimum(left, free.amax(1).where(missing, torch.inf))
        free = free.scatter(1, items[:, slot, None], -torch.inf)
    return left


def _still(scores, open_, value, goal, items, slots, near):
    """Regret against the certificate, what that is, and regret against the optimum (nan beyond `near`): (R,) each."""
    got = scores.gather(1, items).sum(1)
    best = certificate(scores, value, slots=slots, floor=goal.floor, eligible=open_)
    exact = torch.full_like(best, torch.nan)
    for row in range(min(near, len(scores))):
        may = np.flatnonzero(open_[row].numpy())
        own = may[undominated(scores[row].numpy()[may], goal.value[may], slots)]
        optimum = static_optimum(scores[row, own], goal.value[own], slots=slots, floor=goal.floor)
        exact[row] = optimum.relevance - got[row] if optimum.feasible else torch.nan
    return best - got, best, exact


def _moving(scores, open_, goal, items, near, kept):
    """Regret against hindsight, and what that is worth: (R,), nan beyond `near`."""
    best = torch.full((len(scores),), torch.nan, dtype=torch.float64)
    rows = torch.arange(len(scores))[(torch.arange(len(scores)) < near) & kept]
    found = moving_certificate(scores[rows].numpy(), goal.value, floor=goal.floor, eligible=open_[rows].numpy())
    best[rows] = torch.as_tensor(found)
    return best - scores.gather(2, items[:, :, None])[:, :, 0].sum(1), best


def _tried(model, histories, run: Walk, goal, scale, scores, items, near):
    """Regret against the best of all slates, the model asked about each of them; nan where there are too many."""
    found = torch.full((len(items),), torch.nan, dtype=torch.float64)
    got = scores.gather(2, items[:, :, None])[:, :, 0].sum(1)
    if not isinstance(histories, Tensor | np.ndarray | list):
        return found  # no rows to take one of
    for row in range(min(near, len(items))):
        may = run.open[row]
        if not 0 < math.perm(int(may.sum()), items.shape[1]) <= PATHS:
            continue
        every = enumerate_slates(
            model, histories[row : row + 1], slots=items.shape[1], exclude=(~may).nonzero()[:, 0].tolist(),
            relevance=lambda x, may=may: relevance(scale, x, normaliser(scale, x, may.to(x.device).expand(len(x), -1))),
        )  # fmt: skip
        best = autoregressive_optimum(every, goal.value, floor=goal.floor)
        if best.feasible:
            found[row] = best.relevance - got[row]
    return found
