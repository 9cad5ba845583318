"""Where rows stand, and what a host does with them: advance, score, take, join. Pure: what comes in stays as it was.

    rows = plan.begin(4)                        # four rows of one policy; `join` puts rows of several into one batch
    scores = priced(menu, rows, logits)         # (R, V) in, (R, V) out: -inf is illegal, the rest log p + payment
    rows = advance(menu, rows, tokens)          # (R,) the tokens written, or (R, T) to catch up; -1 is none

A state is nothing but a function of the tokens written since the prompt, so `advance(menu, begun, all tokens)` is the state
of any host that re-orders silently, calls twice or goes back. Rows are numpy arrays where numba does the work (CPU), and
tensors elsewhere (`to`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..kernels import tree as plain
from ..kernels.tree import FULL, LOST, RUNNING, Stand, Terms
from .menu import Menu

__all__ = [
    "FULL",
    "LOST",
    "RUNNING",
    "Asked",
    "Rows",
    "advance",
    "branches",
    "finished",
    "items",
    "join",
    "priced",
    "take",
    "to",
]

FAST = importlib.util.find_spec("numba") is not None


class Asked(NamedTuple):
    """What was asked, and whether it can be had. floor, cap: (R, C), -inf / inf for none.  feasible: (R,) bool

    reachable: (R, C) see `Slate.reachable`
    """

    floor: Any
    cap: Any
    feasible: Any
    reachable: Any


@dataclass(frozen=True, eq=False)
class Rows:
    """R rows: what each was promised, where it stands, what was asked. All arrays have R first."""

    terms: Terms
    stand: Stand
    asked: Asked

    def __len__(self) -> int:
        return len(self.stand.node)

    def map(self, function: Callable[[Any], Any]) -> Rows:
        """The rows with every array put through this."""
        return Rows(
            Terms(*map(function, self.terms)), Stand(*map(function, self.stand)), Asked(*map(function, self.asked))
        )


def advance(menu: Menu, rows: Rows, tokens: Any) -> Rows:
    """The rows after these tokens (R,) or (R, T) were written, one after the other; -1 is skipped."""
    if isinstance(rows.stand.node, Tensor):
        tree = _tree_on(menu, rows.stand.node.device)
        stand = rows.stand
        for column in torch.as_tensor(tokens, device=stand.node.device).reshape(len(rows), -1).unbind(1):
            stand = plain.advance(tree, rows.terms, stand, column)
        return replace(rows, stand=stand)
    written = _numpy(tokens).astype(np.int64).reshape(len(rows), -1)
    if not FAST:
        return to(advance(menu, to(rows, "cpu"), torch.from_numpy(written)), None)
    from ..kernels import tree_cpu

    stand = Stand(*(x.copy() for x in rows.stand))
    tree_cpu.advance(menu.tree, rows.terms, stand, np.ascontiguousarray(written))
    return replace(rows, stand=stand)


def priced(menu: Menu, rows: Rows, logits: Tensor, *, in_place: bool = False) -> Tensor:
    """(R, V) log p + payment of every token, -inf where a row may not write it; see `kernels.tree.scores`.

    logits:   (R, V), or anything that differs from them by a constant per row: log-probabilities give the same
    in_place: write over `logits` and return them, where a host wants that: half of the time goes into fresh memory
    """
    if logits.shape[0] != len(rows) or logits.shape[1] < menu.vocabulary:
        raise ValueError(
            f"logits must be ({len(rows)}, V) with V >= {menu.vocabulary}, a line for each row and a column for each token, "
            f"got {tuple(logits.shape)}."
        )
    if isinstance(rows.stand.node, Tensor):
        out = plain.scores(_tree_on(menu, logits.device), rows.terms, rows.stand, logits)
    elif not FAST:
        out = plain.scores(menu.tensors, *_tensors(rows), logits.cpu()).to(logits.device)
    else:
        from ..kernels import tree_scores_cpu

        given = _ready(logits)
        out = given if in_place else torch.empty_like(given)
        tree_scores_cpu.scores(menu.tree, rows.terms, rows.stand, given.numpy(), out.numpy())
    if in_place:
        return logits if out.data_ptr() == logits.data_ptr() else logits.copy_(out)
    return out.to(logits)


def branches(menu: Menu, rows: Rows, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Words, log p and payments of what each row may write next inside an item; see `kernels.tree.branches`."""
    if isinstance(rows.stand.node, Tensor):
        return plain.branches(_tree_on(menu, logits.device), rows.terms, rows.stand, logits)
    if not FAST:
        return plain.branches(menu.tensors, *_tensors(rows), logits.cpu())
    from ..kernels import tree_scores_cpu

    given = _ready(logits)
    shape = len(rows), tree_scores_cpu.widest(menu.tree, rows.stand)
    word, sure, paid = np.full(shape, -1), np.full(shape, -np.inf), np.zeros(shape)
    tree_scores_cpu.branches(menu.tree, rows.terms, rows.stand, given.numpy(), word, sure, paid)
    return torch.from_numpy(word), torch.from_numpy(sure), torch.from_numpy(paid)


def take(rows: Rows, index: Any) -> Rows:
    """The rows at these places, re-ordered or repeated."""
    index = torch.as_tensor(index) if isinstance(rows.stand.node, Tensor) else _numpy(index)
    return rows.map(lambda x: x[index])


def join(menu: Menu, parts: Sequence[Rows]) -> Rows:
    """One batch of several, one behind the other; rows of any policies of one menu."""
    if len(parts) == 1:
        return parts[0]
    return Rows(
        Terms(**_joined(menu, [x.terms for x in parts])),
        Stand(**_joined(menu, [x.stand for x in parts])),
        Asked(**_joined(menu, [x.asked for x in parts])),
    )


def finished(rows: Rows) -> Any:
    """(R,) bool: the slate is full, or nothing is left to put into it."""
    return rows.stand.over != RUNNING


def items(menu: Menu, rows: Rows) -> np.ndarray:
    """(R, K) the items chosen so far, in order; -1 where there is none yet."""
    chosen = _numpy(rows.stand.chosen)
    return np.where(chosen >= 0, menu.order[chosen], -1).astype(np.int64)


def to(rows: Rows, device: Any) -> Rows:
    """The rows as tensors on `device`, or as numpy arrays (None)."""
    if device is None:
        return rows.map(lambda x: np.ascontiguousarray(_numpy(x)))
    return rows.map(lambda x: torch.as_tensor(x).to(device))


# ---- parts --------------------------------------------------------------------------------------------------


def _ready(logits: Tensor) -> Tensor:
    """The logits where numba can read them."""
    given = logits.detach().cpu()
    return (given if given.dtype in (torch.float32, torch.float64) else given.float()).contiguous()


def _tensors(rows: Rows) -> tuple[Terms, Stand]:
    found = to(rows, "cpu")
    return found.terms, found.stand


def _tree_on(menu: Menu, device: torch.device):
    """The menu's tensors on a device, copied once."""
    if device.type == "cpu":
        return menu.tensors
    kept = menu.__dict__.setdefault("_on", {})
    if device not in kept:
        kept[device] = plain.Tree(*(x.to(device) if isinstance(x, Tensor) else x for x in menu.tensors))
    return kept[device]


def _numpy(x: Any) -> np.ndarray:
    return x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)


def _joined(menu: Menu, parts: Sequence[Any]) -> dict[str, np.ndarray]:
    """Each field of several records, one behind the other; narrow ones are padded with what stands for nothing."""
    empty = {"chosen": -1, "closed": len(menu), "witness": -1}
    fields = {}
    for name, columns in zip(parts[0]._fields, zip(*parts, strict=True), strict=True):
        wide = max((x.shape[1] for x in columns if x.ndim > 1), default=0)
        fields[name] = np.concatenate([_wider(x, wide, empty.get(name, 0)) for x in columns])
    return fields


def _wider(x: np.ndarray, width: int, fill: int) -> np.ndarray:
    if x.ndim == 1 or x.shape[1] == width:
        return x
    return np.pad(x, [(0, 0), (0, width - x.shape[1])] + [(0, 0)] * (x.ndim - 2), constant_values=fill)
