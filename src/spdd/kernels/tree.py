"""The tree step, in plain torch: what rows may write next, what each token is paid, and where it leads.

Rows spell items token by token along a tree of ids. A node's children are one range, and so are the items below it, so
what a row may still have below a child is a count: of the classes of items its guard admits, less those that are
closed to it (used, or excluded). Nodes with many items have these counts ready; of the others the items are looked at.
Classes are items of equal values, or of values in one box where there are too many for that.
Nothing here loops over rows, children or items, asks the device for a number, or has a shape that depends on one: all of it can
be captured in a CUDA graph. `tree_cpu.py` and `tree_scores_cpu.py` are the same in numba, and this says what
right means.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

RUNNING, FULL, LOST = 0, 1, 2
FREE, FLOOR, CAP, SEVERAL = 0, 1, 2, 3
HUGE = 1e30


class Tree(NamedTuple):
    """N nodes, level by level from the root (node 0); M items in the order of their ids; G classes; C columns of values.

    child:  (I + 1,) node n of the I inner ones has children child[n] to child[n + 1]
    first, stop: (N,) the items below node n are those at places first[n] to stop[n]
    code, word:  (N,) the last token of the prefix, as the catalog numbers it and as the vocabulary does
    code_of: (L, V) the catalog's number of each token of the vocabulary at each place of an id; -1 where it has none
    klass:  (M,) class of the item at each place.  value: (M, C)
    low, high: (G, C) least and largest value in each class; the same where `exact`
    big:    (N,) line of the node in `held`, `mass` and `total`; -1 for nodes with few items
    held:   (G, H) how many items of each class.  mass: (C, H) sum of their values.  total: (G, C, H), empty if exact
    between: (S,) tokens written between items.  end: the token after a full slate, -1 for none
    depth:  L.  fan: most children of a node.  few: most items of a node with no line.  same: most items of one id
    exact:  see above
    """

    child: Any
    first: Any
    stop: Any
    code: Any
    word: Any
    code_of: Any
    klass: Any
    value: Any
    low: Any
    high: Any
    big: Any
    held: Any
    mass: Any
    total: Any
    between: Any
    end: Any
    depth: Any
    fan: Any
    few: Any
    same: Any
    exact: Any


class Terms(NamedTuple):
    """What R rows were promised at the start. Prices come in pairs: floors of all columns, then caps (P = 2C).

    slots: (R,).  remaining: (R,) bool, whether a choice is compared with what is missing per slot left
    initial, share, rate, ceiling: (R, P), see `decode.primal_dual`; 0 and 0 where nothing is priced
    kind:  (R,) FREE, FLOOR, CAP or SEVERAL: what the guard keeps.  column: (R,) of the one floor or cap
    floor, cap, least, most: (R, C) the guard's targets, and the same with room for rounding; -inf / inf for none
    witness: (R, W) places of the items that prove them, -1 for none.  gives: (R, W, C) their values
    """

    slots: Any
    remaining: Any
    initial: Any
    share: Any
    rate: Any
    ceiling: Any
    kind: Any
    column: Any
    floor: Any
    cap: Any
    least: Any
    most: Any
    witness: Any
    gives: Any


class Stand(NamedTuple):
    """Where R rows stand.

    node:   (R,) of the prefix written.  place: (R,) tokens written of the item, and then of what stands between items
    over:   (R,) RUNNING, FULL (or nothing left to choose), or LOST: something was written that names no open item
    count:  (R,) items so far.  chosen: (R, K) their places, -1 for none.  gained: (R, C).  excess: (R, P)
    alive:  (R, W) bool, witness items not taken yet
    closed: (R, E) places of items used or excluded, ascending, then M
    net:    (R, C) today's price of each column.  allowed: (R, G) bool.  worth: (R, G) price of each class; 0 if not exact
    """

    node: Any
    place: Any
    over: Any
    count: Any
    chosen: Any
    gained: Any
    excess: Any
    alive: Any
    closed: Any
    net: Any
    allowed: Any
    worth: Any


def settle(tree: Tree, terms: Terms, stand: Stand, rows: Tensor | None = None) -> Stand:
    """The stand with prices and admitted classes as they are before the next item; rows with nothing left are FULL.

    rows: (R,) bool, which rows to bring up to date; all if not given
    """
    half = len(tree.value[0])
    sign = torch.ones(2 * half, dtype=torch.float64, device=stand.net.device)
    sign[half:] = -1
    dual = terms.initial * _exp(-terms.rate * stand.excess * sign)
    dual = torch.minimum(dual, terms.ceiling).clamp_max(HUGE)
    net = dual[:, :half] - dual[:, half:]
    worth = net @ tree.low.T if tree.exact else stand.worth
    given = terms.gives * stand.alive[:, :, None]  # (R, W, C)
    without = (stand.gained + given.sum(1))[:, None] - given  # (R, W, C)
    allowed = (terms.kind == FREE)[:, None].expand(stand.allowed.shape).clone()
    for w in range(stand.alive.shape[1]):
        fits = (tree.low >= (terms.least - without[:, w])[:, None]).all(2)
        fits &= (tree.high <= (terms.most - without[:, w])[:, None]).all(2)
        allowed |= fits & stand.alive[:, w, None]
    found = stand._replace(net=net, allowed=allowed, worth=worth)
    root = torch.zeros_like(stand.node)[:, None]
    none = _below(tree, terms, found, root)[0] == 0
    found = found._replace(allowed=allowed | none)  # promises are let go before the slate is
    none = (_below(tree, terms, found, root)[0] == 0)[:, 0]
    done = (stand.over == RUNNING) & (none | (stand.count >= terms.slots))
    found = found._replace(over=stand.over.masked_fill(done, FULL))
    return found if rows is None else _choose(rows, found, stand)


def advance(tree: Tree, terms: Terms, stand: Stand, tokens: Tensor) -> Stand:
    """The stand after each row wrote its token (R,); -1 leaves a row as it is."""
    depth, between = tree.depth, len(tree.between)
    moves = (tokens >= 0) & (stand.over == RUNNING)
    inside = moves & (stand.place < depth)
    # What stands between items.
    due = tree.between[(stand.place - depth).clamp(0, max(between - 1, 0))] if between else tokens
    parted = moves & ~inside & (tokens == due)
    lost = moves & ~inside & (tokens != due)
    # One step down the tree.
    known = inside & (tokens < tree.code_of.shape[1])
    code = tree.code_of[stand.place.clamp_max(depth - 1), tokens.clamp(0, tree.code_of.shape[1] - 1)].long()
    node = stand.node.clamp_min(0).masked_fill(~inside, 0)
    begin, end = tree.child[node].long(), tree.child[node + 1].long()
    child = begin[:, None] + torch.arange(tree.fan, device=tokens.device)
    match = (child < end[:, None]) & (tree.code[child.clamp_max(len(tree.code) - 1)] == code[:, None])
    legal = known & (code >= 0) & match.any(1)
    lost |= inside & ~legal
    node = (begin + match.long().argmax(1)).where(legal, stand.node)
    place = torch.where(legal | parted, stand.place + 1, stand.place)
    # Where an id is whole, the item: the best paid of its open ones, those the guard admits first, then by order.
    whole = legal & (place == depth)
    item = _item(tree, terms, stand, node.masked_fill(~whole, 0))
    lost |= whole & (item < 0)
    took = whole & (item >= 0)
    stand = stand._replace(node=node, place=place, over=stand.over.masked_fill(lost, LOST))
    taken = settle(tree, terms, _took(tree, terms, stand, item.clamp_min(0), took), took)
    ends = taken.place >= depth + torch.where(taken.over == FULL, 0, between)
    return taken._replace(place=taken.place.masked_fill(ends, 0), node=taken.node.masked_fill(ends, 0))


def branches(tree: Tree, terms: Terms, stand: Stand, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Words, log-probabilities and payments of the children rows may go to: three (R, W), -1, -inf and 0 for none.

    log p is over the children the catalog has, so that all its ids sum to 1; a child is paid the mean of what the items a
    row may have below it are paid, less what the node itself is paid: along an id that adds up to the item's own.
    Rows that are not inside an item have none. logits: (R, V)
    """
    inside = (stand.over == RUNNING) & (stand.place < tree.depth)
    node = stand.node.masked_fill(~inside, 0)
    begin, end = tree.child[node].long(), tree.child[node + 1].long()
    child = begin[:, None] + torch.arange(tree.fan, device=node.device)
    there = inside[:, None] & (child < end[:, None])
    child = child.where(there, -1)
    word = tree.word[child.clamp_min(0)].long().masked_fill(~there, -1)
    count, total = _below(tree, terms, stand, child)
    legal = there & (count > 0)
    sure = (
        logits.gather(1, word.clamp_min(0)).double().nan_to_num(-torch.inf, torch.finfo(torch.float64).max, -torch.inf)
    )
    sure = sure.masked_fill(~there, -torch.inf)
    # A host that forbade all of them still gets legal ones: forbidding is not ours to break, naming no item is worse.
    barred = (sure.masked_fill(~legal, -torch.inf) == -torch.inf).all(1, keepdim=True)
    sure = sure.masked_fill(barred & there, 0)
    sure = sure - sure.masked_fill(~inside[:, None], 0).logsumexp(1, keepdim=True)
    mean = total / count.clamp_min(1)
    above = (total * legal).sum(1, keepdim=True) / (count * legal).sum(1, keepdim=True).clamp_min(1)
    return (
        word.masked_fill(~legal, -1),
        sure.masked_fill(~legal, -torch.inf),
        (mean - above).masked_fill(~legal, 0),
    )


def scores(tree: Tree, terms: Terms, stand: Stand, logits: Tensor) -> Tensor:
    """(R, V) log p + payment of every token of the vocabulary, -inf where a row may not write it.

    Between items there is one token to write, and after a full slate the end. A row that has none (no end, or LOST with
    no end) keeps its logits as they are. logits: (R, V)
    """
    word, sure, paid = branches(tree, terms, stand, logits)
    out = torch.full((len(logits), logits.shape[1] + 1), -torch.inf, dtype=logits.dtype, device=logits.device)
    out.scatter_(1, word.where(word >= 0, logits.shape[1]), (sure + paid).to(logits.dtype))
    out = out[:, :-1].contiguous()
    over = stand.over != RUNNING
    only = torch.full_like(stand.node, tree.end).masked_fill(~over, -1)
    if len(tree.between):
        due = tree.between[(stand.place - tree.depth).clamp(0, len(tree.between) - 1)]
        only = torch.where(~over & (stand.place >= tree.depth), due, only)
    forced = torch.zeros_like(out).masked_fill(
        torch.arange(out.shape[1], device=out.device) != only[:, None], -torch.inf
    )
    out = torch.where((only >= 0)[:, None], forced, out)
    return torch.where((over & (only < 0))[:, None], logits, out)


# ---- parts ------------------------------------------------------------------------------------------------


def _below(tree: Tree, terms: Terms, stand: Stand, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """How many items a row may have below its nodes (R, W), and the sum of what they are paid; nodes ascending or -1."""
    there, node = nodes >= 0, nodes.clamp_min(0)
    begin, end, line = tree.first[node].long(), tree.stop[node].long(), tree.big[node].long()
    held = tree.held.T[line.clamp_min(0)] * stand.allowed[:, None]  # (R, W, G)
    count = held.sum(2)
    if tree.exact:
        total = (held * stand.worth[:, None]).sum(2)
    else:
        total = (tree.total.permute(2, 0, 1)[line.clamp_min(0)] * stand.allowed[:, None, :, None]).sum(2)
        total = (total * stand.net[:, None]).sum(2)
    large = there & (line >= 0)
    count, total = count.masked_fill(~large, 0).double(), total.masked_fill(~large, 0)
    # Of large nodes the closed items are taken off again.
    key = begin.masked_fill(~there, len(tree.klass))
    near = (torch.searchsorted(key, stand.closed, right=True) - 1).clamp_min(0)  # (R, E) the node each may be below
    counts = stand.closed < end.gather(1, near).clamp_max(len(tree.klass))
    counts &= (stand.closed >= begin.gather(1, near)) & large.gather(1, near)
    at = stand.closed.clamp_max(len(tree.klass) - 1)
    counts &= stand.allowed.gather(1, tree.klass[at].long())
    count.scatter_add_(1, near, -counts.double())
    total.scatter_add_(1, near, -_paid(tree, stand, at) * counts)
    # Of small nodes the items are looked at.
    at = begin[:, :, None] + torch.arange(tree.few, device=node.device)  # (R, W, T)
    open_ = (at < end[:, :, None]) & (there & (line < 0))[:, :, None]
    at = at.clamp_max(len(tree.klass) - 1).flatten(1)
    open_ = open_.flatten(1) & ~_is_closed(stand, at) & stand.allowed.gather(1, tree.klass[at].long())
    count += open_.unflatten(1, (*nodes.shape[1:], tree.few)).sum(2)
    total += (_paid(tree, stand, at) * open_).unflatten(1, (*nodes.shape[1:], tree.few)).sum(2)
    # Witness items are always admitted, whatever their class.
    at = terms.witness.clamp_min(0)
    extra = stand.alive & ~stand.allowed.gather(1, tree.klass[at].long())  # (R, W')
    inside = (at[:, None] >= begin[:, :, None]) & (at[:, None] < end[:, :, None]) & (extra[:, None] & there[:, :, None])
    return count + inside.sum(2), total + (_paid(tree, stand, at)[:, None] * inside).sum(2)


def _paid(tree: Tree, stand: Stand, at: Tensor) -> Tensor:
    """(R, n) what the items at places (R, n) are paid."""
    if tree.exact:
        return stand.worth.gather(1, tree.klass[at].long())
    return (tree.value[at] * stand.net[:, None]).sum(2)


def _is_closed(stand: Stand, at: Tensor) -> Tensor:
    near = torch.searchsorted(stand.closed, at).clamp_max(stand.closed.shape[1] - 1)
    return stand.closed.gather(1, near) == at


def _item(tree: Tree, terms: Terms, stand: Stand, leaf: Tensor) -> Tensor:
    """(R,) the place of the item that an id stands for, -1 where none of its items is open."""
    begin, end = tree.first[leaf].long(), tree.stop[leaf].long()
    at = begin[:, None] + torch.arange(tree.same, device=leaf.device)
    open_ = at < end[:, None]
    at = at.clamp_max(len(tree.klass) - 1)
    open_ &= ~_is_closed(stand, at)
    witness = (at[:, :, None] == terms.witness[:, None]) & stand.alive[:, None]
    admitted = stand.allowed.gather(1, tree.klass[at].long()) | witness.any(2)
    open_ = torch.where((open_ & admitted).any(1, keepdim=True), open_ & admitted, open_)
    best = _paid(tree, stand, at).masked_fill(~open_, -torch.inf).argmax(1, keepdim=True)
    return at.gather(1, best).masked_fill(~open_.any(1, keepdim=True), -1)[:, 0]


def _took(tree: Tree, terms: Terms, stand: Stand, item: Tensor, took: Tensor) -> Stand:
    """The stand after rows `took` (R,) their item (R,), a place: duals, gains, witness and closed items."""
    value = tree.value[item] * took[:, None]  # (R, C)
    pairs = torch.cat([value, value], 1)
    missing = terms.share * terms.slots[:, None] - torch.cat([stand.gained, stand.gained], 1)
    due = missing / (terms.slots - stand.count).clamp_min(1)[:, None]
    due = torch.where(terms.remaining[:, None], due, terms.share)
    slot = stand.count.clamp_max(stand.chosen.shape[1] - 1)[:, None]
    chosen = stand.chosen.scatter(1, slot, torch.where(took[:, None], item[:, None], stand.chosen.gather(1, slot)))
    closed = torch.cat([stand.closed, item.where(took, len(tree.klass))[:, None]], 1).sort(1).values
    closed = closed[:, :-1].contiguous()
    return stand._replace(
        count=stand.count + took,
        chosen=chosen,
        gained=stand.gained + value,
        excess=stand.excess + (pairs - due) * took[:, None],
        alive=_left(terms, stand, item, value, took),
        closed=closed,
    )


def _left(terms: Terms, stand: Stand, item: Tensor, value: Tensor, took: Tensor) -> Tensor:
    """(R, W) witness items left; see `decode.guard.advance`."""
    if not stand.alive.shape[1]:
        return stand.alive
    column = terms.column[:, None, None].expand(-1, stand.alive.shape[1], 1)
    own = terms.gives.gather(2, column)[:, :, 0] if terms.gives.shape[2] else stand.alive.double()
    total = stand.gained + (terms.gives * stand.alive[:, :, None]).sum(1) + value
    left = total[:, None] - terms.gives
    floor, cap = terms.floor[:, None], terms.cap[:, None]
    bound = torch.isfinite(floor) | torch.isfinite(cap)
    size = 1 + torch.where(torch.isfinite(floor), floor, cap.nan_to_num(posinf=0.0)).abs()
    room = (torch.minimum((left - floor) / size, (cap - left) / size)).masked_fill(~bound, torch.inf)
    several = -(room.amin(2) if room.shape[2] else torch.zeros_like(own))
    several = several.masked_fill(((terms.gives == value[:, None]) | ~bound).all(2), -torch.inf)
    kind = terms.kind[:, None]
    keep = torch.where(kind == FLOOR, own, torch.where(kind == CAP, -own, several))
    keep = keep.masked_fill(~stand.alive, torch.inf)
    itself = (terms.witness == item[:, None]) & stand.alive  # an item of the witness leaves itself
    place = torch.where(itself.any(1), itself.long().argmax(1), keep.argmin(1))[:, None]
    return stand.alive.scatter(1, place, stand.alive.gather(1, place) & ~took[:, None])


def _choose(rows: Tensor, new: Stand, old: Stand) -> Stand:
    """`new` in these rows, `old` in the others."""
    return Stand(*(torch.where(rows.reshape(-1, *[1] * (a.dim() - 1)), a, b) for a, b in zip(new, old, strict=True)))


def _exp(x: Tensor) -> Tensor:
    """exp that equals C's on the CPU, as the prices of `decode.primal_dual`."""
    return x.exp() if x.device.type != "cpu" else torch.complex(x, torch.zeros_like(x)).exp().real
