"""Multi-objective bandits: slates scored by a generalised Gini index whose weights are learnt from feedback.

An item's score is the Gini index of (relevance, value of each objective), all in [0, 1]: the criteria from
worst to best, times weights that never increase, so what an item is poorest at counts most. The arms of the
bandit are such weight vectors (Busa-Fekete et al. 2017; Mehrotra et al. 2020). One slate is one round: an arm
is drawn for it, and `learn` is told afterwards how it went. `BanditUCB` draws by upper confidence bounds,
`BanditTS` by Thompson sampling. Floors and caps are reported, never pursued.

With one objective of 0/1 values all arms serve the same slate: an item with value 1 has an index of at least w_2
plus w_1 times its relevance, one with value 0 of at most w_2. Arms differ for graded values, and for several 0/1
objectives once the items that have them all run out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..files import write_atomically
from ..slate import Slate
from .decoder import Decoder, Settings

# Part of the even weights mixed into every arm, so that relevance always decides between items of equal value.
EVEN = 1e-6

UNIT_SCALES = ("relative", "probability", "sigmoid")


@dataclass(frozen=True)
class Rounds:
    """What a bandit knows. One entry an arm; everything is plain numbers.

    drawn: slates drawn.  heard: slates whose reward is known.  reward: sum of those rewards
    calls: times it drew a batch or learnt from one, which with the seed fixes its random numbers
    """

    drawn: tuple[int, ...]
    heard: tuple[int, ...]
    reward: tuple[float, ...]
    calls: int = 0


@dataclass(eq=False)
class Bandit(Decoder):
    """What both bandits share.

    objectives: what makes an item good besides relevance; values are divided by the largest of any item, and an
                objective that has only a cap counts the other way round, as 1 less that
    scale:  relevance must lie in [0, 1] to be compared with values: "relative", "probability" or "sigmoid"
    arms:   (A, 1 + C) weight vectors, each non-negative, non-increasing, with sum 1; None for a grid
    seed:   of every random choice

    `slate.arm` says which weights a row was served with. `slate.dual` is w_1 / largest value: what one unit of
    the objective adds to an item's score where the objective is what the item is poorest at.
    """

    objectives: Sequence = ()
    slots: int = 10
    scale: str = "relative"
    arms: Any = None
    seed: int = 0
    trace: bool = False
    rounds: Rounds = field(init=False, repr=False)

    def __post_init__(self):
        super().__post_init__()
        if not self.objectives:
            raise ValueError(
                "a bandit needs at least one objective to weigh against relevance, got none. Use spdd.Greedy."
            )
        if self.scale not in UNIT_SCALES:
            raise ValueError(
                f"`scale` of a bandit must be one of {', '.join(UNIT_SCALES)}, got {self.scale!r}: the Gini index compares "
                "relevance with values, so both must lie in [0, 1]."
            )
        if isinstance(self.seed, bool) or not isinstance(self.seed, int | np.integer) or self.seed < 0:
            raise ValueError(f"`seed` must be a whole number of at least 0, got {self.seed!r}.")
        criteria = 1 + len(self.objectives)
        self.arms = default_arms(criteria) if self.arms is None else check_arms(self.arms, criteria)
        self.seed, count = int(self.seed), len(self.arms)
        self.rounds = Rounds((0,) * count, (0,) * count, (0.0,) * count)

    def learn(self, slate: Slate, reward: Any) -> None:
        """Take in how slates of this decoder went. reward: (R,) in [0, 1], from logged or simulated feedback.

        `gini` below turns several outcomes per slate (consumption, objective) into one reward. Never use the labels
        the same slates are tested on.
        """
        arm, reward = self._feedback(slate, reward)
        count = len(self.arms)
        heard = np.add(self.rounds.heard, np.bincount(arm, minlength=count))
        total = np.add(self.rounds.reward, np.bincount(arm, self._counted(reward), minlength=count))
        # Slates may have been drawn elsewhere (another process, before a reset): they count as drawn from now on.
        drawn = np.maximum(self.rounds.drawn, heard)
        self.rounds = Rounds(tuple(drawn.tolist()), tuple(heard.tolist()), tuple(total.tolist()), self.rounds.calls + 1)

    def save(self, path: str | Path) -> None:
        """Write what has been learnt to `path`, whole or not at all."""
        found = {"kind": "spdd bandit", "version": 1, **self._identity(), **asdict(self.rounds)}
        write_atomically(path, json.dumps(found, indent=2) + "\n")

    def load(self, path: str | Path) -> Bandit:
        """Go on from a saved state. Returns the decoder."""
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
            if (
                not isinstance(found, dict)
                or found.pop("kind", None) != "spdd bandit"
                or found.pop("version", None) != 1
            ):
                raise ValueError("it is not a bandit state")
            identity = {key: found.pop(key) for key in self._identity()}
            drawn, heard, reward = (tuple(found.pop(key)) for key in ("drawn", "heard", "reward"))
            rounds = Rounds(drawn=drawn, heard=heard, reward=reward, **found)
            _check_rounds(rounds, len(identity["arms"]))
        except KeyError as error:
            raise ValueError(f"bandit state '{path}' cannot be read: it has no {error}. Restore a good copy.") from None
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"bandit state '{path}' cannot be read: {error}. Start again without it, or restore a good copy."
            ) from None
        for key, own in self._identity().items():
            if identity[key] != own:
                raise ValueError(
                    f"bandit state '{path}' belongs to another bandit: its {key} is {identity[key]}, this decoder's is "
                    f"{own}. Load it into the decoder that saved it."
                )
        self.rounds = rounds
        return self

    # ---- what the machine asks -----------------------------------------------------------------------------

    def settings(self, rows):
        self._arm = self._draw(rows, np.random.default_rng([self.seed, self.rounds.calls]))
        weights = np.asarray(self.arms)[self._arm]
        self._weights = torch.from_numpy((1 - EVEN) * weights + EVEN / weights.shape[1])  # (R, 1 + C)
        return Settings("objectives", combine=_combine(self._weights))

    def first_prices(self, problem, target, view):
        largest = view.value.amax(2).T.expand(
            len(target), -1
        )  # (R, C); every value group is in sight of the first slot
        return (self._weights[:, :1].to(largest.device) / largest).masked_fill(largest == 0, 0)

    def served(self, slate):
        # Only now: a batch that failed half way was never drawn.
        drawn = np.add(self.rounds.drawn, np.bincount(self._arm, minlength=len(self.arms)))
        self.rounds = replace(self.rounds, drawn=tuple(drawn.tolist()), calls=self.rounds.calls + 1)
        return replace(slate, arm=torch.from_numpy(self._arm).to(slate.items.device))

    # ---- what tells the two apart --------------------------------------------------------------------------

    def _draw(self, rows: int, random: np.random.Generator) -> np.ndarray:
        """(R,) the arm of each row."""
        raise NotImplementedError

    def _counted(self, reward: np.ndarray) -> np.ndarray:
        """The rewards as they are added up."""
        return reward

    # ---- checks --------------------------------------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        return {
            "decoder": type(self).__name__,
            "objectives": [o.name for o in self.objectives],
            "arms": [list(a) for a in self.arms],
            "seed": self.seed,
        }

    def _feedback(self, slate, reward) -> tuple[np.ndarray, np.ndarray]:
        arm = getattr(slate, "arm", None)
        if arm is None:
            raise TypeError(
                "`slate` must be one a bandit drew (with `slate.arm`), got one without. Pass what `rerank` returned."
            )
        arm = np.asarray(arm.cpu() if isinstance(arm, Tensor) else arm)
        if arm.size and (arm.min() < 0 or arm.max() >= len(self.arms)):
            raise ValueError(
                f"`slate.arm` must lie in 0 to {len(self.arms) - 1}, got {arm.min()} to {arm.max()}: another bandit's."
            )
        try:
            reward = np.asarray(reward.cpu() if isinstance(reward, Tensor) else reward, dtype=np.float64)
        except (TypeError, ValueError):
            raise TypeError(f"`reward` must be numbers in [0, 1], one per row, got {reward!r}.") from None
        if reward.shape != arm.shape:
            raise ValueError(f"`reward` must hold one number per row: {len(arm)} rows, got shape {reward.shape}.")
        bad = ~((reward >= 0) & (reward <= 1))
        if bad.any():
            raise ValueError(
                f"`reward` must lie in [0, 1], got {reward[bad][0]:g} for row {bad.argmax()}. Divide by the largest reward "
                "there can be, e.g. clicks by slots."
            )
        return arm, reward


@dataclass(eq=False)
class BanditUCB(Bandit):
    """MB-UCB: each row gets the arm with the largest upper confidence bound, UCB1's mean + sqrt(exploration · ln t / n).

    n counts an arm's slates whether their reward is known yet or not, and grows within a batch, so that rows drawn
    together spread over the arms. t is the number of slates drawn once the batch is served, the same for all its
    rows. The mean is over rewards heard; an arm not heard of counts as the average arm. Which row of a batch gets
    which of the drawn arms is left to the seed, so that no arm always has the first rows.
    """

    exploration: float = 2.0

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.exploration, (bool, str)) or not 0 <= self.exploration < math.inf:
            raise ValueError(f"`exploration` must be a number, finite and not negative, got {self.exploration!r}.")

    def _draw(self, rows, random):
        drawn, heard, reward = (
            np.array(x, dtype=np.float64) for x in (self.rounds.drawn, self.rounds.heard, self.rounds.reward)
        )
        average = reward.sum() / heard.sum() if heard.sum() else 0.5
        mean = np.divide(reward, heard, out=np.full_like(reward, average), where=heard > 0)
        # Every arm's bound falls as its own pulls grow, so drawing row by row is taking the R largest of all (A, R).
        pulls = drawn[:, None] + np.arange(rows)
        with np.errstate(divide="ignore", invalid="ignore"):
            bonus = np.sqrt(self.exploration * math.log(max(drawn.sum() + rows, 1)) / pulls)
        bound = np.where(pulls == 0, np.inf, mean[:, None] + bonus)  # never tried comes first
        taken = np.argsort(-bound, axis=None, kind="stable")[:rows] // max(rows, 1)
        return random.permutation(taken)


@dataclass(eq=False)
class BanditTS(Bandit):
    """MB-TS: for each row a reward is imagined for every arm, from its Beta posterior, and the best imagined arm is taken.

    A reward between 0 and 1 is counted as a coin that lands on 1 with that chance, which keeps the guarantees of
    Beta-Bernoulli Thompson sampling for any rewards in [0, 1] (Agrawal and Goyal 2012). A Gaussian posterior would
    need a variance to be guessed.
    """

    def _draw(self, rows, random):
        heard, reward = np.array(self.rounds.heard), np.array(self.rounds.reward)
        return random.beta(1 + reward, 1 + heard - reward, size=(rows, len(self.arms))).argmax(1)

    def _counted(self, reward):
        coin = np.random.default_rng([self.seed, self.rounds.calls]).random(len(reward))
        return (coin < reward).astype(np.float64)


def gini(criteria: Sequence, weights: Sequence) -> Tensor:
    """The generalised Gini index of several criteria: the worst times the first weight, the next times the second, ...

    criteria: D arrays or tensors of one shape, larger is better.  weights: D numbers (or tensors) that never increase

    With outcomes per slate in [0, 1] it is a bandit's reward. Its weights then say what you want, the same for all arms:

    >>> consumed, new_consumed = torch.tensor([0.5, 0.2]), torch.tensor([0.1, 0.2])
    >>> gini([consumed, new_consumed], [0.75, 0.25])
    tensor([0.2000, 0.2000])
    """
    left = [torch.as_tensor(x) for x in criteria]
    total = torch.zeros_like(left[0])
    for weight in weights:
        lowest = left.pop()  # elementwise, after it has met all the others
        for i, other in enumerate(left):
            left[i], lowest = torch.maximum(lowest, other), torch.minimum(lowest, other)
        total = total + lowest * weight
    return total


def default_arms(criteria: int) -> tuple[tuple[float, ...], ...]:
    """A grid over all non-increasing weights with sum 1: for two criteria (0.5, 0.5), (0.6, 0.4) to (1, 0).

    Such weights are mixtures of "only the i worst, evenly", i = 1 to D. The grid mixes in fifths for two criteria;
    for more it holds these corners and the points half way between any two.
    """
    corners = [[1 / i] * i + [0.0] * (criteria - i) for i in range(criteria, 0, -1)]
    if criteria == 2:
        return tuple((0.5 + step / 10, 0.5 - step / 10) for step in range(6))
    pairs = [(i, j) for i in range(criteria) for j in range(i, criteria)]
    return tuple(tuple((np.add(corners[i], corners[j]) / 2).tolist()) for i, j in pairs)


def check_arms(given: Any, criteria: int) -> tuple[tuple[float, ...], ...]:
    try:
        arms = np.asarray(given.cpu() if isinstance(given, Tensor) else given, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"`arms` must be a matrix of numbers, one weight vector a row, got {given!r}.") from None
    if arms.ndim != 2 or arms.shape[1] != criteria or not len(arms):
        raise ValueError(
            f"`arms` must have shape (arms, {criteria}), a weight for each of relevance and {criteria - 1} "
            f"objective{'s' * (criteria > 2)}, got {arms.shape}."
        )
    wrong = ~((arms >= 0).all(1) & (np.diff(arms) <= 0).all(1) & (np.abs(arms.sum(1) - 1) <= 1e-6))
    if wrong.any():
        raise ValueError(
            f"`arms` must be non-negative, non-increasing and sum to 1 (the worst-off counts most), got "
            f"{arms[wrong][0].tolist()} as arm {wrong.argmax()}."
        )
    return tuple(tuple(a) for a in arms.tolist())


def _combine(weights: Tensor):
    """The score of `Settings.combine` for these weights, (R, 1 + C)."""

    def score(relevance: Tensor, value: Tensor, price: Tensor) -> Tensor:
        weight = weights.to(relevance.device)
        unit = price / weight[:, :1]  # 1 / largest value
        criteria = [relevance]
        for c, worth in enumerate(value):
            share = unit[:, c : c + 1] * worth
            criteria.append(torch.where(unit[:, c : c + 1] < 0, 1 + share, share).expand_as(relevance))
        return gini(criteria, list(weight.T[:, :, None]))

    return score


def _check_rounds(rounds: Rounds, arms: int) -> None:
    """A ValueError says what is impossible about them."""
    columns = (rounds.drawn, rounds.heard, rounds.reward)
    if {len(c) for c in columns} != {arms}:
        raise ValueError(f"it does not hold one entry for each of its {arms} arms")
    whole = (*rounds.drawn, *rounds.heard, rounds.calls)
    if any(type(x) is not int for x in whole) or any(not isinstance(x, (int, float)) for x in rounds.reward):
        raise ValueError("it holds something that is not a number")
    if any(not 0 <= r <= h <= d for d, h, r in zip(*columns, strict=True)) or rounds.calls < 0:
        raise ValueError("an arm has more reward than slates heard of, or more heard of than drawn")
