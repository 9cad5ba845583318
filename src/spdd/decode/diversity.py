"""Rivals that look at the slate as a whole: MMR and DPP keep its items apart, Calibrated keeps its mix near a given one.

All weigh (1 - w) · relevance + w · something, which orders items as relevance + w / (1 - w) · something does; a
weight of 0 is plain greedy decoding. They promise nothing: objectives given to them are only counted. For a
promise use `spdd.coverage`, `spdd.calibration`, `spdd.at_most_per_group` or `spdd.spacing` with a guarding decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..values import Members, Placed, held, marginal, members, mix
from .decoder import Decoder, Settings

ALIKE = 1e-6  # an item with less left of itself than this, once those on the slate are taken off, is a copy of them
STEPS = 2.0**30  # similarities per unit: rounded, so that copies stay copies in whatever order a product is summed


@dataclass(eq=False, kw_only=True)
class Diverse(Decoder):
    """What these rivals share: a weight, and a bonus that depends on the slate so far."""

    objectives: Sequence = ()
    slots: int = 10
    weight: float = 0.3
    scale: str = "logit"
    trace: bool = False

    def __post_init__(self):
        super().__post_init__()
        weight = in_range(self.weight, "weight", 0, 1, "a number in [0, 1), 0 being relevance alone")
        self._price = weight / (1 - weight)  # of one unit of the bonus, in units of relevance

    def settings(self, rows):
        return Settings(bonus=self._bonus())

    def _values(self, logits):
        shape, rows, items = self._shape(), *logits.shape
        if shape[-1] != items or shape[:-1] not in ((), (rows,)):
            raise ValueError(
                f"{type(self).__name__} was given {shape[-1]} items{f' in {shape[0]} rows' * (len(shape) - 1)}, but the "
                f"scores have {items} items in {rows} rows. Give one line per item, in the order of the scores."
            )
        return super()._values(logits)[0], None  # the bonus differs from item to item, so values alone make no groups

    def _shape(self) -> tuple[int, ...]:
        """(M,), or (R, M) where rows have numbers of their own."""
        raise NotImplementedError

    def _bonus(self) -> Callable[[Tensor, int | None], Tensor]:
        """See `Problem.bonus`."""
        raise NotImplementedError


@dataclass(eq=False, kw_only=True)
class MMR(Diverse):
    """Maximal marginal relevance (Carbonell and Goldstein 1998): (1 - w) · relevance - w · similarity to the nearest item.

    embeddings: (M, D), or (R, M, D) for one table per row, of which the cosine is the similarity
    similarity: (M, M), instead of embeddings
    weight:     w in [0, 1)
    """

    embeddings: Any = field(default=None, kw_only=False, repr=False)
    similarity: Any = field(default=None, repr=False)

    def __post_init__(self):
        super().__post_init__()
        self._alike = Similarity(self.embeddings, self.similarity)

    def _shape(self):
        return self._alike.shape

    def _bonus(self):
        return Running(
            self._none, self._nearer, lambda nearest: -self._price * nearest.masked_fill(nearest < -1e300, 0)
        )

    def _none(self, chosen):
        return torch.full((len(chosen), self._alike.shape[-1]), -torch.inf, dtype=torch.float64, device=chosen.device)

    def _nearer(self, nearest, items):
        return torch.maximum(nearest, self._alike.to(items).masked_fill(items[:, None] < 0, -torch.inf))


@dataclass(eq=False, kw_only=True)
class DPP(Diverse):
    """Greedy MAP of a determinantal point process: (1 - w) · sum of relevance + w · log det of the slate's similarities.

    That is a DPP whose kernel is quality · similarity · quality with quality exp(relevance · (1 - w) / 2w), found item
    by item with the Cholesky factor growing along (Chen, Zhang and Zhou 2018). Once the slate spans all there is to
    span, the rest of its slots go by relevance.

    embeddings: (M, D), or (R, M, D) for one table per row, of which the cosine is the similarity; an item of zeros is like no other
    similarity: (M, M), instead of embeddings; positive semi-definite
    weight:     w in [0, 1)
    """

    embeddings: Any = field(default=None, kw_only=False, repr=False)
    similarity: Any = field(default=None, repr=False)

    def __post_init__(self):
        super().__post_init__()
        self._alike = Similarity(self.embeddings, self.similarity)

    def _shape(self):
        return self._alike.shape

    def _bonus(self):
        return Running(self._nothing, self._grown, lambda memory: self._price * memory[0].clamp_min(ALIKE).log())

    def _nothing(self, chosen):
        return self._alike.itself(chosen).expand(len(chosen), -1), ()

    def _grown(self, memory, items):
        """memory: (R, M) what of each item the slate does not span, and a line of the factor (R, M) per item placed."""
        left, factor = memory
        place = items.clamp_min(0)[:, None]
        line = self._alike.to(items)
        for earlier in factor:
            line = line - earlier.gather(1, place) * earlier
        own = left.gather(1, place)
        line = (line / own.clamp_min(ALIKE).sqrt()).masked_fill((own < ALIKE) | (items[:, None] < 0), 0)
        return left - line * line, (*factor, line)


@dataclass(eq=False, kw_only=True)
class Calibrated(Diverse):
    """Calibrated recommendations (Steck 2018): (1 - w) · sum of relevance - w · KL(wanted || the slate's mix).

    The mix is that of the items placed, the one being weighed among them; an item of several categories is split
    among them in proportion to its line of the table.

    table:  (M, T), or (R, M, T) for one table per row: how much of each category an item has, not negative
    wanted: (T,), or (R, T) for one taste per row: the mix, brought to a sum of 1
    weight: w in [0, 1)
    smooth: part of `wanted` blended into the slate's mix, in (0, 1), so that a category not there yet is not infinitely bad
    """

    table: Any = field(kw_only=False, repr=False)
    wanted: Any = field(kw_only=False, repr=False)
    smooth: float = 0.01

    def __post_init__(self):
        super().__post_init__()
        in_range(self.smooth, "smooth", 1e-12, 1, "a number above 0 and below 1")
        parts = members(self.table, "table", split=True)
        self._placed = Placed(*parts, mix(self.wanted, parts.table))

    def _shape(self):
        *rows, items, _ = self._placed.first[0].shape
        tastes = len(self._placed.first[-1])
        return (*(rows or [tastes] * (tastes > 1)), items)

    def _bonus(self):
        return self._nearness

    def _nearness(self, chosen, filled=None):
        *parts, wanted = self._placed.on(chosen)
        parts = Members(*parts)
        have, size = held(parts, chosen), (chosen >= 0).sum(1, keepdim=True) + 1

        def log_mix(x, look):  # wanted · log of the mix; -KL is the sum over categories, less what is the same for all
            want = look(wanted)
            return torch.xlogy(want, (1 - self.smooth) * x / size + self.smooth * want)

        without = log_mix(have, lambda p: p).sum(1, keepdim=True) - torch.xlogy(wanted, wanted).sum(1, keepdim=True)
        return self._price * (without + marginal(parts, have, log_mix))


# ---- parts ----------------------------------------------------------------------------------------------------


class Similarity:
    """How alike items are: cosines of embeddings, or given numbers."""

    def __init__(self, embeddings: Any, similarity: Any):
        if (embeddings is None) == (similarity is None):
            raise ValueError(
                f"give either `embeddings` (items, width) or `similarity` (items, items), got {'neither' if similarity is None else 'both'}."
            )
        self.given = similarity is not None
        name = "similarity" if self.given else "embeddings"
        numbers = _matrix(similarity if self.given else embeddings, name, (2,) if self.given else (2, 3))
        if self.given:
            if numbers.shape[0] != numbers.shape[1] or not torch.allclose(numbers, numbers.T):
                raise ValueError(
                    f"`similarity` must be symmetric, one line and one column per item, got shape {tuple(numbers.shape)}"
                    f"{' but not symmetric' * (numbers.shape[0] == numbers.shape[1])}. "
                    "Vectors of items go into `embeddings`."
                )
            own = numbers.diagonal()
        else:
            numbers = numbers / numbers.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(numbers.dtype).tiny)
            own = torch.ones_like(numbers[..., 0])
        self.placed = Placed(numbers, own)

    @property
    def shape(self) -> tuple[int, ...]:
        """(M,), or (R, M) where rows have embeddings of their own."""
        return tuple(self.placed.first[1].shape)

    def to(self, items: Tensor) -> Tensor:
        """(R, M) of every item to each row's item. items: (R,)"""
        numbers, _ = self.placed.on(items)
        place = items.clamp_min(0)
        if numbers.dim() == 3:
            own = numbers[torch.arange(len(items), device=items.device), place]
            numbers = (numbers @ own[:, :, None])[:, :, 0]
        else:
            numbers = numbers[place] if self.given else numbers[place] @ numbers.T
        return (numbers * STEPS).round() / STEPS

    def itself(self, like: Tensor) -> Tensor:
        """(M,) or (R, M) of every item to itself."""
        return self.placed.on(like)[1]


class Running:
    """A bonus built up item by item. Who fills slots one by one, and says so, pays one step a slot; others start afresh.

    Which of the two is not looked up in `chosen`: that would wait for the device in every slot.
    """

    def __init__(self, begin: Callable, add: Callable, read: Callable):
        self.begin, self.add, self.read = begin, add, read
        self.known = -1  # slots in `memory`
        self.memory: Any = None

    def __call__(self, chosen: Tensor, filled: int | None = None) -> Tensor:
        if filled is None:
            return self.read(self._grown(self.begin(chosen), chosen))
        if filled != self.known + 1 or filled == 0:
            self.memory, self.known = self.begin(chosen), 0
        self.memory = self._grown(self.memory, chosen[:, self.known : filled])
        self.known = filled
        return self.read(self.memory)

    def _grown(self, memory: Any, chosen: Tensor) -> Any:
        for items in chosen.unbind(1):  # empty slots add nothing
            memory = self.add(memory, items)
        return memory


# ---- checks ---------------------------------------------------------------------------------------------------


def in_range(given: Any, name: str, low: float, high: float, rule: str) -> float:
    """A number of at least `low` and below `high`."""
    if isinstance(given, bool) or not isinstance(given, int | float | np.number) or not low <= given < high:
        raise ValueError(f"`{name}` must be {rule}, got {given!r}.")
    return float(given)


def _matrix(given: Any, name: str, dims: tuple[int, ...]) -> Tensor:
    try:
        numbers = given.detach() if isinstance(given, Tensor) else torch.as_tensor(np.asarray(given))
        numbers = numbers.to(torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"`{name}` must be a matrix of numbers, got {type(given).__name__} ({error}).") from None
    if numbers.dim() not in dims or 0 in numbers.shape:
        raise ValueError(f"`{name}` must be a matrix with one line per item, got shape {tuple(numbers.shape)}.")
    if not bool(torch.isfinite(numbers).all()):
        row = int((~torch.isfinite(numbers)).any(1).nonzero()[0, 0])
        raise ValueError(f"`{name}` must be finite, got {numbers[row].tolist()[:5]}... for item {row}.")
    return numbers
