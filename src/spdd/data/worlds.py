"""Tiny autoregressive worlds, to see decoders and theory at work where the truth can be computed.

Each is a model: `start(histories) -> state`, `logits(state) -> (R, M)`, `advance(state, items) -> state`, and has
`.value`, a 0/1 vector (M,) to try an objective with. Numbers are float64 and made by hashing seed, history and step,
not drawn from a stream: a row's world is the same in whatever batch and order it comes.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch


@dataclass(frozen=True)
class Checkerboard:
    """A world whose answer is seen by eye: the other colour wins, then the lowest index.

    Even items are black, odd ones white (value 1). The logit of item j is `items - j` if its colour differs from the
    last item's, `-j` if not; before the first item both colours are welcome. So, with 12 items, 4 slots:

    - greedy takes 0 1 2 3, worth 4 * 12 - 6 = 42, half of it white;
    - a floor of 2 white items costs nothing;
    - a floor of 3 is met best by a slate of 0 1 3 5 that *starts white*, as in 1 0 3 5: one pair of equal neighbours,
      3 * 12 - 9 = 27. Who starts with 0 and repairs later gets 0 1 3 5: 2 * 12 - 9 = 15;
    - a floor of 4 leaves 1 3 5 7, worth 12 - 16 = -4.

    histories: (R, L) items; the last one sets the colour, (R, 0) is a fresh start.

    >>> world = Checkerboard()
    >>> state = world.advance(world.start(torch.empty(1, 0)), torch.tensor([0]))
    >>> world.logits(state)[0, :4].tolist()
    [0.0, 11.0, -2.0, 9.0]
    """

    items: int = 12

    @property
    def value(self) -> torch.Tensor:
        return self._index % 2

    def start(self, histories) -> torch.Tensor:
        """The colour last seen, (R,): 0 black, 1 white, -1 none yet."""
        histories = torch.as_tensor(histories)
        if histories.ndim == 2 and histories.shape[1] == 0:
            return torch.full((len(histories),), -1)
        return (histories[:, -1] if histories.ndim == 2 else histories).long() % 2

    def logits(self, state) -> torch.Tensor:
        return self.items * (self.value != state[:, None]) - self._index

    def advance(self, state, items) -> torch.Tensor:
        return items % 2

    @property
    def _index(self):
        return torch.arange(self.items, dtype=torch.float64)


class Scores(NamedTuple):
    """Where a row of a Gaussian world stands."""

    key: torch.Tensor  # (R,) int64, names the draws of the next step
    scores: torch.Tensor  # (R, M)


@dataclass(frozen=True)
class GaussianWorld:
    """A world that satisfies the paper's Assumption 1 to the letter: scores take independent Gaussian steps.

        score_1(j) ~ U(0, 1),    score_{k+1}(j) = score_k(j) + sigma * N(0, 1)

    One draw per row, slot and item, the same whatever was chosen. Scores are never clipped.
    histories: (R,) or (R, L) integers; each distinct one has its own draws.

    >>> world = GaussianWorld(items=3, sigma=0.1, seed=1)
    >>> both, one = world.start(torch.tensor([7, 8])), world.start(torch.tensor([8]))
    >>> torch.equal(world.logits(both)[1:], world.logits(one))
    True
    """

    items: int = 12
    sigma: float = 0.1
    seed: int = 0

    @property
    def value(self) -> torch.Tensor:
        """Every third item."""
        return (torch.arange(self.items) % 3 == 2).double()

    def start(self, histories) -> Scores:
        key = _keys(histories, self.seed)
        return Scores(_fold(key, 1), _uniform(key, self.items))

    def logits(self, state) -> torch.Tensor:
        return state.scores

    def advance(self, state, items) -> Scores:
        return self._step(state, torch.zeros_like(items))

    def _step(self, state, mark):
        key = _fold(state.key, mark)
        return Scores(key, state.scores + self.sigma * _normal(key, self.items))


class PathWorld(GaussianWorld):
    """A `GaussianWorld` whose steps are drawn afresh for every prefix.

    Each path satisfies Assumption 1, but there are as many independent draws as there are prefixes, not slots x items:
    the union bound in the paper's regret proof does not cover them, and the best slate can look for lucky paths.
    """

    def advance(self, state, items) -> Scores:
        return self._step(state, items + 1)


@dataclass(frozen=True)
class MoodWorld:
    """A world that breaks Assumption 1, as real models do: what is shown moves the mood.

        logit(j) = sharpness * <mood, vector_j>,    mood <- (1 - pull) mood + pull * vector_chosen

    Items that resemble the chosen one rise together, the others fall. The objective is a genre (the third of the items
    furthest to one side), so choosing one of its items makes the next one cheaper.
    histories: (R,) or (R, L) integers; each distinct one has its own first mood.
    """

    items: int = 12
    dim: int = 3
    pull: float = 0.3
    sharpness: float = 4.0
    seed: int = 0

    @cached_property
    def vectors(self) -> torch.Tensor:  # (M, D), length 1
        key = _fold(_keys(torch.arange(self.items), self.seed), 1)
        return torch.nn.functional.normalize(_normal(key, self.dim), dim=1)

    @cached_property
    def value(self) -> torch.Tensor:
        side = self.vectors[:, 0]
        return (side >= side.topk(max(1, self.items // 3)).values[-1]).double()

    def start(self, histories) -> torch.Tensor:
        """The first mood, (R, D), length 1."""
        return torch.nn.functional.normalize(_normal(_keys(histories, self.seed), self.dim), dim=1)

    def logits(self, state) -> torch.Tensor:
        # Added one dimension at a time: a matrix product may round differently in batches of different size.
        parts = [state[:, d, None] * self.vectors[:, d] for d in range(self.dim)]
        return self.sharpness * sum(parts, torch.zeros(()))

    def advance(self, state, items) -> torch.Tensor:
        return (1 - self.pull) * state + self.pull * self.vectors[items]


def _keys(histories, seed):
    """One int64 key per history (R,), from the seed and everything in it."""
    histories = torch.as_tensor(histories).long()
    histories = histories[:, None] if histories.ndim == 1 else histories  # (R, L)
    key = _fold(torch.zeros(len(histories), dtype=torch.long), seed)
    for column in histories.cpu().unbind(1):
        key = _fold(key, column)
    return key


def _uniform(key, count):
    """U(0, 1) float64, ends left out: (R, count), a pure function of the keys (R,)."""
    return (_shift(_fold(key[:, None], torch.arange(count)), 12).double() + 0.5) / 2.0**52


def _normal(key, count):
    return torch.special.ndtri(_uniform(key, count))


def _fold(key, number):
    """A new key from a key and a number: one round of splitmix64 (int64 arithmetic wraps)."""
    z = key + (torch.as_tensor(number) + 1) * -0x61C8864680B583EB
    z = (z ^ _shift(z, 30)) * -0x40A7B892E31B1A47
    z = (z ^ _shift(z, 27)) * -0x6B2FB644ECCEEE15
    return z ^ _shift(z, 31)


def _shift(z, bits):
    """Right shift without carrying the sign along."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
