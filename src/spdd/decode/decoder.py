"""The front door of every decoder: checks what comes in, builds the problem, runs the search, packs the slate.

A decoder is a set of settings (a dataclass); subclasses say which prices they start from and what moves
them. `rerank` takes scores that do not change while a slate fills; `generate` asks a model after every
choice. Both share everything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from ..kernels import Barred, Groups, group_items, grouped_topk
from ..kernels.sharded import Shard, largest, part_of
from ..objective import TOLERANCE, Objective, check_objectives
from ..relevance import check_scale, normaliser, relevance
from ..slate import Slate, Status, Trace
from . import primal_dual, products
from .arrays import (
    SlateValue,
    all_finite,
    check_logits,
    eligible_items,
    excluded_items,
    later_logits,
    row_numbers,
    sampling_of,
)  # fmt: skip
from .guard import Reach, find_witness, slack_of
from .order import lifted
from .polish import LONGEST, polish
from .primal_dual import Problem, Promises, State, linear
from .products import Source, product_of
from .proposals import Proposals, Proposer, placeholder, proposes, wanted
from .search import Model, Steps, View, run
from .walk import walk_groups

MOST_GROUPS = 32  # with more distinct values than this, sorting items by value group no longer pays


class Settings(NamedTuple):
    """What tells one decoder from another.

    priced:  what has a price: each floor and cap ("targets"), each objective whatever its targets
             ("objectives"), or "nothing"
    rate:    how fast prices move where an objective does not say
    guard:   whether targets are promised
    bonus:   see `Problem.bonus`; a decoder that has one must look at all items, so its `_values` gives no groups
    """

    priced: str = "nothing"
    rate: Any = 0.0
    pace: str = "even"
    guard: bool = False
    combine: Any = linear
    bonus: Any = None


@dataclass(eq=False)
class Decoder:
    """What all decoders share: objectives, number of slots, the scale of relevance, whether to keep a trace."""

    objectives: Sequence[Objective] = ()
    slots: int = 10
    scale: str = "logit"
    trace: bool = False
    lift = None  # no field here: SPDD has it

    def __post_init__(self):
        if isinstance(self.slots, bool) or not isinstance(self.slots, int | np.integer) or self.slots < 1:
            raise ValueError(f"`slots` must be a whole number of at least 1, got {self.slots!r}.")
        self.slots = int(self.slots)
        self.objectives = check_objectives(self.objectives, self.slots)
        check_scale(self.scale)
        self._kept: dict[Any, Any] = {}  # values and their groups per device, computed once

    # ---- what callers use ----------------------------------------------------------------------------------

    @torch.no_grad()
    def rerank(self, logits, *, exclude=None, trace=None, temperature=None, top_p=1.0, seed=None, padded=True) -> Slate:
        """Slates from scores that stay as they are while the slate fills.

        logits:  (R, M) the model's raw scores, numpy or torch, any float type; the slate comes back as the same kind
        exclude: items a row must not get: (M,) or (R, M) bool, or one list of item numbers per row
        trace:   True keeps the story of every slot in `slate.trace`
        temperature, top_p, seed: draw slates instead of taking the best; `seed` is one number, from which rows draw by
                 their place, or one per row, which draws the same slate in any batch
        padded:  False leaves out the slots beyond the number of items, which are empty in every row
        """
        scores = check_logits(logits)
        eligible = eligible_items(exclude, None, scores)
        sampling = sampling_of(temperature, top_p, seed, scores)
        slate = self._static(scores, eligible, sampling, self.trace if trace is None else trace)
        slate = slate if self.lift is None else lifted(slate, scores, self.objectives, self.lift)
        slate = _widened(slate, self.slots) if padded else slate
        return slate if isinstance(logits, Tensor) else slate.numpy()

    @torch.no_grad()
    def generate(
        self, model: Model | Proposer, histories, *, exclude=None, trace=None, temperature=None, top_p=1.0, seed=None
    ) -> Slate:
        """Slates from a model that is asked again after every choice.

        model:     `start(histories) -> state`, `logits(state) -> (R, M)`, `advance(state, items) -> state`; a model
                   that has `propose` instead of `logits` is asked for its best items only, see `decode.proposals`
                   one that also has `hidden(state) -> (R, D)` and `table -> (M, D)`, whose product the logits are, is
                   decoded without writing them where the catalogue is large and values are few, see `decode.products`
        histories: whatever the model starts from
        exclude:   as for `rerank`, or "seen": no item of the row's own history
        The rest is as for `rerank`.
        """
        for name in ("start", "advance") if proposes(model) else ("start", "logits", "advance"):
            if not callable(getattr(model, name, None)):
                raise TypeError(
                    f"`model` must have a function '{name}'; {type(model).__name__} has none. "
                    "Wrap a plain function of item sequences with spdd.FromCallable(function)."
                )
        if self.lift is not None and (proposes(model) or _shard_of(model) is not None):
            raise ValueError(
                "`lift` sorts a slate by scores from before its first slot, which a model that proposes items, or holds a part of "
                "the table, does not give for all of them. Leave `lift` out."
            )
        trace = self.trace if trace is None else trace
        state = model.start(histories)
        source = None
        if temperature is None and not proposes(model):
            source = self._source(model, state, exclude, histories)
        first: Any = None  # kept for `lift`: what the model said before the first slot, as it may write over that
        if source is not None:
            if self.lift is not None:
                first = source.scores._replace(hidden=source.scores.hidden.clone())
            slate = self._unwritten(model, source, histories, trace)
        else:
            if proposes(model):
                logits = placeholder(model, histories)
            else:
                logits = check_logits(cast(Model, model).logits(state), "what `model.logits` returned")
            eligible = eligible_items(exclude, histories, logits)
            sampling = sampling_of(temperature, top_p, seed, logits)
            first = None if self.lift is None else logits.clone()
            slate = self._autoregressive(model, state, logits, eligible, sampling, trace)
        slate = slate if self.lift is None else lifted(slate, first, self.objectives, self.lift)
        slate = _widened(slate, self.slots)
        return slate.numpy() if isinstance(histories, np.ndarray) else slate

    def bind(self, values: Mapping[str, Any]) -> Decoder:
        """This decoder with other values for the named objectives (another table, say); what it has learnt stays."""
        names = [o.name for o in self.objectives]
        for name in values:
            if name not in names:
                raise ValueError(
                    f"`values` names objective '{name}', which is none of: {', '.join(names) or 'none at all'}."
                )
        self.objectives = tuple(replace(o, value=values[o.name]) if o.name in values else o for o in self.objectives)
        self._kept.clear()
        return self

    # ---- what subclasses say -------------------------------------------------------------------------------

    def settings(self, rows: int) -> Settings:
        """What holds for the next `rows` slates."""
        return Settings()

    def first_prices(self, problem: Problem, target: Tensor, view: View) -> Tensor:
        """(R, P) prices of the first slot. target: (R, P) what can be reached of each. view: what the first slot sees."""
        return torch.zeros_like(target)

    def ceiling(self, initial: Tensor, view: View) -> Tensor:
        """(R, P) what prices may rise to."""
        return torch.full_like(initial, torch.inf)

    def polished(self, value: Tensor) -> bool:
        """Whether slates from static scores end with exchanges of single items. value: (C, 1 or R, N)"""
        return False

    def served(self, slate: Slate) -> Slate:
        """Called with every batch of slates before it is handed out."""
        return slate

    # ---- ways to run ---------------------------------------------------------------------------------------

    def _static(self, logits, eligible, sampling, trace) -> Slate:
        value, groups = self._values(logits)
        norm = normaliser(self.scale, logits, eligible)
        items = None
        if sampling is None and groups is not None and 2 * self.slots * len(groups.level) <= logits.shape[1]:
            best, items, near = _best_of_groups(logits, groups, self.slots, eligible)
            eligible = items >= 0
            logits = best.masked_fill(~eligible, 0)
            if self.slots > LONGEST or not self.polished(near):
                worth = relevance(self.scale, logits, norm)
                view = View(worth, near, eligible, items, static=True)
                problem, reach, begun = self._begin(groups.level.T[:, None], None, view)
                width = [min(self.slots, size) for size in groups.size]
                return self._pack(problem, reach, *walk_groups(problem, begun, worth, items, width, trace))
            order = items.argsort(1)  # ascending item numbers: the first of equal scores is the lowest item
            logits, items, eligible = (x.gather(1, order) for x in (logits, items, eligible))
            value = near.gather(2, order.expand(len(near), -1, -1))
        worth = relevance(self.scale, logits, norm)
        view = View(worth, value, _all(eligible, worth), None, static=True)
        problem, reach, begun = self._begin(value, eligible, view)

        def walk(problem: Problem, trace: bool, only: Tensor | None = None):
            def look(state: State) -> View:
                open_ = primal_dual.open_items(problem, state)
                return View(worth, primal_dual.value_now(problem, state), open_, None)

            return run(problem, begun, look, lambda chosen, place: None, sampling, trace, only)

        polished = sampling is None and problem.width <= LONGEST and self.polished(value)
        guard = problem.guard if polished else None
        state, steps = walk(problem, trace and guard is None)
        if guard is not None:
            price = primal_dual.net_price(problem, begun)
            priced = problem.combine(worth, value, price)
            best = polish(worth, value, view.open, priced, guard, steps.items)
            # Walked once more over these items alone, so that order, prices and trace are those of the slate. They keep
            # the promises together, whatever their order: nothing is left to guard.
            state, steps = walk(problem._replace(guarded=False, guard=None), trace, best)
        return self._pack(problem, reach, state, _renamed(steps, items))

    def _autoregressive(self, model, model_state, logits, eligible, sampling, trace) -> Slate:
        if proposes(model):
            return self._proposed(model, model_state, logits, eligible, sampling, trace)
        value, groups = self._values(logits)
        if sampling is not None or (groups is not None and 2 * len(groups.level) > logits.shape[1]):
            groups = None
        now = _Now(model_state, logits, torch.ones((), dtype=torch.bool, device=logits.device))

        def see(open_: Tensor | None, depth: int, value: Tensor) -> View:
            norm = normaliser(self.scale, now.logits, eligible)
            if groups is None:
                return View(relevance(self.scale, now.logits, norm), value, _all(open_, now.logits), None)
            best, items, value = _best_of_groups(now.logits, groups, depth, open_)
            found = items >= 0
            return View(relevance(self.scale, best.masked_fill(~found, 0), norm), value, found, items)

        problem, reach, state = self._begin(value, eligible, see(eligible, self.slots, value))

        def look(state: State) -> View:
            return see(primal_dual.open_items(problem, state), 1, primal_dual.value_now(problem, state))

        def move(chosen: Tensor, place: Tensor) -> None:
            now.state = model.advance(now.state, chosen.clamp_min(0))  # a row with nothing left has no say any more
            now.logits = later_logits(model.logits(now.state), now.logits, "what `model.logits` returned")
            now.finite = now.finite & all_finite(now.logits)

        state, steps = run(problem, state, look, move, sampling, trace)
        if not bool(now.finite):  # asked once, after the last slot: asking in every slot would stall the device
            check_logits(now.logits, "what `model.logits` returned")
            raise ValueError(
                "`model.logits` returned nan or infinite scores after its first step. Check the model's `advance`."
            )
        return self._pack(problem, reach, state, steps)

    def _source(self, model, model_state, exclude, histories) -> Source | None:
        """Where scores come from that need not be written, or None where all of them must be."""
        scores = product_of(model, model_state)
        if scores is None or type(self)._autoregressive is not Decoder._autoregressive:
            return None
        shard = _shard_of(model)  # where other processes hold the rest of the table
        rows, count = len(scores.hidden), len(scores.table) if shard is None else shard.items
        if rows * count < products.WORTH:
            return None
        like = scores.hidden.new_zeros(()).expand(rows, count)  # the shape of the scores, without their memory
        given = excluded_items(exclude, histories, like)
        _, groups = self._values(like)
        if (
            groups is None
            or 2 * len(groups.level) > count
            or (given is not None and given.shape == like.shape and given.dtype == torch.bool)
        ):
            return None
        barred = Barred() if given is None else Barred(eligible=~given) if given.dtype == torch.bool else Barred(given)
        part = None
        if shard is not None:
            key = ("part", like.device, shard, len(scores.table))
            if key not in self._kept:
                self._kept[key] = part_of(groups, shard, len(scores.table))
            part = self._kept[key]
        return Source(model_state, scores, barred, groups, self.scale, part)

    def _unwritten(self, model, source: Source, histories, trace) -> Slate:
        """As `_autoregressive`, without scores of all items."""
        source = source._replace(scores=products.measured(source.scores, source.part))
        view = products.first_view(source, self.slots)
        problem, reach, begun = self._begin(source.groups.level.T[:, None], None, view)
        doubt = products.in_doubt(problem, begun, view, source.scores).nonzero()[:, 0]
        if len(doubt):  # prices read off these scores stand level with them: both by the same norm, the exact one
            view = products.cleared(view, doubt, source, source.barred, self.slots)
            problem, reach, begun = self._begin(source.groups.level.T[:, None], None, view)
        at_once = not source.scores.hidden.is_cuda
        walk = getattr(model, "_spdd_walk", products.walk)
        went = walk(problem, begun, model, source, trace, at_once)
        wrong = torch.stack([~went.finite, ~went.sure]).double()
        if source.part is not None:
            wrong = largest(wrong, source.part.shard.group)
        finite, sure = (not x for x in wrong.tolist())  # the first time since slot one that the host asks
        if finite and not sure:
            # Rare, and known only now: once more from the start, every choice settled before the next.
            again = source._replace(state=model.start(histories))
            went = products.walk(problem, begun, model, again, trace, True)
            finite = bool(went.finite)
        if not finite:
            raise ValueError(
                "`model.hidden` returned nan or infinite numbers after its first step. Check the model's `advance`."
            )
        return self._pack(problem, reach, went.state, went.steps)

    def _proposed(self, model, model_state, like, eligible, sampling, trace) -> Slate:
        """As `_autoregressive`, from a model that finds its best items itself. like: (R, M) of the scores' shape."""
        value, _ = self._values(like)
        now = Proposals(model, model_state, like, eligible, self.scale, trace)
        priced = type(self).first_prices is not Decoder.first_prices
        targets = wanted(value, *self._targets(len(like), like.device), self.slots) if priced else []
        problem, reach, begun = self._begin(value, eligible, now.first(value, targets), now.everything)
        seen = problem if problem.bonus is None else problem._replace(bonus=lambda chosen, filled: now.bonus)
        state, steps = run(seen, begun, lambda state: now.look(problem, state), now.move, sampling, trace)
        if not bool(now.finite):
            raise ValueError("`model.propose` returned nan or infinite log-probabilities. Check the model.")
        return self._pack(problem, reach, state, steps)

    # ---- before and after ----------------------------------------------------------------------------------

    def _values(self, logits: Tensor) -> tuple[Tensor, Groups | None]:
        """(C, 1 or R, M) values of the items, 0 where they depend on the slate; and their groups where there are few."""
        rows, count = logits.shape
        device = logits.device
        for objective in self.objectives:
            if isinstance(objective.value, str):
                raise ValueError(
                    f"`value` of objective '{objective.name}' is the column '{objective.value}', which has no numbers yet. "
                    "Give an array, or use `spdd rerank` with a table that has the column."
                )
            shape = () if objective.depends_on_slate else tuple(objective.value.shape)
            if shape and (shape[-1] != count or (len(shape) == 2 and shape[0] != rows)):
                raise ValueError(
                    f"`value` of objective '{objective.name}' must have shape ({count},) or ({rows}, {count}) to fit the "
                    f"scores, got {shape}."
                )
        if (device, count) in self._kept:
            return self._kept[device, count]
        parts = [
            torch.zeros(1, count, dtype=torch.float64, device=device)
            if o.depends_on_slate
            else o.value.to(device, torch.float64).reshape(-1, count)
            for o in self.objectives
        ]
        wide = max((len(p) for p in parts), default=1)
        value = (
            torch.stack([p.expand(wide, -1) for p in parts])
            if parts
            else torch.zeros(0, 1, count, dtype=torch.float64, device=device)
        )
        groups = None
        if not any(o.depends_on_slate for o in self.objectives) and value.shape[1] == 1:
            groups = group_items(value[:, 0], MOST_GROUPS)
        if all(o.depends_on_slate or o.value.dim() == 1 for o in self.objectives):
            self._kept[device, count] = value, groups
        return value, groups

    def _begin(
        self, value: Tensor, eligible: Tensor | None, view: View, open_: Tensor | None = None
    ) -> tuple[Problem, Reach | None, State]:
        """The problem, what can be reached, and the state before the first slot.

        open_: the columns that may be chosen at all, where `view` calls only some of them open
        """
        rows, device = len(view.relevance), view.relevance.device
        settings = self.settings(rows)
        floor, cap = self._targets(rows, device)
        column, sign, target, rate = self._promised(settings, floor, cap, rows, device)
        share = (target / self.slots).nan_to_num(0.0, 0.0, 0.0)  # of the target as asked: the printed update's R/K
        moving = tuple(
            (c, SlateValue(_within(o.value, eligible), o.name, value.shape[2], self.slots))
            for c, o in enumerate(self.objectives)
            if o.depends_on_slate
        )
        in_slate = [o.in_slate for o in self.objectives]
        bound = torch.tensor(in_slate, dtype=torch.bool, device=device)
        floor, cap = floor.masked_fill(~bound, -torch.inf), cap.masked_fill(~bound, torch.inf)
        fixed = [
            c
            for c, o in enumerate(self.objectives)
            if in_slate[c] and not o.depends_on_slate and (o.at_least is not None or o.at_most is not None)
        ]
        guard, reach = None, None
        can = view.open if open_ is None else open_
        if fixed:
            items = (
                torch.arange(view.relevance.shape[1], device=device).expand(rows, -1)
                if view.items is None
                else view.items
            )
            wide = view.value[fixed].expand(-1, rows, -1)
            guard, reach = find_witness(wide, items, can, floor[:, fixed], cap[:, fixed], self.slots, fixed)
            # What no slate can give is not asked for: a price would chase it in vain.
            for g, c in enumerate(fixed):
                for p in [p for p, of in enumerate(column) if of == c]:
                    target[:, p] = guard.floor[:, g] if sign[p] > 0 else guard.cap[:, g]
        onto = torch.zeros(len(column), len(self.objectives), dtype=torch.float64, device=device)
        onto[range(len(column)), column] = 1
        promises = Promises(tuple(column), sign, onto, share, rate, torch.full_like(rate, torch.inf))
        keep = guard if settings.guard else None
        problem = Problem(
            self.slots, self.scale, value, moving, eligible, floor, cap, promises,
            settings.guard, keep, settings.combine, can.sum(1).clamp_max(self.slots),
            min(self.slots, can.shape[1]), settings.pace, settings.bonus,
        )  # fmt: skip
        if moving:
            first = primal_dual.start(problem, torch.zeros_like(rate))
            view = view._replace(value=primal_dual.value_now(problem, first))
        initial = self.first_prices(problem, target, view) if column else torch.zeros_like(rate)
        problem = problem._replace(promises=promises._replace(ceiling=self.ceiling(initial, view)))
        return problem, reach, primal_dual.start(problem, initial)

    def _targets(self, rows, device) -> tuple[Tensor, Tensor]:
        """(R, C) floors and caps in value units; -inf and inf where there are none."""
        floors, caps = [], []
        for o in self.objectives:
            floor, cap = o.targets(self.slots)
            floors.append(row_numbers(-np.inf if floor is None else floor, rows, f"`at_least` of objective '{o.name}'"))
            caps.append(row_numbers(np.inf if cap is None else cap, rows, f"`at_most` of objective '{o.name}'"))
        empty = torch.zeros(rows, 0, dtype=torch.float64)
        floor, cap = (torch.stack(x, 1) if x else empty for x in (floors, caps))
        if bool((floor > cap).any()):
            row, c = (floor > cap).nonzero()[0].tolist()
            raise ValueError(
                f"floor of objective '{self.objectives[c].name}' must not exceed its cap, got {floor[row, c]:g} and "
                f"{cap[row, c]:g} in row {row}. Lower the floor or raise the cap."
            )
        return floor.to(device), cap.to(device)

    def _beyond(self) -> dict[int, float]:
        """What a slate can hold at most of the objectives whose floor over traffic is more than that, by their place.

        Single slates are free of such floors, so nothing else would ever say that no slate can carry its part.
        """
        if "beyond" not in self._kept:
            found = {}
            for c, o in enumerate(self.objectives):
                floor, _ = o.targets(self.slots)
                if o.in_traffic and floor is not None and isinstance(o.value, Tensor) and o.value.dim() == 1:
                    most = float(o.value.double().topk(min(self.slots, len(o.value))).values.sum())
                    found |= {c: most} if most < floor * (1 - TOLERANCE) else {}
            self._kept["beyond"] = found
        return self._kept["beyond"]

    def _promised(self, settings, floor, cap, rows, device):
        """Column, sign, target and rate of everything that has a price."""
        column, sign, target, rate = [], [], [], []
        for c, o in enumerate(self.objectives):
            if settings.priced == "objectives":
                sides = [-1.0 if o.at_least is None and o.at_most is not None else 1.0]  # less is wanted of a mere cap
            elif settings.priced == "targets":
                sides = [1.0] * (o.at_least is not None) + [-1.0] * (o.at_most is not None)
            else:
                sides = []
            for side in sides:
                column.append(c)
                sign.append(side)
                target.append((floor if side > 0 else cap)[:, c])
                speed = settings.rate if o.rate is None else o.rate
                moves = o.in_slate and settings.priced == "targets"
                rate.append(row_numbers(speed if moves else 0.0, rows, f"`rate` of objective '{o.name}'").to(device))
        empty = torch.zeros(rows, 0, dtype=torch.float64, device=device)
        sign = torch.tensor(sign, dtype=torch.float64, device=device)
        return (
            column,
            sign,
            torch.stack(target, 1).clone() if target else empty,
            torch.stack(rate, 1) if rate else empty,
        )

    def _pack(self, problem: Problem, reach: Reach | None, state: State, steps: Steps) -> Slate:
        for _, value in problem.moving:
            cast(SlateValue, value).complain()
        rows, count = state.gained.shape
        kept = (state.gained >= problem.floor - slack_of(problem.floor)) & (
            state.gained <= problem.cap + slack_of(problem.cap)
        )
        met = kept.all(1) & ((steps.items >= 0).sum(1) >= problem.room)
        status = torch.full_like(state.count, Status.SHORT)
        reachable = torch.full_like(state.gained, torch.nan)
        if reach is not None:
            status = status.masked_fill(~reach.feasible, Status.IMPOSSIBLE)
            fixed = [c for c, o in enumerate(self.objectives) if not o.depends_on_slate and o.in_slate]
            fixed = [
                c for c in fixed if self.objectives[c].at_least is not None or self.objectives[c].at_most is not None
            ]
            reachable[:, fixed] = reach.reachable
        status = status.masked_fill(met, Status.MET)
        for c, most in self._beyond().items():
            status, reachable[:, c] = torch.full_like(status, Status.IMPOSSIBLE), most
        price = primal_dual.dual(problem, state)
        first = {}  # an objective's floor comes before its cap
        for p, c in enumerate(problem.promises.column):
            first.setdefault(c, p)
        dual = (
            torch.stack([price[:, first[c]] if c in first else price.new_zeros(rows) for c in range(count)], 1)
            if count
            else state.gained
        )
        story = None
        if steps.story is not None:
            caps_only = [c in first and problem.promises.sign[first[c]] < 0 for c in range(count)]
            turn = torch.tensor([-1.0 if x else 1.0 for x in caps_only], dtype=torch.float64, device=price.device)
            target = torch.where(torch.isfinite(problem.floor), problem.floor, problem.cap)
            slack = (target[:, None] - steps.story.gained).nan_to_num(posinf=torch.nan)
            story = Trace(steps.story.price * turn, slack, steps.story.plain, steps.story.cost)
        return self.served(
            Slate(steps.items, steps.relevance, state.gained, dual, status.to(torch.int8), reachable, story)
        )


def _shard_of(model) -> Shard | None:
    shard = getattr(model, "shard", None)
    return shard if isinstance(shard, Shard) else None  # a model may call anything else its shard


def _widened(slate: Slate, slots: int) -> Slate:
    """The slate with empty slots at the end, so that it has as many as were asked for."""
    more = slots - slate.items.shape[1]
    if more <= 0:
        return slate

    def empty(x: Tensor, filler: float = torch.nan) -> Tensor:
        return torch.cat([x, x.new_full((len(x), more, *x.shape[2:]), filler)], 1)

    story = slate.trace and replace(
        slate.trace,
        dual=empty(slate.trace.dual),
        slack=empty(slate.trace.slack),
        plain=empty(slate.trace.plain, -1),
        cost=empty(slate.trace.cost),
    )
    return replace(slate, items=empty(slate.items, -1), relevance=empty(slate.relevance), trace=story)


class _Now:
    """The model's state and scores as the slate stands, and whether all scores so far were finite."""

    def __init__(self, state, logits, finite):
        self.state, self.logits, self.finite = state, logits, finite


def _best_of_groups(logits, groups, depth, open_):
    """Logits, item numbers and values of each group's `depth` best open items."""
    best, items, member = grouped_topk(logits, groups, depth, open_)
    return best, items, groups.level.T[:, member]


def _within(value, eligible):
    """A slate-dependent value that looks ahead is told which items a row may have."""
    return value.within(eligible) if eligible is not None and hasattr(value, "within") else value


def _all(eligible, like):
    return torch.ones(like.shape, dtype=torch.bool, device=like.device) if eligible is None else eligible


def _renamed(steps: Steps, items: Tensor | None) -> Steps:
    """The steps with columns turned into item numbers."""
    if items is None:
        return steps

    def name(columns: Tensor) -> Tensor:
        return items.gather(1, columns.clamp_min(0)).where(columns >= 0, -1)

    story = steps.story and steps.story._replace(plain=name(steps.story.plain))
    return steps._replace(items=name(steps.items), story=story)
