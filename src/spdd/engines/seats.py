"""Which row of an engine's batch holds which slate: seats that are taken, moved, swapped and left while a server runs.

An engine that batches continuously keeps its requests in numbered rows, changes them between steps, and says so. Here a seat
is one of them. All seats of one menu stand in one pool of rows, whatever their policies, so a step costs one advance and one
score for all. Seats move by name alone; a pool is laid out anew only when somebody came or left. No engine is known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .menu import Menu
from .request import Asked
from .rows import advance, join, priced, take, to


@dataclass(eq=False)
class Seat:
    """One row of an engine's batch. asked: None where the request cannot be served, and is ended instead

    source: where its tokens come from; only whoever gave it looks into it.  stops: tokens that end the request
    seen:   how many of its tokens its state holds.  at: its line in the pool, -1 while it has none
    """

    asked: Asked | None
    source: Any = None
    stops: tuple[int, ...] = ()
    seen: int = 0
    at: int = -1


@dataclass(eq=False)
class Pool:
    """The rows of all seats of one menu. lines: the seat of each row"""

    menu: Menu
    lines: list[Seat] = field(default_factory=list)
    rows: Any = None  # Rows, once there are lines


class Seats:
    """What is changed in place, because an engine demands it. device: where states are kept, None for numpy on the CPU"""

    def __init__(self, device: Any = None):
        self.device = device
        self.taken: dict[int, Seat] = {}
        self.pools: dict[Menu, Pool] = {}

    def __bool__(self) -> bool:
        return bool(self.taken)

    def sit(self, row: int, seat: Seat | None) -> None:
        """Whoever was in this row leaves it."""
        self.leave(row)
        if seat is not None:
            self.taken[row] = seat

    def leave(self, row: int) -> None:
        seat = self.taken.pop(row, None)
        if seat is not None:
            seat.source = None  # an engine's buffers are not kept alive

    def move(self, source: int, target: int) -> None:
        """What was in `source` goes to `target`, or nothing does."""
        self.leave(target)
        if source in self.taken:
            self.taken[target] = self.taken.pop(source)

    def swap(self, one: int, other: int) -> None:
        seats = self.taken.pop(one, None), self.taken.pop(other, None)
        for row, seat in zip((other, one), seats, strict=True):
            if seat is not None:
                self.taken[row] = seat

    def price(self, logits: Tensor, lines: Mapping[int, int], unseen: Callable[[list[Seat]], Any]) -> list[Seat]:
        """Changes the logits of all seats of this step, in place; returns those that had to be given up just now.

        lines:  the line of the logits of each row that is part of this step
        unseen: tokens (n, T) that these n seats wrote since, -1 for none, and which seats (n,) are still behind
        """
        here: dict[Menu, list[tuple[int, Seat]]] = {}
        for row, seat in self.taken.items():
            if row in lines and seat.asked is not None:
                here.setdefault(seat.asked.menu, []).append((lines[row], seat))
        lost = []
        for menu, group in here.items():
            pool = self._pool(menu)
            seats = [seat for _, seat in group]
            tokens, behind = unseen(seats)
            pool.rows = rows = advance(menu, pool.rows, self._spread(pool, seats, tokens))
            lost += [seat for seat, late in zip(seats, behind, strict=True) if late]
            index = torch.tensor([line for line, _ in group], device=logits.device)
            if [seat.at for seat in seats] != list(range(len(pool.lines))):
                rows = take(rows, np.array([seat.at for seat in seats]))
            logits.index_copy_(0, index, priced(menu, rows, logits.index_select(0, index), in_place=True))
        for seat in lost:
            seat.asked = None
        for row, seat in self.taken.items():
            if row in lines and seat.asked is None:
                _end(logits, lines[row], seat.stops)
        self._sweep()
        return lost

    # ---- parts --------------------------------------------------------------------------------------------------

    def _pool(self, menu: Menu) -> Pool:
        """The menu's pool, with a line for each of its seats and for nobody else."""
        pool = self.pools.setdefault(menu, Pool(menu))
        seats = [seat for seat in self.taken.values() if seat.asked and seat.asked.menu is menu]
        if len(seats) == len(pool.lines) and all(seat.at >= 0 for seat in seats):
            return pool
        stay = [seat for seat in seats if seat.at >= 0]
        come = [seat for seat in seats if seat.at < 0]
        parts: list[Any] = []
        if stay:
            parts.append(to(take(pool.rows, np.array([seat.at for seat in stay])), None))
        parts += [seat.asked.begun for seat in come if seat.asked]
        pool.lines, pool.rows = stay + come, to(join(menu, parts), self.device)
        for at, seat in enumerate(pool.lines):
            seat.at = at
        return pool

    def _spread(self, pool: Pool, seats: list[Seat], tokens: Any) -> Any:
        """(P, T) the tokens of these seats where they stand in the pool; -1 for all others."""
        at = np.array([seat.at for seat in seats])
        if isinstance(tokens, Tensor):
            out = torch.full((len(pool.lines), tokens.shape[1]), -1, dtype=torch.int64, device=tokens.device)
            out[torch.from_numpy(at).to(tokens.device)] = tokens.long()
            return out
        out = np.full((len(pool.lines), tokens.shape[1]), -1)
        out[at] = tokens
        return out

    def _sweep(self) -> None:
        """Menus that nobody uses any more are let go."""
        if len(self.pools) > 1:
            used = {seat.asked.menu for seat in self.taken.values() if seat.asked}
            self.pools = {menu: pool for menu, pool in self.pools.items() if menu in used}


def unseen(lists: Sequence[Sequence[int]], seats: Sequence[Seat]) -> tuple[np.ndarray, list[bool]]:
    """(n, T) tokens that stand in these lists and that the seats have not seen, -1 behind the last, and who is behind.

    A list may end in placeholders, -1, for tokens that were sampled and are not here yet: nothing is read past the first,
    and its seat is behind. A list that got shorter is read from its start: call `again` for its seat first.
    """
    fresh = []
    for given, seat in zip(lists, seats, strict=True):
        new = list(given[seat.seen :])
        fresh.append(new[: new.index(-1)] if -1 in new else new)
        seat.seen += len(fresh[-1])
    tokens = np.full((len(seats), max(map(len, fresh), default=0)), -1)
    for line, new in zip(tokens, fresh, strict=True):
        line[: len(new)] = new
    return tokens, [len(given) > seat.seen for given, seat in zip(lists, seats, strict=True)]


def again(seat: Seat) -> None:
    """The seat begins anew, and reads its tokens from the first."""
    seat.seen, seat.at = 0, -1


def _end(logits: Tensor, line: int, stops: tuple[int, ...]) -> None:
    """Only tokens that end the request are left; without any, the logits stay as they are."""
    if stops:
        only = torch.full_like(logits[line], -torch.inf)
        only[list(stops)] = 0
        logits[line] = only
