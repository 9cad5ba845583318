"""The best items under a price: fast where it may be, and proven to be what float64 says.

Where values have few levels, the best item of a group is its most relevant one whatever the prices: one pass keeps a few
of each group and the row's log-sum-exp (`stream.py`). Where they have many, one pass keeps an upper bound for each tile
of items, and only tiles that can still win are looked at again (`tiles.py`).

Either way candidates are scored in float64. A row whose candidates are too near for the precision of the pass to tell
apart, or whose candidates may not hold all that matter, is scored in full by the definition in `reference.py`.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor

from . import reference
from .reference import SCALES, Barred, Choice, Groups, Product, group_items, relevance
from .stream import Lists, dtype_of, group_topk, shape
from .tiles import Tiles, tile_topk, tiles_of

MOST_GROUPS = 32  # with more distinct values than this, tiles pay
SPARE = 2  # kept of each group beyond what is asked for, to see that nothing near was left out

# What the pass may be wrong by in a log-sum-exp of float32: terms, weighted by themselves, 1.5e-6 (how far below the largest they
# are is rounded, and averages at most log M), and sums of up to 1024 of them in 64 lanes or more, 1.3e-6.
MASS_ERROR = 4e-6
# The last place of a float64 score, a few times over: nearer than this, scores count as told apart by nothing.
LAST = 1e-15


class Values(NamedTuple):
    """Values made ready once for many calls. value: (C, M) float64; groups where there are few levels, tiles elsewhere."""

    value: Tensor
    groups: Groups | None
    tiles: Tiles | None


def prepare(value: Tensor, most: int = MOST_GROUPS) -> Values:
    """value: (C, M), finite. At most `most` distinct columns are served by group."""
    if value.dim() != 2 or not value.shape[1]:
        raise ValueError(
            f"`value` must have shape (objectives, items) with at least one item, got {tuple(value.shape)}."
        )
    value = value.double()
    if not bool(torch.isfinite(value).all()):
        raise ValueError("`value` must be finite. Bar items without a value with `eligible`.")
    groups = group_items(value, min(most, 255))
    return Values(value, groups, tiles_of(value) if groups is None else None)


def priced_argmax(scores, value, price, *, scale="logit", seen=None, used=None, eligible=None) -> Tensor:
    """(R,) the best item of each row under its prices, -1 where there is none. See `priced_topk`."""
    return priced_topk(scores, value, price, 1, scale=scale, seen=seen, used=used, eligible=eligible).items[:, 0]


@torch.no_grad()
def priced_topk(
    scores: Tensor | Product,
    value: Tensor | Values,
    price: Tensor,
    k: int,
    *,
    scale: str = "logit",
    seen: Tensor | None = None,
    used: Tensor | None = None,
    eligible: Tensor | None = None,
) -> Choice:
    """The k items of each row with the largest relevance + Σ price · value; the same as `reference.priced_topk` gives.

    scores:   (R, M) finite logits, or a `Product` of hidden states and an item table
    value:    (C, M), or what `prepare` made of it: worth its while from the second call on
    price:    (R, C), negative where less is wanted
    scale:    "probability", "relative", "log_probability" or "logit"
    seen:     (R, L) items that are not there for the row: never chosen and in no probability; -1 pads
    used:     (R, K) items not to be chosen again, but still part of the distribution; -1 pads
    eligible: (M,) bool, False for items no row may have

    Items that float64 cannot tell apart may come in any order; truly equal ones come lowest number first.

    >>> scores, new = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([[0.0, 1.0, 1.0]])
    >>> priced_topk(scores, new, torch.tensor([[1.5]]), k=2).items
    tensor([[1, 0]])
    """
    ready = value if isinstance(value, Values) else prepare(value)
    barred = Barred(seen, used, eligible)
    _check(scores, ready.value, price, k, scale, barred)
    if not len(price):
        return Choice(price.new_zeros(0, k).long(), price.new_zeros(0, k), price.new_zeros(0, k), None)
    price = price.double()
    if ready.groups is not None:
        found, norm, sure = _by_group(scores, ready.groups, price, k, scale, barred)
    else:
        found, norm, sure = tile_topk(scores, ready.value, cast(Tiles, ready.tiles), price, k, scale, barred)
    return _proven(Choice(*found, norm), ~sure, scores, ready.value, price, k, scale, barred)


def error_of(scores: Tensor | Product) -> Tensor | float:
    """By how much a logit of the pass can differ from float64's: (R, 1), or 0 where logits are given.

    Of a product of width D, in whatever order it is summed: (D + 2) units in the last place of |hidden| · |row|.
    """
    if isinstance(scores, Tensor):
        return 0.0
    unit = 2.0**-53 if dtype_of(scores) == torch.float64 else 2.0**-24
    if torch.get_float32_matmul_precision() != "highest" and unit > 1e-12:
        unit = 2.0**-8  # products may be taken in bfloat16
    size = scores.hidden.double().norm(dim=1, keepdim=True) * longest(scores)
    return (scores.hidden.shape[1] + 2) * unit * size


def longest(scores: Product) -> float:
    """The largest norm of a row of the table."""
    if scores.longest is not None:
        return scores.longest
    most = 0.0
    for first in range(0, len(scores.table), 1 << 18):
        norm = scores.table[first : first + (1 << 18)].float().norm(dim=1)
        if scores.row_scale is not None:
            norm = norm * scores.row_scale[first : first + (1 << 18)].abs()
        most = max(most, norm.max().item())
    return most * (1 + 1e-4)  # the norms' own rounding


def logits_at(scores: Tensor | Product, items: Tensor) -> Tensor:
    """(R, N) float64 logits of these items (R, N); -1 gives that of some item."""
    items = items.clamp_min(0)
    if isinstance(scores, Tensor):
        return scores.gather(1, items).double()
    logits = torch.einsum("rd,rnd->rn", scores.hidden.double(), scores.table[items].double())
    return logits if scores.row_scale is None else logits * scores.row_scale[items].double()


def _by_group(scores, groups: Groups, price, k, scale, barred):
    """Items, scores and logits (R, k), the norm (R, 1), and which rows are proven (R,)."""
    exact = isinstance(scores, Tensor)
    mass = scale in ("probability", "log_probability")
    found = group_topk(scores, groups, k if exact else k + SPARE, barred, mass)
    there = found.items >= 0
    if exact:
        logits, sure = found.logit.double(), torch.ones(len(price), dtype=torch.bool, device=price.device)
    else:
        logits = logits_at(scores, found.items).masked_fill(~there, -torch.inf)
        sure = _held(found, logits, groups, k, error_of(scores))
    norm = found.mass if mass else _largest(scores, logits, barred) if scale == "relative" else None
    total = relevance(scale, logits, norm)
    level = groups.level[found.group].to(total.device)  # (N, C)
    for c, worth in enumerate(level.T):
        total = total + price[:, c : c + 1] * worth
    total = total.masked_fill(~there, -torch.inf)
    items, total, logits = _ordered(found.items, total, logits, k)
    if mass:
        sure = sure & told_apart(total, logits, norm, scale, MASS_ERROR + error_of(scores), k)
    return (items[:, :k], total[:, :k], logits[:, :k]), norm, sure


def _held(found, logits, groups, k, error):
    """(R,) whether the k best of every group are surely among those that were kept of it."""
    sure = torch.ones(len(logits), dtype=torch.bool, device=logits.device)
    for g, size in enumerate(groups.size):
        mine = found.group == g
        kept = int(mine.sum())
        if kept == size:
            continue
        last = found.logit[:, mine][:, -1:].double()  # nothing that was dropped came out above it
        least = logits[:, mine].sort(dim=1, descending=True).values[:, k - 1 : k]
        sure &= ((last + 2 * error < least) | (last == -torch.inf))[:, 0]
    return sure


def _largest(scores, logits, barred):
    """(R, 1) the largest logit of the items that are there, used ones too."""
    top = logits.amax(1, keepdim=True)
    if barred.used is not None and barred.used.shape[1]:
        items, gone = Lists.of(barred, *shape(scores), logits.device)
        there = ~gone.to(items.device) & (items < shape(scores)[1])
        used = items.where(there, 0)
        if barred.eligible is not None:
            there &= barred.eligible[used]
        top = torch.maximum(top, logits_at(scores, used).masked_fill(~there, -torch.inf).amax(1, keepdim=True))
    return top.clamp_min(torch.finfo(torch.float64).min)


def _ordered(items, total, logits, k):
    """Best first, equal scores by item number; padded to k where there are fewer."""
    order = items.argsort(dim=1)
    order = order.gather(1, total.gather(1, order).sort(dim=1, descending=True, stable=True).indices)
    missing = max(0, k - order.shape[1])
    return tuple(
        torch.nn.functional.pad(x.gather(1, order), (0, missing), value=pad)
        for x, pad in ((items, -1), (total, -torch.inf), (logits, -torch.inf))
    )


def told_apart(total, logits, norm, scale, error, k: int) -> Tensor:
    """(R,) whether the k first keep their order and their places when the norm is off by `error`. total, logits: best first"""
    sure = torch.ones(len(total), dtype=torch.bool, device=total.device)
    if scale != "probability":  # the norm moves every score alike
        return sure
    chance, off = (logits - norm).exp(), torch.as_tensor(error, dtype=torch.float64, device=total.device).expm1()
    last = slice(k - 1, k)  # what is after it must stay after it; between those before it, neighbours are enough
    for one, other in ((slice(0, k - 1), slice(1, k)), (last, slice(k, None))):
        gap, moved = total[:, one] - total[:, other], (chance[:, one] - chance[:, other]).abs() * off
        near = (gap <= moved + LAST * total[:, one].abs()) & (logits[:, one] != logits[:, other])
        sure &= ~(near & (total[:, other] > -torch.inf)).any(1)
    return sure


def _proven(found: Choice, open_: Tensor, scores, value, price, k, scale, barred) -> Choice:
    """The choice with its open rows settled by the definition, a few at a time."""
    rows = open_.nonzero()[:, 0]
    if not len(rows):
        return found
    few = max(1, (1 << 24) // value.shape[1])
    for part in rows.split(few):
        mine = scores[part] if isinstance(scores, Tensor) else scores._replace(hidden=scores.hidden[part])
        lists = barred._replace(
            **{n: x[part] for n, x in zip(barred._fields[:2], barred[:2], strict=True) if x is not None}
        )
        exact = reference.priced_topk(mine, value, price[part], k, scale, lists)
        found = Choice(
            found.items.index_copy(0, part, exact.items),
            found.score.index_copy(0, part, exact.score),
            found.logit.index_copy(0, part, exact.logit),
            found.norm,
        )
    return found


def _check(scores, value, price, k, scale, barred) -> None:
    if scale not in SCALES:
        raise ValueError(f"`scale` must be one of {', '.join(SCALES)}, got {scale!r}.")
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"`k` must be a whole number of at least 1, got {k!r}.")
    if not isinstance(scores, Tensor) and scores.hidden.shape[1:] != scores.table.shape[1:]:
        raise ValueError(
            f"`hidden` and `table` must be equally wide, got {tuple(scores.hidden.shape)} and {tuple(scores.table.shape)}."
        )
    if isinstance(scores, Tensor) and (scores.dim() != 2 or not scores.is_floating_point()):
        raise ValueError(
            f"`scores` must be floats of shape (rows, items), got {tuple(scores.shape)} of {scores.dtype}."
        )
    rows, count = shape(scores)
    if value.shape[1] != count:
        raise ValueError(f"`value` must have a column for each of {count} items, got shape {tuple(value.shape)}.")
    if price.shape != (rows, len(value)):
        raise ValueError(f"`price` must have shape ({rows}, {len(value)}), got {tuple(price.shape)}.")
    if price.device.type == "cpu" and not bool(torch.isfinite(price).all()):  # asking a GPU would stall it
        raise ValueError("`price` must be finite. A very large price does what an infinite one would.")
    for name, items in (("seen", barred.seen), ("used", barred.used)):
        if items is None:
            continue
        if items.dim() != 2 or len(items) != rows or items.is_floating_point() or items.dtype == torch.bool:
            raise ValueError(
                f"`{name}` must be item numbers of shape ({rows}, any), got {tuple(items.shape)} of {items.dtype}."
            )
        if items.device.type == "cpu" and items.numel() and (int(items.min()) < -1 or int(items.max()) >= count):
            raise ValueError(
                f"`{name}` must name items from 0 to {count - 1} (-1 pads), got {int(items.min())} to {int(items.max())}."
            )
    if barred.eligible is not None and (barred.eligible.shape != (count,) or barred.eligible.dtype != torch.bool):
        raise ValueError(
            f"`eligible` must be bool of shape ({count},), got {tuple(barred.eligible.shape)} of {barred.eligible.dtype}."
        )
