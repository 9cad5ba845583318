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
# are is rounded, and averages at most log M), and sums of up to 1024 of them in 64 lanes or more, 1.3e-6. A GPU's
# powers of two are 2e-7 off, once more for every new largest a program meets.
MASS_ERROR = 8e-6
FAR = 0.05  # where products may be off by more than this, no norm made of them says anything
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


@torch.no_grad()
def priced_unsettled(
    scores: Tensor | Product,
    value: Values,
    price: Tensor,
    k: int,
    *,
    scale: str = "logit",
    barred: Barred | None = None,
) -> tuple[Choice, Tensor]:
    """As `priced_topk`, of values with few levels, but nothing waits for the device: a CUDA graph may hold it.

    What comes back is the pass's own choice, and (R,) in which rows it is proven; the others are `priced_topk`'s to settle.
    Nothing that comes in is checked. Give `Product.longest`, or the table is read once more for it.
    """
    if value.groups is None:
        raise ValueError("values of many levels cannot be served without a look at the numbers. Use `priced_topk`.")
    found, norm, sure = _by_group(scores, value.groups, price.double(), k, scale, barred or Barred())
    return Choice(*found, norm), sure


def error_of(scores: Tensor | Product) -> Tensor | float:
    """By how much a logit of the pass can differ from float64's: (R, 1), or 0 where logits are given.

    Of a product of width D, in whatever order it is summed: (D + 2) units in the last place of |hidden| · |row|.
    """
    if isinstance(scores, Tensor):
        return 0.0
    unit = 2.0**-53 if dtype_of(scores) == torch.float64 else 2.0**-24
    if torch.get_float32_matmul_precision() != "highest" and unit > 1e-12:
        unit = 2.0**-8  # products may be taken in bfloat16
    if scores.table.is_cuda and unit > 1e-12 and scores.hidden.element_size() == 2:
        unit = 2.0**-22  # tensor cores cut off what they add
    size = scores.hidden.double().norm(dim=1, keepdim=True) * longest(scores)
    return (scores.hidden.shape[1] + 2) * unit * size


def longest(scores: Product) -> Tensor | float:
    """() the largest norm of a row of the table, nan where the table has one. Nothing waits for the device."""
    if scores.longest is not None:
        return scores.longest
    most = []
    for first in range(0, len(scores.table), 1 << 18):
        norm = scores.table[first : first + (1 << 18)].float().norm(dim=1)
        if scores.row_scale is not None:
            norm = norm * scores.row_scale[first : first + (1 << 18)].abs()
        most.append(norm.amax())
    return torch.stack(most).amax().double() * (1 + 1e-4)  # the norms' own rounding


def logits_at(scores: Tensor | Product, items: Tensor) -> Tensor:
    """(R, N) float64 logits of these items (R, N); -1 gives that of some item."""
    items = items.clamp_min(0)
    if isinstance(scores, Tensor):
        return scores.gather(1, items).double()
    logits = torch.einsum("rd,rnd->rn", scores.hidden.double(), scores.table[items].double())
    return logits if scores.row_scale is None else logits * scores.row_scale[items].double()


def _by_group(scores, groups: Groups, price, k, scale, barred):
    """Items, scores and logits (R, k), the norm (R, 1), and which rows are proven (R,)."""
    best = group_best(scores, groups, k, scale=scale, barred=barred, settle=False)
    total = relevance(scale, best.logit, best.norm)
    for c, worth in enumerate(groups.level.index_select(0, best.group).T):
        total = total + price[:, c : c + 1] * worth
    total = total.masked_fill(best.items < 0, -torch.inf)
    items, total, logits = _ordered(best.items, total, best.logit, k)
    sure = best.sure
    if scale in ("probability", "log_probability"):
        sure = sure & told_apart(total, logits, best.norm, scale, MASS_ERROR + error_of(scores), k)
    return (items[:, :k], total[:, :k], logits[:, :k]), best.norm, sure


class Best(NamedTuple):
    """The best items of every group, its best first. N: k columns for each group, fewer where it is smaller.

    logit: (R, N) float64, -inf where there is no item.  items: (R, N), -1 there.  group: (N,)
    norm:  (R, 1) what the scale takes off the logits, or None
    sure:  (R,) whether nothing that was left out can be better than what is here
    """

    logit: Tensor
    items: Tensor
    group: Tensor
    norm: Tensor | None
    sure: Tensor


def group_best(
    scores: Tensor | Product,
    groups: Groups,
    k: int,
    *,
    scale: str,
    barred: Barred,
    settle: bool = True,
    exact: bool = False,
) -> Best:
    """The k best items of every value group, whatever the prices will be. Equal ones: the lower item number first.

    settle: rows that are not sure are done again by the definition. Without it nothing waits for the device.
    exact:  all rows by the definition, their norms too
    """
    if exact:
        return _by_definition(scores, barred, groups, k, scale)
    given = isinstance(scores, Tensor)
    found = group_topk(scores, groups, k if given else k + SPARE, barred, scale in ("probability", "log_probability"))
    depth = [min(k if given else k + SPARE, size) for size in groups.size]
    short = [min(k, size) for size in groups.size]
    if given:
        logits, items = found.logit.double(), found.items
        sure = torch.ones(len(items), dtype=torch.bool, device=items.device)
    else:
        logits = logits_at(scores, found.items).masked_fill(found.items < 0, -torch.inf)
        last = found.logit.double().split(depth, 1)
        logits, items = _in_order(logits, found.items, depth)
        error = error_of(scores)
        sure = _held(logits, last, groups.size, k, error)
        if not logits.is_cuda:  # a row of zeros has equal items only: the pass has the lower of equal item numbers
            sure |= (scores.hidden == 0).all(1)
        if found.mass is not None:
            sure &= (torch.as_tensor(error) < FAR)[:, 0]
        logits, items = (torch.cat([x[:, g, :n] for g, n in enumerate(short)], 1) for x in (logits, items))
    norm = _largest(scores, logits, barred) if scale == "relative" else found.mass
    best = Best(logits, items, reference.columns(short, logits.device), norm, sure)
    return _settled(best, scores, groups, k, scale, barred) if settle else best


def _in_order(logits, items, depth):
    """(R, G, n) logits and items by group, best first, equal ones by item number; -inf and -1 where a group is smaller."""
    wide = max(depth)
    logits, items = (
        x.unflatten(1, (-1, wide))
        if min(depth) == wide
        else torch.stack([torch.nn.functional.pad(part, (0, wide - part.shape[1]), value=filler) for part in x.split(depth, 1)], 1)
        for x, filler in ((logits, -torch.inf), (items, -1))
    )  # fmt: skip
    order = items.argsort(dim=2)
    order = order.gather(2, logits.gather(2, order).sort(dim=2, descending=True, stable=True).indices)
    return logits.gather(2, order), items.gather(2, order)


def _held(logits, last, sizes, k, error):
    """(R,) whether the k best of every group are surely among those that were kept of it.

    logits: (R, G, n) float64.  last: the pass's own logits of each group, of which nothing that was dropped is above the last
    """
    sure = torch.ones(len(logits), dtype=torch.bool, device=logits.device)
    for g, size in enumerate(sizes):
        if last[g].shape[1] < size:
            least, bar = logits[:, g, k - 1 : k], last[g][:, -1:]
            # What was dropped, what was kept, and once more where what was kept was scored again: each may be off.
            sure &= ((bar + 3 * error < least) | (bar == -torch.inf))[:, 0]
    return sure


def _settled(best: Best, scores, groups, k, scale, barred) -> Best:
    """The same with rows that were not sure from all their scores, a few at a time."""
    open_ = (~best.sure).nonzero()[:, 0]
    return (
        replaced(best, open_, _by_definition(*rows_of(scores, barred, open_), groups, k, scale)) if len(open_) else best
    )


def replaced(best: Best, rows: Tensor, by: Best) -> Best:
    """The same with these rows from elsewhere, one after the other."""
    norm = None if best.norm is None else best.norm.index_copy(0, rows, cast(Tensor, by.norm))
    logit, items, sure = (getattr(best, x).index_copy(0, rows, getattr(by, x)) for x in ("logit", "items", "sure"))
    return best._replace(logit=logit, items=items, norm=norm, sure=sure)


def _by_definition(scores, barred, groups: Groups, k: int, scale: str) -> Best:
    """All rows from all their scores, a few at a time."""
    rows, count = shape(scores)
    logits, items, norms = [], [], []
    for part in _few(torch.arange(rows, device=groups.member.device), count):
        mine, lists = rows_of(scores, barred, part)
        every = reference.exact_logits(mine)
        inside, open_ = reference.allowed(lists, len(every), count, every.device)
        best, found, _ = reference.grouped_topk(every, groups, k, open_)
        logits.append(best)
        items.append(found)
        if scale in ("probability", "relative", "log_probability"):
            norms.append(cast(Tensor, reference.exact_norm(scale, every, inside)))
    group = reference.columns([min(k, size) for size in groups.size], groups.member.device)
    norm = torch.cat(norms) if norms else None
    sure = torch.ones(rows, dtype=torch.bool, device=groups.member.device)
    return Best(torch.cat(logits), torch.cat(items), group, norm, sure)


def rows_of(scores: Tensor | Product, barred: Barred, rows: Tensor) -> tuple[Tensor | Product, Barred]:
    """These rows alone."""
    mine = scores[rows] if isinstance(scores, Tensor) else scores._replace(hidden=scores.hidden[rows])
    seen, used = (None if x is None else x[rows] for x in barred[:2])
    return mine, Barred(seen, used, barred.eligible)


def _few(rows: Tensor, count: int):
    """Rows in parts whose scores fit the memory for a while."""
    return rows.split(max(1, (1 << 24) // count)) if len(rows) else ()


def _largest(scores, logits, barred):
    """(R, 1) the largest logit of the items that are there, used ones too."""
    top = logits.amax(1, keepdim=True)
    if barred.used is not None and barred.used.shape[1]:
        items, gone = Lists.of(barred, *shape(scores), logits.device)
        there = ~gone & (items < shape(scores)[1])
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
    for part in _few(open_.nonzero()[:, 0], value.shape[1]):
        mine, lists = rows_of(scores, barred, part)
        exact = reference.priced_topk(mine, value, price[part], k, scale, lists)
        found = Choice(
            found.items.index_copy(0, part, exact.items),
            found.score.index_copy(0, part, exact.score),
            found.logit.index_copy(0, part, exact.logit),
            found.norm if exact.norm is None else cast(Tensor, found.norm).index_copy(0, part, exact.norm),
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
