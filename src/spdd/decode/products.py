"""Models whose scores are hidden states times an item table, decoded without ever writing a score for every item.

Where values have few levels, only the best open items of each value group can be chosen, whatever the prices: one pass over
the table finds them in every slot, with what is seen and used as short lists. Found are the items that float64 says are
best. Where the precision of the pass cannot prove that, the row is scored in full, either at once or, where asking would
stall the device, in a second walk once the slate is done.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..kernels import Barred, Groups, Product, group_best, longest
from ..kernels.priced import MASS_ERROR, error_of, rows_of, told_apart
from ..kernels.sharded import Part, largest
from ..kernels.sharded import group_best as sharded_best
from ..relevance import relevance
from . import primal_dual
from .primal_dual import Problem, State
from .search import Model, Steps, View, run

WORTH = 1 << 20  # scores of a slot from which it pays not to write them


class Source(NamedTuple):
    """Where a slate's scores come from.

    state:  the model's, before the next slot
    scores: its hidden states and its table
    barred: items a row must not get; those on the slate are added slot by slot
    """

    state: Any
    scores: Product
    barred: Barred
    groups: Groups
    scale: str
    part: Part | None = None  # where other processes hold the rest of the table


class Walked(NamedTuple):
    """How a slate went. finite: () whether all hidden states were.  sure: () whether every slot's choice is proven"""

    state: State
    steps: Steps
    finite: Tensor
    sure: Tensor


def product_of(model: Any, state: Any) -> Product | None:
    """The model's scores as a product, or None for a model that does not offer `hidden` and `table`."""
    table = getattr(model, "table", None) if callable(getattr(model, "hidden", None)) else None
    if not isinstance(table, Tensor):
        return None
    hidden = _hidden(model, state)
    scores = Product(hidden.detach(), table, getattr(model, "row_scale", None))
    if hidden.dim() != 2 or table.dim() != 2 or hidden.shape[1] != table.shape[1] or not len(table):
        raise ValueError(
            "what `model.hidden` returned must have shape (rows, width) and `model.table` (items, width), got "
            f"{tuple(hidden.shape)} and {tuple(table.shape)}."
        )
    return scores


def measured(scores: Product, part: Part | None) -> Product:
    """The same with the longest row of its table; all of it must be numbers.

    Read for every slate, which is one more read beside one a slot: nothing can tell for sure that weights are what they were.
    """
    size = torch.as_tensor(longest(scores)).double()
    bad = torch.stack([size.nan_to_num(torch.inf, torch.inf), (~torch.isfinite(scores.hidden).all()).to(size)])
    if part is not None:  # all processes raise, or none: who is left waiting for another waits for long
        bad = largest(bad, part.shard.group)
    most, strange = bad.tolist()
    if most == torch.inf:
        raise ValueError("`model.table` must be finite, it holds nan or infinite numbers. Check the model's weights.")
    if strange:
        raise ValueError("what `model.hidden` returned must be finite, it holds nan or infinite numbers.")
    return scores._replace(longest=bad[0])


def first_view(source: Source, slots: int) -> View:
    """What the first slot sees: as many items of each group as a slate can hold."""
    return _seen(source, source.barred, slots, settle=True)[0]


def in_doubt(problem: Problem, state: State, view: View, scores: Product) -> Tensor:
    """(R,) whose choice may turn on what the pass's norm is off by: prices meet chances, which are divided by it."""
    if problem.scale != "probability":
        return torch.zeros(len(view.relevance), dtype=torch.bool, device=view.relevance.device)
    total = primal_dual.score(problem, state, view.relevance, view.value, primal_dual.net_price(problem, state))
    total, order = primal_dual.bar(problem, state, view.value, view.open, total).sort(dim=1, descending=True)
    logits = view.relevance.gather(1, order).log()
    return ~told_apart(total, logits, 0.0, problem.scale, MASS_ERROR + error_of(scores), 1)


def cleared(view: View, rows: Tensor, source: Source, barred: Barred, depth: int) -> View:
    """The same with these rows by the definition, norm and all."""
    mine, lists = rows_of(source.scores, barred, rows)
    exact = _seen(source._replace(scores=cast(Product, mine)), lists, depth, settle=True, exact=True)[0]
    return view._replace(
        relevance=view.relevance.index_copy(0, rows, exact.relevance),
        open=view.open.index_copy(0, rows, exact.open),
        items=cast(Tensor, view.items).index_copy(0, rows, cast(Tensor, exact.items)),
    )


def walk(problem: Problem, begun: State, model: Model | Any, source: Source, trace: bool, settle: bool) -> Walked:
    """A slate, slot by slot. settle: choices that are not sure are settled at once, for which the host must look.

    Without it nothing here waits for the device, unless the model does.
    """
    now = source
    finite = torch.ones((), dtype=torch.bool, device=source.scores.hidden.device)
    sure = torch.ones_like(finite)

    def look(state: State) -> View:
        nonlocal sure
        barred = source.barred._replace(used=state.chosen)
        view, proven = _seen(now, barred, 1, settle)
        doubt = in_doubt(problem, state, view, now.scores)
        if not settle:
            sure = sure & proven & ~doubt.any()
        elif bool(doubt.any()):
            view = cleared(view, doubt.nonzero()[:, 0], now, barred, 1)
        return view

    def move(chosen: Tensor, place: Tensor) -> None:
        nonlocal now, finite
        state = model.advance(now.state, chosen.clamp_min(0))  # a row with nothing left has no say any more
        hidden = _hidden(model, state).detach()
        if hidden.shape != source.scores.hidden.shape:
            raise ValueError(
                f"what `model.hidden` returned must keep its shape from slot to slot, {tuple(source.scores.hidden.shape)} "
                f"at first, then got {tuple(hidden.shape)}. Check the model's `advance`: it is told one item per row."
            )
        finite = finite & torch.isfinite(hidden).all()
        now = now._replace(state=state, scores=now.scores._replace(hidden=hidden))

    state, steps = run(problem, begun, look, move, None, trace)
    return Walked(state, steps, finite, sure)


def _seen(source: Source, barred: Barred, depth: int, settle: bool, exact: bool = False) -> tuple[View, Tensor]:
    """What a slot sees, and () whether all of it is proven."""
    how = {"scale": source.scale, "barred": barred, "settle": settle, "exact": exact}
    if source.part is None:
        best = group_best(source.scores, source.groups, depth, **how)
    else:
        best = sharded_best(source.scores, source.part, depth, **how)
    found = best.items >= 0
    norm = None if best.norm is None else best.norm.clamp_min(torch.finfo(torch.float64).min)
    worth = relevance(source.scale, best.logit.masked_fill(~found, 0), norm)
    return View(worth, source.groups.level.index_select(0, best.group).T[:, None], found, best.items), best.sure.all()


def _hidden(model, state) -> Tensor:
    hidden = model.hidden(state)
    if not isinstance(hidden, Tensor) or not hidden.is_floating_point():
        raise TypeError(f"what `model.hidden` returned must be a tensor of floats, got {type(hidden).__name__}.")
    return hidden
