"""A policy made ready for a menu: everything that can be refused is refused here, before a token is generated.

A policy is a decoder, a policy file, or what a policy file says. It is begun for rows once it is known which items they may
not have; that finds out, row by row, whether what is promised can be kept (`Rows.asked.feasible`), and how.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..decode.decoder import Decoder
from ..decode.guard import slack_of
from ..decode.search import View
from ..decode.spdd import SPDD, Greedy, MustFill
from ..decode.weighted import EPR, WA
from ..kernels import tree as plain
from ..kernels.tree import CAP, FLOOR, FREE, SEVERAL, Stand, Terms
from ..relevance import LOG_SCALES
from ..slate import Slate, Status
from .menu import Menu
from .rows import FAST, Asked, Rows, _numpy, _tensors, items, to

NAMES = ("spdd", "must-fill", "greedy", "wa")  # of policy files
KINDS = {None: FREE, "floor": FLOOR, "cap": CAP, "several": SEVERAL}


@dataclass(frozen=True, eq=False)
class Plan:
    """Made by `Plan.of`. columns: the menu's column of each of the decoder's objectives."""

    menu: Menu
    decoder: Decoder
    columns: tuple[int, ...]

    @classmethod
    def of(cls, menu: Menu, policy: Any) -> Plan:
        """The plan of a policy: a decoder, the path of a policy file, or a mapping that says what one says.

        >>> from spdd.catalog import Catalog
        >>> menu = Menu.of(Catalog.of([[0, 1], [1, 0], [1, 1]]), first=2, columns={"new": [0, 1, 0]})
        >>> plan = Plan.of(menu, {"slots": 2, "objectives": [{"name": "new", "at_least": 1}]})
        >>> plan.begin(1).asked.feasible
        array([ True])
        """
        if isinstance(policy, Plan):
            if policy.menu is not menu:
                raise ValueError("the plan was made for another menu. Make it anew: Plan.of(menu, plan.decoder).")
            return policy
        decoder = decoder_of(policy)
        _check_decoder(decoder)
        columns = tuple(_column_of(menu, objective) for objective in decoder.objectives)
        plan = cls(menu, decoder, columns)
        _check_sides(plan)
        _check_reach(plan)
        return plan

    @property
    def slots(self) -> int:
        return self.decoder.slots

    @property
    def tokens(self) -> int:
        """How many tokens a slate takes, its end included."""
        return self.menu.length(self.slots) + (self.menu.end is not None)

    def begin(self, rows: int, exclude: Any = None) -> Rows:
        """Rows before their first token.

        exclude: items a row must not get: one list of item numbers per row (-1 pads), or (M,) bool for all rows
        """
        menu, decoder = self.menu, self.decoder
        closed = _closed(menu, rows, exclude, self.slots)
        place = self._candidates(closed.shape[1])  # (N,)
        value = torch.from_numpy(menu.tree.value[place][:, list(self.columns)].T.copy())[:, None]  # (C', 1, N)
        open_ = torch.from_numpy(_open(closed, place))
        like = torch.zeros(open_.shape, dtype=torch.float64)
        problem, reach, state = decoder._begin(value, None, View(like, value, open_, None))
        count, half = len(menu.columns), len(menu.columns)
        promises, guard = problem.promises, problem.guard
        pairs = {name: np.zeros((rows, 2 * half)) for name in ("initial", "share", "rate")}
        pairs["ceiling"] = np.full((rows, 2 * half), np.inf)
        for p, objective in enumerate(promises.column):
            at = self.columns[objective] + half * (float(promises.sign[p]) < 0)
            for name, found in (
                ("initial", state.initial),
                ("share", promises.share),
                ("rate", promises.rate),
                ("ceiling", promises.ceiling),
            ):
                pairs[name][:, at] = found[:, p].numpy()
        bounds = {name: np.full((rows, count), -np.inf) for name in ("floor", "least")}
        bounds |= {name: np.full((rows, count), np.inf) for name in ("cap", "most")}
        witness, gives = np.full((rows, 0), -1), np.zeros((rows, 0, count))
        column = 0
        if guard is not None:
            every = range(len(decoder.objectives))
            kept = every[guard.columns] if isinstance(guard.columns, slice) else guard.columns.tolist()
            for g, objective in enumerate(kept):
                column = self.columns[objective]
                for name, found in (
                    ("floor", guard.floor),
                    ("cap", guard.cap),
                    ("least", guard.low),
                    ("most", guard.high),
                ):
                    bounds[name][:, column] = found[:, g].numpy()
            named = guard.items.numpy()
            witness = np.where(named >= 0, place[named], -1)
            gives = menu.tree.value[witness] * (witness >= 0)[:, :, None]
        terms = Terms(
            slots=np.full(rows, self.slots), remaining=np.full(rows, problem.pace == "remaining"), **pairs,
            kind=np.full(rows, KINDS[guard.kind if guard else None]), column=np.full(rows, column), **bounds,
            witness=witness, gives=gives,
        )  # fmt: skip
        nothing = np.zeros(rows, np.int64)
        stand = Stand(
            node=nothing, place=nothing.copy(), over=nothing.copy(), count=nothing.copy(),
            chosen=np.full((rows, self.slots), -1), gained=np.zeros((rows, count)), excess=np.zeros((rows, 2 * half)),
            alive=witness >= 0, closed=closed, net=np.zeros((rows, count)),
            allowed=np.ones((rows, len(menu.tree.low)), bool), worth=np.zeros((rows, len(menu.tree.low))),
        )  # fmt: skip
        return _settled(menu, Rows(terms, stand, self._asked(problem, reach, rows)))

    def slate(self, rows: Rows, relevance: Any = None) -> Slate:
        """What the rows hold, as every decoder returns it. relevance: (R, K) of the chosen items, nan if not known"""
        rows = to(rows, None)
        columns, half = list(self.columns), len(self.menu.columns)
        chosen = items(self.menu, rows)[:, : self.slots]
        gained = rows.stand.gained[:, columns]
        floor, cap = rows.asked.floor[:, columns], rows.asked.cap[:, columns]
        near = (slack_of(torch.from_numpy(x)).numpy() for x in (floor, cap))
        met = ((gained >= floor - next(near)) & (gained <= cap + next(near))).all(1)
        status = np.where(met, Status.MET, np.where(rows.asked.feasible, Status.SHORT, Status.IMPOSSIBLE))
        terms, sign = rows.terms, np.repeat([1.0, -1.0], half)
        dual = np.minimum(terms.initial * np.exp(-terms.rate * rows.stand.excess * sign), terms.ceiling)
        capped = np.array([o.at_least is None and o.at_most is not None for o in self.decoder.objectives], bool)
        shown = np.where(capped, dual[:, half:][:, columns], dual[:, :half][:, columns]) if columns else gained
        if relevance is None:
            relevance = np.full(chosen.shape, np.nan)
        return Slate(chosen, _numpy(relevance), gained, shown, status.astype(np.int8), rows.asked.reachable[:, columns])

    # ---- parts --------------------------------------------------------------------------------------------

    def _candidates(self, closed: int) -> np.ndarray:
        """(N,) places among which a proof is looked for: as many of each class as can be needed, and the extremes."""
        kept = self.menu.__dict__.setdefault("_best", {})
        most = 1 << (self.slots + closed).bit_length()  # in steps, so that requests share what was found
        if (self.columns, most) in kept:
            return kept[self.columns, most]
        tree = self.menu.tree
        if len(tree.klass) <= 512:
            found = np.arange(len(tree.klass))
        else:
            order = np.argsort(tree.klass, kind="stable")
            size = np.bincount(tree.klass, minlength=len(tree.low))
            rank = np.arange(len(order)) - np.repeat(np.cumsum(size) - size, size)
            parts = [order[rank < most]]
            if not tree.exact:
                for c in self.columns:
                    ascending = np.argsort(tree.value[:, c], kind="stable")
                    parts += [ascending[:most], ascending[-most:]]
            found = np.unique(np.concatenate(parts))
        if len(kept) > 64:
            kept.clear()
        kept[self.columns, most] = found
        return found

    def _asked(self, problem, reach, rows: int) -> Asked:
        count = len(self.menu.columns)
        floor, cap = np.full((rows, count), -np.inf), np.full((rows, count), np.inf)
        reachable = np.full((rows, count), np.nan)
        floor[:, list(self.columns)], cap[:, list(self.columns)] = problem.floor.numpy(), problem.cap.numpy()
        if reach is None:
            return Asked(floor, cap, np.ones(rows, bool), reachable)
        bound = [
            c for c, o in enumerate(self.decoder.objectives) if o.in_slate and (o.at_least, o.at_most) != (None, None)
        ]
        reachable[:, [self.columns[c] for c in bound]] = reach.reachable.numpy()
        return Asked(floor, cap, reach.feasible.numpy(), reachable)


def prepare(menu: Menu, policies: Sequence[Any]) -> tuple[Menu, list[Plan]]:
    """The menu with the values that decoders bring themselves, and a plan for each policy."""
    decoders = [p if isinstance(p, Plan) else decoder_of(p) for p in policies]
    more: dict[str, Any] = {}
    for decoder in decoders:
        for objective in () if isinstance(decoder, Plan) else decoder.objectives:
            if isinstance(objective.value, torch.Tensor) and _match(menu, objective, more) is None:
                _fixed(menu, objective)
                name = objective.name
                while name in more or name in menu.columns:
                    name += "'"
                more[name] = objective.value
    if more:
        menu = _with(menu, more)
        decoders = [d.decoder if isinstance(d, Plan) else d for d in decoders]
    plans: dict[int, Plan] = {}
    for decoder in decoders:
        if id(decoder) not in plans:
            plans[id(decoder)] = Plan.of(menu, decoder)
    return menu, [plans[id(d)] for d in decoders]


def _with(menu: Menu, more: dict[str, Any]) -> Menu:
    """The menu with more columns; kept, so that calling again with the same values costs nothing."""
    kept = menu.__dict__.setdefault("_with", {})
    key = tuple((name, id(value)) for name, value in more.items())
    if key not in kept:
        if len(kept) >= 8:
            kept.clear()
        own = {name: menu.column(name) for name in menu.columns}
        kept[key] = menu.with_columns({**own, **more}), more  # with the values, whose ids are then nobody else's
    return kept[key][0]


def decoder_of(policy: Any) -> Decoder:
    """The decoder a policy stands for. Columns of a policy file stay names until a menu is there."""
    if isinstance(policy, Decoder):
        return policy
    from ..policy_file import Policy, policy_of, read_policy

    if isinstance(policy, str | Path):
        policy = read_policy(policy)
    elif isinstance(policy, Mapping):
        policy = policy_of(policy)
    if not isinstance(policy, Policy):
        raise TypeError(
            f"a policy must be a decoder, the path of a policy file or a mapping of its keys, got {type(policy).__name__}. "
            'Write e.g. spdd.SPDD([spdd.Objective("new", is_new, at_least=3)]) or "policy.toml".'
        )
    if policy.decoder_name not in NAMES:
        raise ValueError(
            f"inside an engine `decoder` must be one of {', '.join(NAMES)}, got '{policy.decoder_name}', which looks at "
            "scores of all items. Use decoder.generate with a model of your own."
        )
    for objective in policy.objectives:
        if objective.kind != "value":
            raise ValueError(_moving(objective.name))
    return policy.decoder()


# ---- checks ---------------------------------------------------------------------------------------------------


def _check_decoder(decoder: Decoder) -> None:
    if not isinstance(decoder, SPDD | Greedy | MustFill | WA) or isinstance(decoder, EPR):
        raise ValueError(
            f"inside an engine the decoder must be SPDD, MustFill, Greedy or WA, got {type(decoder).__name__}, which looks "
            "at scores of all items. Use decoder.generate with a model of your own."
        )
    if decoder.scale not in LOG_SCALES:
        raise ValueError(
            f"`scale` must be one of {', '.join(LOG_SCALES)} inside an engine, got {decoder.scale!r}: an item is spelled "
            "token by token there, and only logarithms add up along it."
        )
    if getattr(decoder, "start", None) == "warm":
        raise ValueError(
            "`start` must be a number or 'auto' inside an engine, got 'warm': nothing is scored yet before the first token."
        )
    if decoder.lift is not None:
        raise ValueError(
            f"`lift` must be left out inside an engine, got {decoder.lift:g}: items are written in the order they are chosen."
        )


def _column_of(menu: Menu, objective: Any) -> int:
    """The menu's column of an objective's values."""
    if objective.depends_on_slate:
        raise ValueError(_moving(objective.name))
    if isinstance(objective.value, str):
        if objective.value not in menu.columns:
            raise ValueError(
                f"objective '{objective.name}' needs the column '{objective.value}', which the menu does not have. There is: "
                f"{', '.join(menu.columns) or 'none'}. Build the menu with it: columns={{'{objective.value}': ...}}."
            )
        return menu.columns.index(objective.value)
    _fixed(menu, objective)
    found = _match(menu, objective, {})
    if found is None:
        raise ValueError(
            f"the menu has no column with the values of objective '{objective.name}'. There is: "
            f"{', '.join(menu.columns) or 'none'}. Build the menu with it: columns={{'{objective.name}': ...}}."
        )
    return menu.columns.index(found)


def _fixed(menu: Menu, objective: Any) -> None:
    if tuple(objective.value.shape) != (len(menu),):
        raise ValueError(
            f"`value` of objective '{objective.name}' must have shape ({len(menu)},), one number for each item of the catalog, "
            f"got {tuple(objective.value.shape)}."
        )


def _match(menu: Menu, objective: Any, more: Mapping[str, Any]) -> str | None:
    """The column, of the menu or of `more`, that holds the objective's values."""
    for name, given in more.items():
        if given is objective.value:
            return name
    if tuple(objective.value.shape) != (len(menu),):
        return None
    value = objective.value.detach().cpu().double().numpy()[menu.order]
    names = sorted(range(len(menu.columns)), key=lambda c: menu.columns[c] != objective.name)
    return next((menu.columns[c] for c in names if np.array_equal(menu.tree.value[:, c], value)), None)


def _check_sides(plan: Plan) -> None:
    objectives = plan.decoder.objectives
    for c, objective in enumerate(objectives):
        for other, earlier in enumerate(objectives[:c]):
            if plan.columns[c] == plan.columns[other]:
                raise ValueError(
                    f"objectives '{earlier.name}' and '{objective.name}' have the same values. Make them one, with a floor and "
                    "a cap."
                )


def _check_reach(plan: Plan) -> None:
    """Promises that no slate of the whole menu could keep are refused; what single rows cannot reach is a status."""
    decoder = plan.decoder
    personal = any(np.ndim(t) for o in decoder.objectives for t in (*o.targets(plan.slots), o.rate) if t is not None)
    if personal or isinstance(decoder, WA | Greedy):
        return
    asked = plan.begin(1).asked
    if asked.feasible[0]:
        return
    parts = []
    for c, o in zip(plan.columns, decoder.objectives, strict=True):
        if o.in_slate and (o.at_least, o.at_most) != (None, None):
            floor, cap, most = (float(x[0, c]) for x in (asked.floor, asked.cap, asked.reachable))
            wants = " and ".join(f"{w} {t:g}" for w, t in (("at least", floor), ("at most", cap)) if np.isfinite(t))
            reach = (
                f", where {most:g} is the {'most' if np.isfinite(floor) else 'least'} there can be"
                if most == most
                else ""
            )
            parts.append(f"'{o.name}' {wants}{reach}")
    raise ValueError(
        f"no slate of {plan.slots} items from this menu can keep what is asked: {'; '.join(parts)}. Lower a floor, raise a cap, or "
        "take more slots."
    )


def _moving(name: str) -> str:
    return (
        f"objective '{name}' has a value that depends on the slate, which an engine cannot price inside an item. Give it one "
        "number per item, or use decoder.generate with a model of your own."
    )


# ---- which items are closed -----------------------------------------------------------------------------------


def _closed(menu: Menu, rows: int, exclude: Any, slots: int) -> np.ndarray:
    """(R, E) places of excluded items, ascending, with room for as many as will be used."""
    count = len(menu)
    if exclude is None:
        return np.full((rows, slots), count)
    if getattr(exclude, "dtype", None) in (torch.bool, np.dtype(bool)):
        mask = _numpy(exclude)
        if mask.shape != (count,):
            raise ValueError(
                f"a mask in `exclude` must have shape ({count},), got {mask.shape}. Or give lists of items."
            )
        exclude = [np.flatnonzero(mask)] * rows
    if isinstance(exclude, str) or not hasattr(exclude, "__len__") or len(exclude) != rows:
        came = (
            repr(exclude) if isinstance(exclude, str) or not hasattr(exclude, "__len__") else f"{len(exclude)} entries"
        )
        raise ValueError(
            f"`exclude` must be one list of item numbers for each of {rows} rows, or a mask of items, got {came}."
        )
    lists = []
    for row in exclude:
        given = _numpy(row)
        if given.size and (given.ndim != 1 or given.dtype.kind not in "iu"):
            raise TypeError(f"`exclude` must hold lists of item numbers, got {given.dtype} of shape {given.shape}.")
        if given.size and (given.min() < -1 or given.max() >= count):
            raise ValueError(
                f"`exclude` must name items from 0 to {count - 1} (-1 pads short lists), got {given.min()} to {given.max()}."
            )
        lists.append(
            np.unique(menu.places[given[given >= 0].astype(np.int64)]) if given.size else given.astype(np.int64)
        )
    closed = np.full((rows, max((len(x) for x in lists), default=0) + slots), count)
    for line, found in zip(closed, lists, strict=True):
        line[: len(found)] = found
    return closed


def _open(closed: np.ndarray, place: np.ndarray) -> np.ndarray:
    """(R, N) whether each of these places is open to each row."""
    return np.stack([~np.isin(place, row) for row in closed]) if len(closed) else np.ones((0, len(place)), bool)


def _settled(menu: Menu, rows: Rows) -> Rows:
    if FAST:
        from ..kernels import tree_cpu

        tree_cpu.settle(menu.tree, rows.terms, rows.stand)
        return rows
    return to(replace(rows, stand=plain.settle(menu.tensors, *_tensors(rows))), None)
