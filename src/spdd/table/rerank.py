"""Slates for every user of a table: chunk by chunk, each padded to a matrix, decoded, and written as rows.

Nothing loops over users. What is known of the whole comes back as a `Summary`, which also says what the
objectives cost: the same candidates are decoded greedily, on the same scale, for comparison.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch

import spdd

from ..objective import TOLERANCE
from ..policy_file import DECODERS, Kinds, Policy, decoder_class, one_hot
from .source import Source, chunks, providers_of
from .target import Target

ROWS = 100_000  # of the table, in a chunk
CELLS = 2_000_000  # of a padded matrix, counting each objective; longer lists make for fewer rows at a time

STATUS = np.array(["met", "short", "impossible"])


@dataclass
class Tally:
    """How one objective fared. asked: in words. gained: summed over slates. greedy: what plain slates gain."""

    name: str
    asked: str
    per: str
    gained: float = 0.0
    greedy: float = 0.0
    met: int = 0
    impossible: int = 0


@dataclass
class Exposed:
    """How providers fared. due: (P,) parts of all exposure.  slots, greedy: (P,) filled with their items, here and plainly"""

    due: np.ndarray
    slots: Any = 0
    greedy: Any = 0

    @property
    def least(self) -> tuple[float, float]:
        """Exposure of the worst-off over what it is due, and the same of plain slates."""
        ours, plain = (float((count / max(count.sum(), 1) / self.due).min()) for count in (self.slots, self.greedy))
        return ours, plain

    def count(self, slate, plain, providers: np.ndarray) -> None:
        """providers: (R, N) numbers from 0 on, -1 for none"""
        self.slots = self.slots + self._shown(slate.items, providers)
        self.greedy = self.greedy + self._shown(plain.items, providers)

    def _shown(self, items: np.ndarray, providers: np.ndarray) -> np.ndarray:
        whose = np.take_along_axis(providers, items.clip(min=0), 1)[items >= 0]
        return np.bincount(whose[whose >= 0], minlength=len(self.due))


@dataclass
class Summary:
    """What was served, and what it cost. relevance and greedy are summed over slates, on the decoder's scale."""

    scale: str
    slots: int
    objectives: list[Tally]
    rows: int = 0
    users: int = 0
    filled: int = 0
    few: int = 0  # users with fewer candidates than slots
    status: np.ndarray = field(default_factory=lambda: np.zeros(3, dtype=np.int64))  # met, short, impossible
    relevance: float = 0.0
    greedy: float = 0.0
    exposed: Exposed | None = None  # for a decoder that asks whose items are


class Grid(NamedTuple):
    """Some users of a chunk as a matrix. R users, N candidates of the longest.

    row:  (R, N) where each candidate stands in the chunk
    real: (R, N) False for padding
    """

    row: np.ndarray
    real: np.ndarray

    def fill(self, column: np.ndarray, empty: Any = 0) -> np.ndarray:
        """(R, N) the column's entries, `empty` in the padding."""
        return np.where(self.real, column[self.row], np.asarray(empty, dtype=column.dtype))


def needs(policy: Policy) -> dict[str, str]:
    """The columns a policy needs, by our own names for them: n: values, x: any finite numbers, l: labels, p: providers."""
    found = {}
    for o in policy.objectives:
        role = "n" if o.kind == "value" or getattr(o, "categories", ()) else "l"
        found |= {f"{role}:{c}": c for c in o.columns}
    if policy.kinds is not None:
        role = "n" if policy.kinds.wanted is not None else "x"
        own = {f"{role}:{c}": c for c in policy.kinds.categories}
        found |= own or {f"l:{policy.kinds.column}": policy.kinds.column}
    if policy.providers is not None:
        found[f"p:{policy.providers}"] = policy.providers
    return found


def rerank_table(
    policy: Policy,
    source: Source,
    target: Target,
    *,
    state: str | Path | None = None,
    rows: int = ROWS,
    progress: Callable[[int], None] = lambda rows: None,
) -> Summary:
    """Write a slate for every user of `source` to `target`.

    state:    a file with what the decoder has learnt: read if it is there, written when the slates are
    rows:     of the table that are decoded at a time, about; shared prices move after each such batch
    progress: told how many rows are done
    """
    about_items, fair, known = policy.kinds, None, None
    if policy.providers is not None:
        # Prices are the whole table's, so its providers must be known before the first chunk.
        known = providers_of(source, policy.providers)
        decoder = fair = policy.fair_to(known.to_list())
    else:
        decoder = policy.made(None if about_items is None else np.ones((1, max(1, len(about_items.names)))))
    save = None if state is None else _learner(decoder, Path(state))
    plain = spdd.Greedy(slots=policy.slots, scale=decoder.scale)
    summary = Summary(decoder.scale, policy.slots, [*map(tally_of, policy.objectives, decoder.objectives)])
    if fair is not None:
        summary.exposed = Exposed(np.array(fair.exposure.weight))
    check_output_names(source, policy)
    for chunk in chunks(source, rows, target.folder):
        _check_unique(chunk, source)
        columns = {column.name: column.to_numpy() for column in chunk.select(_matrices(policy))}
        if known is not None:
            columns["provider"] = _numbered(chunk[f"p:{policy.providers}"], known, source)
        parts, users = [], []
        with getattr(decoder, "one_batch", contextlib.nullcontext)():
            for some, grid in grids(chunk, _cells(policy, columns)):
                values = {o.name: _value(o, columns, grid) for o in policy.objectives}
                scores = grid.fill(columns["score"])
                if about_items is not None:
                    decoder = policy.made(_table(about_items, columns, grid))  # such decoders learn nothing
                if fair is not None:
                    fair.bind({}, providers=grid.fill(columns["provider"], -1))
                slate = decoder.bind(values).rerank(scores, exclude=~grid.real, padded=False)
                rival = plain.rerank(scores, exclude=~grid.real, padded=False)
                count(summary, decoder, slate, rival, grid.real)
                if summary.exposed is not None:
                    summary.exposed.count(slate, rival, grid.fill(columns["provider"], -1))
                parts.append(_rows(chunk, grid, slate, decoder, policy, source))
                users.append(np.repeat(some, (slate.items >= 0).sum(1)))
        whole = pl.concat(parts)
        target.add(whole if len(parts) == 1 else whole[np.argsort(np.concatenate(users), kind="stable")])
        progress(len(chunk))
    target.finish((lambda: None) if save is None else lambda: save(state))
    return summary


def check_output_names(source: Source, policy: Policy) -> None:
    """Every column of the output needs a name of its own."""
    names = output_names(source, policy)
    if len(set(names[:4])) < 4:
        raise ValueError(
            f"the columns of users, items and scores must differ, and none be 'slot', got {names[0]}, {names[2]} and {names[3]}."
        )
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"the output would have two columns called '{name}'. Give the objective another name: in a policy "
                "file, `name` is what it is called and `column` where its values are."
            )


def output_names(source: Source, policy: Policy) -> list[str]:
    names = [o.name for o in policy.objectives]
    duals = ["dual"] if len(names) == 1 else [f"dual {name}" for name in names]
    return [source.names["user"], "slot", source.names["item"], source.names["score"], *names, *duals, "status"]


# ---- a chunk as matrices --------------------------------------------------------------------------------------------


def grids(chunk: pl.DataFrame, cells: int) -> Iterator[tuple[np.ndarray, Grid]]:
    """The chunk's users, by number, and their grids, none with many more entries than `cells`.

    All in one where that fits; else users with lists of like length share a grid, so that little is padding.
    """
    new = (chunk["user"] != chunk["user"].shift(1)).fill_null(True).to_numpy()
    start = np.flatnonzero(new)
    length = np.diff(start, append=len(chunk))
    groups = [np.arange(len(start))]
    if len(start) * length.max() > cells:
        size = np.ceil(np.log2(length)).astype(np.int64)
        alike = [np.flatnonzero(size == bits) for bits in np.unique(size)]
        groups = [
            users[first : first + step]
            for users in alike
            for step in [max(1, cells // int(length[users].max()))]
            for first in range(0, len(users), step)
        ]
    for users in groups:
        place = np.arange(length[users].max())
        real = place < length[users, None]
        yield users, Grid(np.where(real, start[users, None] + place, 0), real)


def _kinds(policy: Policy) -> list[Kinds]:
    tables = [o.kinds for o in policy.objectives if hasattr(o, "kinds")]
    return tables if policy.kinds is None else [*tables, policy.kinds]


def _cells(policy: Policy, columns: Mapping[str, np.ndarray]) -> int:
    """How many entries a grid may have: fewer where an entry costs more memory."""
    wide = [len(kinds.names) or int(columns[f"l:{kinds.column}"].max()) + 1 for kinds in _kinds(policy)]
    return CELLS // (1 + len(policy.objectives) + sum(wide) + 2 * (policy.providers is not None))


def _matrices(policy: Policy) -> list[pl.Expr]:
    """The score, and what every value and table is made of, as columns of numbers."""
    found = {"score": pl.col("score")}
    for own, column in needs(policy).items():
        if own[0] == "p":  # told apart over the whole table: see `_numbered`
            continue
        if own[0] == "l":  # only a user's own candidates have to be told apart
            found[own] = (pl.col(own).rank("dense").over("user").cast(pl.Int64) - 1).fill_null(-1)
        else:
            found[own] = pl.col(own).cast(pl.Float64)
        for label in {label for kinds in _kinds(policy) if kinds.column == column for label in kinds.wanted or ()}:
            name = f"{own}={label}"
            found[name] = (pl.col(own) == label).fill_null(False).cast(pl.Float64).alias(name)
    return list(found.values())


def _numbered(labels: pl.Series, known: pl.Series, source: Source) -> np.ndarray:
    """(rows,) the place of each label among those `known`, -1 for none."""
    place = known.search_sorted(labels.fill_null("")).to_numpy().astype(np.int64)
    here = labels.is_not_null().to_numpy()
    if not (known[place.clip(max=len(known) - 1)] == labels).fill_null(True).all():
        raise ValueError(f"{source.name} has changed while it was read. Run again when nothing writes to it.")
    return np.where(here, place, -1)


def _value(o, columns: Mapping[str, np.ndarray], grid: Grid) -> Any:
    """What to bind objective `o` to for the users of this grid."""
    if hasattr(o, "kinds"):
        return o.of(_table(o.kinds, columns, grid))
    if o.kind == "value":
        return grid.fill(columns[f"n:{o.columns[0]}"])
    return o.of(grid.fill(columns[f"l:{o.column}"], -1))


def _table(kinds: Kinds, columns: Mapping[str, np.ndarray], grid: Grid) -> np.ndarray:
    """(R, N, T) how much of each category each candidate has."""
    names = [f"n:{c}" if f"n:{c}" in columns else f"x:{c}" for c in kinds.categories]
    names = names or [f"l:{kinds.column}={label}" for label in kinds.wanted or ()]
    if names:
        return np.stack([grid.fill(columns[name]) for name in names], -1)
    return one_hot(grid.fill(columns[f"l:{kinds.column}"], -1))


def _check_unique(chunk: pl.DataFrame, source: Source) -> None:
    if chunk.select(pl.struct("user", "item").n_unique()).item() == len(chunk):
        return
    first = chunk.filter(pl.struct("user", "item").is_duplicated()).row(0, named=True)
    raise ValueError(
        f"{source.name} must name an item once per user, got item {first['item']!r} more than once for user "
        f"{first['user']!r}. Keep one of the rows, the best scored say."
    )


# ---- slates as rows -------------------------------------------------------------------------------------------------


def _rows(chunk: pl.DataFrame, grid: Grid, slate, decoder, policy: Policy, source: Source) -> pl.DataFrame:
    """A row per filled slot, as the output has it."""
    user, slot = np.nonzero(slate.items >= 0)
    row = grid.row[user, slate.items[user, slot]]
    taken = chunk[row]
    columns = [taken["user"], pl.Series(slot + 1, dtype=pl.Int32), taken["item"], taken["score"]]
    for stated, objective in zip(policy.objectives, decoder.objectives, strict=True):
        if stated.kind == "value":
            columns.append(taken[f"n:{stated.columns[0]}"])
        else:
            columns.append(pl.Series(given(objective.value, slate.items, policy.slots)[user, slot]))
    columns += [pl.Series(slate.dual[user, c]) for c in range(slate.dual.shape[1])]
    columns.append(pl.Series(STATUS[slate.status[user]], dtype=pl.String))
    names = output_names(source, policy)
    return pl.DataFrame([column.alias(name) for column, name in zip(columns, names, strict=True)])


def given(value: Any, items: np.ndarray, slots: int | None = None) -> np.ndarray:
    """(R, K) what each item of a slate gave when it was placed.

    value: (N,), (R, N), or a function of the items before.  slots: of a slate; `items` may leave out the last, empty ones
    """
    found, place = np.zeros(items.shape), items.clip(min=0)
    if not callable(value):
        known = np.asarray(value, dtype=np.float64)
        found = known[place] if known.ndim == 1 else np.take_along_axis(known, place, 1)
    else:
        chosen = torch.from_numpy(items)
        value = value.for_slots(slots or items.shape[1]) if hasattr(value, "for_slots") else value
        for k in range(items.shape[1]):
            before = chosen.clone()
            before[:, k:] = -1
            found[:, k] = value(before).gather(1, chosen[:, k : k + 1].clamp_min(0))[:, 0].numpy()
    return np.where(items >= 0, found, 0.0)


# ---- the summary ----------------------------------------------------------------------------------------------------


def tally_of(stated, objective) -> Tally:
    floor, cap = objective.at_least, objective.at_most
    if stated.kind in ("per_group", "spacing"):
        asked = "no breach"
    elif floor is None and cap is None:
        asked = "nothing"
    elif cap is None:
        asked = f"at least {floor}"
    elif floor is None:
        asked = f"at most {cap}"
    else:
        asked = f"{floor} to {cap}"
    return Tally(objective.name, asked, objective.per)


def count(summary: Summary, decoder, slate, plain, real: np.ndarray) -> None:
    """Add a batch to the summary. real: (R, N) the candidates each row had"""
    filled = slate.items >= 0
    summary.rows += int(real.sum())
    summary.users += len(slate)
    summary.filled += int(filled.sum())
    summary.few += int((real.sum(1) < summary.slots).sum())
    summary.status += np.bincount(slate.status, minlength=3)
    summary.relevance += float(np.nansum(slate.relevance))
    summary.greedy += float(np.nansum(plain.relevance))
    for c, (tally, objective) in enumerate(zip(summary.objectives, decoder.objectives, strict=True)):
        gained, reachable = slate.gained[:, c], slate.reachable[:, c]
        floor, cap = (np.inf if t is None else t for t in objective.targets(summary.slots))
        floor = -floor if np.isinf(floor) else floor
        tally.gained += float(gained.sum())
        tally.greedy += float(given(objective.value, plain.items, summary.slots).sum())
        low, high = (t - TOLERANCE * abs(t) if np.isfinite(t) else t for t in (floor, -cap))
        tally.met += int(((gained >= low) & (-gained >= high)).sum())
        # The most that can be had of a floor, the least of a cap by itself, the nearest there is to both.
        tally.impossible += int(((reachable < low) | (-reachable < high)).sum())


def _learner(decoder, state: Path) -> Callable[[Any], None]:
    """How to save what the decoder learns, once what the file knows is in it. A file that could not be written is refused."""
    save = getattr(decoder, "save", None)
    if save is None:
        learners = [name for name in DECODERS if hasattr(decoder_class(name), "save")]
        raise ValueError(
            f"--state needs a decoder that learns ({', '.join(learners)}), {type(decoder).__name__} does not. Leave it out."
        )
    if state.is_dir():
        raise ValueError(f"state '{state}' is a folder. Name a file in it.")
    if not state.parent.is_dir():
        raise ValueError(f"the folder of state '{state}' does not exist. Make it first: mkdir -p '{state.parent}'.")
    if state.exists():
        decoder.load(state)
    return save
