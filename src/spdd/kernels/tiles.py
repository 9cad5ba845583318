"""The best items under a price where values have many levels: an upper bound for each tile of items, then a closer look.

On log scales a tile's bound is its largest score plus what rounding may hide. On scales of probabilities the norm is only
known at the end. But a score is e·z + w, with z = 1 / Z, so the best score of a tile is convex in z, and Z only grows
while items are read: the bound taken with the Z so far, and what prices alone give at z = 0, bound it at the true z.

Tiles are looked at in float64, the most promising first, until no other can hold a winner.
"""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .pool import in_parts
from .reference import Barred, Product, relevance
from .stream import Lists, dtype_of, pieces, shape

WIDTH = 512  # items a tile
LOOK = 4, 32  # tiles of a row looked at: at first, and at most, before the row is scored in full
CELLS = 1 << 22  # numbers of the table gathered at a time

EXP_ERROR = 2e-5  # relative, of exp(x - top) in float32 where x - top is rounded too, and of its share in the sum


class Tiles(NamedTuple):
    """What values a tile holds. high, low: (C, T)"""

    high: Tensor
    low: Tensor


def tiles_of(value: Tensor) -> Tiles:
    """value: (C, M)"""
    padded = torch.nn.functional.pad(value, (0, -value.shape[1] % WIDTH), mode="replicate").unflatten(1, (-1, WIDTH))
    return Tiles(padded.amax(2), padded.amin(2))


def tile_topk(scores: Tensor | Product, value: Tensor, tiles: Tiles, price: Tensor, k: int, scale: str, barred: Barred):
    """Items, scores and logits (R, k), the norm (R, 1), and which rows are proven (R,). price: (R, C) float64"""
    from .priced import MASS_ERROR, error_of, told_apart

    lists = Lists.of(barred, *shape(scores), price.device)
    bound, norm = upper_bounds(scores, value, tiles, price, scale, barred, lists, error_of(scores))
    items = torch.full((len(price), k), -1, device=price.device)
    total, logits = (torch.full_like(items, -torch.inf, dtype=torch.float64) for _ in range(2))
    sure = torch.zeros(len(price), dtype=torch.bool, device=price.device)
    rows, look = torch.arange(len(price), device=price.device), LOOK[0]
    while len(rows) and look <= LOOK[1]:
        width = 1 if isinstance(scores, Tensor) else scores.table.shape[1]
        held = []
        for part in rows.split(max(1, CELLS // (look * WIDTH * width))):
            mine = Lists(lists.items[part], lists.gone[part])
            pick = None if norm is None else norm[part]
            near = scores
            if len(part) < len(price):  # a copy, of given scores one of all their columns
                near = scores[part] if isinstance(scores, Tensor) else scores._replace(hidden=scores.hidden[part])
            out, outside = looked(near, value, price[part], bound[part], pick, k, scale, barred.eligible, mine, look)
            items[part], total[part], logits[part] = (x[:, :k] for x in out)
            inside = outside < out[1][:, k - 1 : k] if k <= out[1].shape[1] else outside == -torch.inf
            held.append((inside | (outside == -torch.inf))[:, 0])
            if scale == "probability":
                error = error_of(near) + MASS_ERROR
                sure[part] = told_apart(out[1], out[2], pick, scale, error, k)
            else:
                sure[part] = True
        held = torch.cat(held)
        sure[rows[~held]] = False
        rows, look = rows[~held], look * 8
    return (items, total, logits), norm, sure


def upper_bounds(scores, value, tiles, price, scale, barred, lists, error):
    """(R, T) what no score of the tile exceeds, and the norm (R, 1) or None."""
    rows, count = shape(scores)
    powers = scale in ("probability", "relative")

    def work(first: int, end: int) -> list[Part]:
        parts = _parts
        if price.device.type == "cpu" and importlib.util.find_spec("numba"):
            parts = _fast_parts
        return list(parts(scores, value, price, scale, barred.eligible, lists, first, end))

    parts = [part for run in in_parts(work, rows, count, WIDTH, price.device) for part in run]
    bound = torch.cat([part.bound for part in parts], 1)
    norm = None
    top = torch.cat([part.top for part in parts], 1)
    if scale != "logit":
        norm = top.amax(1, keepdim=True).clamp_min(torch.finfo(torch.float64).min)
        if scale != "relative":
            total = torch.cat([part.total for part in parts], 1)
            norm = norm + (total * (top - norm).exp()).sum(1, keepdim=True).log()
    size = price.abs() @ torch.maximum(tiles.high.abs(), tiles.low.abs())  # (R, T) how large a price's part can be
    rounding = (len(value) + 4) * 2.0**-22
    if powers and norm is not None:
        widths = torch.tensor([part.bound.shape[1] for part in parts], device=price.device)
        known = torch.cat([part.known for part in parts], 1).repeat_interleave(widths, 1)
        largest = (top.repeat_interleave(widths, 1) - known).exp().nan_to_num(0.0)
        alone = torch.zeros_like(size)
        for c in range(len(value)):
            alone += torch.maximum(price[:, c : c + 1] * tiles.high[c], price[:, c : c + 1] * tiles.low[c])
        # What was known of Z says how much nearer to z = 0 the truth lies.
        nearer = (known - norm).exp().nan_to_num(0.0).clamp_max(1)
        loose = largest * (EXP_ERROR + 2 * torch.as_tensor(error).expm1())
        held = nearer * (bound + loose) + (1 - nearer) * alone + rounding * size
        bound = torch.where(bound == -torch.inf, bound, held)
    else:
        if norm is not None:
            bound = bound - norm
        extent = bound.abs().nan_to_num(posinf=0, neginf=0) + (0 if norm is None else norm.abs())
        bound = bound + rounding * (extent + 2 * size) + error
    # Where float32 overflowed, the bound says nothing.
    return bound.nan_to_num(torch.inf, torch.inf, -torch.inf).masked_fill(size > 1e37, torch.inf), norm


class Part(NamedTuple):
    """A piece of the catalogue. bound: (R, t) of its tiles, with z = exp(-known).  top, total: (R, 1) largest logit and
    sum of exp(logit - top).  known: (R, 1) log of the least that Z can be"""

    bound: Tensor
    top: Tensor
    total: Tensor
    known: Tensor


def _parts(scores, value, price, scale, eligible, lists, first, end):
    kind, few = dtype_of(scores), price.to(dtype_of(scores))
    lowest = torch.finfo(kind).min
    sofar = torch.full((len(price), 1), -torch.inf, dtype=torch.float64, device=price.device)
    for at, piece in pieces(scores, first, end, WIDTH):
        count = piece.shape[1]
        row, column = ((lists.items >= at) & (lists.items < at + count)).nonzero(as_tuple=True)
        place, gone = lists.items[row, column] - at, lists.gone[row, column]
        outside = None if eligible is None else ~eligible[at : at + count]
        if isinstance(scores, Tensor) and (len(row) or outside is not None):
            piece = piece.clone()
        if outside is not None:
            piece.masked_fill_(outside, -torch.inf)
        piece[row[gone], place[gone]] = -torch.inf
        top = piece.amax(1, keepdim=True)
        known = total = top.double()
        scored = piece
        if scale == "relative":
            sofar = torch.maximum(sofar, top.double())
        elif scale != "logit":
            powered = (piece - top.clamp_min(lowest)).exp_()
            total = powered.sum(1, keepdim=True, dtype=torch.float64)
            sofar = torch.logaddexp(sofar, top.double() + total.log())
        if scale in ("probability", "relative"):
            known = sofar.clamp_min(lowest)
            scored = (piece - known.to(kind)).exp_()
        elif isinstance(scores, Tensor):
            scored = piece.clone()
        for c, worth in enumerate(value[:, at : at + count].to(kind)):
            scored.addcmul_(few[:, c : c + 1], worth)
        scored[row, place] = -torch.inf
        if outside is not None:
            scored.masked_fill_(outside, -torch.inf)
        scored = torch.nn.functional.pad(scored, (0, -count % WIDTH), value=-torch.inf)
        yield Part(scored.unflatten(1, (-1, WIDTH)).amax(2).double(), top.double(), total, known)


def _fast_parts(scores, value, price, scale, eligible, lists, first, end):
    """As `_parts`, with numba on the CPU."""
    from .cpu_stream import tile_bounds

    rows, kind = len(price), dtype_of(scores)
    few, nobody = price.to(kind).numpy(), torch.zeros(0, dtype=torch.bool)
    powers = scale in ("probability", "relative")
    massed = scale in ("probability", "log_probability")
    sofar, next_ = np.full(rows, -np.inf), (lists.items < first).sum(1).numpy()
    items, gone = lists.items.numpy(), lists.gone.numpy()
    for at, piece in pieces(scores, first, end, WIDTH):
        piece = piece if piece.stride(1) == 1 else piece.contiguous()
        count, apart = piece.shape[1], piece.stride(0)
        line = piece.as_strided((max(0, rows - 1) * apart + count,), (1,)).numpy()
        worth = value[:, at : at + count].to(kind).contiguous().numpy()
        shut = nobody if eligible is None else ~eligible[at : at + count]
        bound = np.empty((rows, -(-count // WIDTH)))
        top, total, known = np.empty((3, rows))
        tile_bounds(
            line, rows, apart, count, at, WIDTH, worth, few, shut.numpy(), items, gone, powers, scale == "relative", massed,
            next_, sofar, bound, top, total, known,
        )  # fmt: skip
        yield Part(torch.from_numpy(bound), *(torch.from_numpy(x)[:, None] for x in (top, total, known)))


def looked(scores, value, price, bound, norm, k, scale, eligible, lists: Lists, look: int):
    """(items, scores, logits), best first, of each row's `look` most promising tiles; and the bound of the next (R, 1)."""
    from .priced import logits_at

    count = value.shape[1]
    order = bound.sort(dim=1, descending=True)
    tile = order.indices[:, :look].sort(1).values  # ascending: equal scores stay in order of item numbers
    items = (tile[:, :, None] * WIDTH + torch.arange(WIDTH, device=tile.device)).flatten(1)
    there = items < count
    items = items.clamp_max(count - 1)
    if eligible is not None:
        there &= eligible[items]
    if lists.items.shape[1]:
        place = torch.searchsorted(lists.items, items).clamp_max(lists.items.shape[1] - 1)
        there &= lists.items.gather(1, place) != items
    logits = logits_at(scores, items)
    total = relevance(scale, logits, norm)
    for c, worth in enumerate(value):
        total = total + price[:, c : c + 1] * worth[items]
    total = total.masked_fill(~there, -torch.inf)
    best = total.sort(dim=1, descending=True, stable=True).indices
    total, logits, there = total.gather(1, best), logits.gather(1, best), there.gather(1, best)
    items = items.gather(1, best).masked_fill(~there, -1)
    short = max(0, k - items.shape[1])
    found = tuple(
        torch.nn.functional.pad(x, (0, short), value=pad)
        for x, pad in ((items, -1), (total, -torch.inf), (logits.masked_fill(~there, -torch.inf), -torch.inf))
    )
    outside = order.values[:, look : look + 1]
    return found, outside if outside.shape[1] else torch.full_like(price[:, :1].sum(1, keepdim=True), -torch.inf)
