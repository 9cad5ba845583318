"""Models that offer their best items instead of a score for every item, and what a slot sees of them.

Some models score an item by spelling it (semantic ids) or by asking another service: scoring all items would cost
as many runs as there are items. Such a model is told which items are open and what each is paid for, and searches
for the best of them itself; the decoder then chooses among what was found, by exact scores. What the guard
promises is not left to the search: only items it admits are open, so the promise holds whatever is found.

How near the choice is to the best over all items depends on the search alone. On log scales with prices it is one
search for relevance + price · value, exact where the search is. On scales of probabilities, and for scores that are
no such sum, it is two: one for plain items, and one among items that gain something. For one 0/1 objective these
are all there is to choose from; for graded values the second search is steered by log(1 + gain / best relevance).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..relevance import LOG_SCALES, normaliser, relevance
from . import primal_dual
from .arrays import all_finite
from .primal_dual import Problem, State, linear
from .search import View


class Proposer(Protocol):
    """What a model offers that proposes: `start` and `advance` as every model, and in place of `logits` these three."""

    items: int  # M
    device: torch.device  # where its proposals lie

    def start(self, histories: Any) -> Any: ...
    def propose(self, state: Any, open_: Tensor | None, bonus: Tensor | None) -> tuple[Tensor, Tensor]:
        """(R, B) the best items found by log p + bonus, -1 where there are fewer, and their log p.

        open_: (R, M) the items to search among, None for all.  bonus: (R, M), in nats, None for none

        log p is normalised over all M items, whatever is open, unless the model says `normalised = False`: then scales of
        probabilities are refused. A row with an open item gets at least one.
        """
        ...

    def advance(self, state: Any, items: Tensor) -> Any: ...


class Found(NamedTuple):
    """Items (R, N), each once, -1 for none, their log p, and whether each may be chosen or is only there to be told of."""

    items: Tensor
    logits: Tensor
    choice: Tensor


def proposes(model: Any) -> bool:
    return callable(getattr(model, "propose", None))


def placeholder(model: Any, histories: Any) -> Tensor:
    """(R, M) stand-in for the scores of all items: their shape, type and device, without their memory."""
    count = getattr(model, "items", None)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(
            f"a model that proposes must say how many items there are in `items`, got {count!r}. Set it to the size of "
            "the catalogue."
        )
    return torch.zeros((), device=getattr(model, "device", None)).expand(len(histories), count)


class Proposals:
    """What slots see of a model that proposes. It follows the model from choice to choice.

    story: also look for the item that would win at price 0, at the cost of one more search a slot
    """

    def __init__(self, model, model_state, like: Tensor, eligible: Tensor | None, scale: str, story: bool):
        if scale == "sigmoid":
            raise ValueError(
                f"`scale` 'sigmoid' needs a score for each item by itself; {type(model).__name__} proposes items with "
                "their log-probabilities. Use 'relative' or 'logit'."
            )
        if scale in ("probability", "log_probability") and not getattr(model, "normalised", True):
            raise ValueError(
                f"`scale` '{scale}' needs probabilities; {type(model).__name__} proposes items with logits, as it never sees "
                "all of them. Use 'logit', which chooses as 'log_probability' does, or 'relative'."
            )
        self.model, self.state, self.scale, self.story = model, model_state, scale, story
        self.everything = torch.ones(like.shape, dtype=torch.bool, device=like.device) if eligible is None else eligible
        self.filled = 0
        self.bonus: Any = None  # (R, N) what `Problem.bonus` gives the candidates of this slot
        self.finite = torch.ones((), dtype=torch.bool, device=like.device)

    def first(self, value: Tensor, wanted: list[Tensor]) -> View:
        """All items, of which those are open whose relevance is known. From these the first prices are read.

        wanted: (R, M) or (M,) masks, the best items within which are looked for besides the best of all
        """
        found = _merged([self._search(self.everything & items, None) for items in (self.everything, *wanted)])
        there = found.items >= 0
        worth = self._on_scale(found, self._norm())
        # Each item is there once; columns without one all write to a column that is then cut off.
        place = found.items.where(there, self.everything.shape[1])
        known = torch.nn.functional.pad(torch.zeros_like(self.everything, dtype=torch.float64), (0, 1))
        seen = torch.zeros_like(known, dtype=torch.bool)
        return View(known.scatter(1, place, worth)[:, :-1], value, seen.scatter(1, place, there)[:, :-1], None)

    def look(self, problem: Problem, state: State) -> View:
        """The candidates of a slot."""
        value = primal_dual.value_now(problem, state)
        open_ = primal_dual.open_items(problem, state)
        allowed = primal_dual.bar(problem, state, value, open_, open_.double()) > 0
        gain = extra = None
        if problem.promises.column:
            gain = linear(open_.new_zeros((), dtype=torch.float64), value, primal_dual.net_price(problem, state))
        if problem.bonus is not None:
            extra = problem.bonus(state.chosen, self.filled).expand(open_.shape)
            gain = extra if gain is None else gain + extra
        norm = self._norm()
        if gain is None or (self.scale in LOG_SCALES and problem.combine is linear):
            found = [self._search(allowed, gain)]
        else:
            found = [self._search(allowed, None)]
            found.append(self._favoured(allowed, gain, self._on_scale(found[0], norm)))
        if self.story:
            plain = self._search(open_, None)
            found.append(plain._replace(choice=torch.zeros_like(plain.choice)))
        found = _merged(found)
        there, place = found.items >= 0, found.items.clamp_min(0)
        near = value.expand(-1, len(place), -1).gather(2, place.expand(len(value), -1, -1))
        self.bonus = None if extra is None else extra.gather(1, place)
        return View(self._on_scale(found, norm), near, there, found.items, allowed=found.choice)

    def move(self, chosen: Tensor, place: Tensor) -> None:
        self.state = self.model.advance(self.state, chosen.clamp_min(0))
        self.filled += 1

    def _search(self, open_: Tensor, bonus: Tensor | None) -> Found:
        items, logits = self.model.propose(self.state, open_, bonus)
        there = items >= 0
        logits = logits.masked_fill(~there, 0)
        self.finite = self.finite & all_finite(logits)
        return Found(items, logits, there)

    def _favoured(self, allowed: Tensor, gain: Tensor, plain: Tensor) -> Found:
        """The best of the items that gain more than the least, as if all were as relevant as the best plain one."""
        least = gain.masked_fill(~allowed, torch.inf).amin(1, keepdim=True)
        above = (gain - least).masked_fill(~allowed, 0)
        return self._search(allowed & (above > 0), (above / plain.amax(1, keepdim=True).clamp_min(1e-9)).log1p())

    def _norm(self) -> Tensor | None:
        """(R, 1) what is taken off log p: nothing, as it is normalised, but on the relative scale the best item's."""
        if self.scale != "relative":
            return None
        best = self._search(self.everything, None)
        return normaliser("relative", best.logits.masked_fill(~best.choice, -torch.inf))

    def _on_scale(self, found: Found, norm: Tensor | None) -> Tensor:
        """(R, N) relevance, 0 where there is no item."""
        return relevance(self.scale, found.logits, norm).masked_fill(found.items < 0, 0)


def wanted(value: Tensor, floor: Tensor, cap: Tensor, slots: int) -> list[Tensor]:
    """Masks (R, M) of the items that keep each target where a slate is filled with them; at least `slots` items each.

    value: (C, 1 or R, M).  floor, cap: (R, C), -inf / inf where there is none
    """
    masks = []
    for c, worth in enumerate(value):
        for sign, target in ((1.0, floor[:, c, None]), (-1.0, cap[:, c, None])):
            if bool(torch.isfinite(target).any()):
                signed = sign * worth
                last = signed.topk(min(slots, worth.shape[1]), 1).values[:, -1:]
                masks.append(signed >= torch.minimum(sign * target / slots, last))
    return masks


def _merged(found: list[Found]) -> Found:
    """All that was found, each item where it was found first."""
    if len(found) == 1:
        return found[0]
    items, logits, choice = (torch.cat(x, 1) for x in zip(*found, strict=True))
    order = items.argsort(dim=1, stable=True)
    ordered = items.gather(1, order)
    again = torch.zeros_like(choice)
    again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    again = torch.zeros_like(again).scatter(1, order, again)
    return Found(items.masked_fill(again, -1), logits, choice & ~again)
