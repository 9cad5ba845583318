"""Does a model keep the paper's Assumption 1, and how large is its sigma?

The assumption: from slot to slot every item's score takes an independent Gaussian step of one size per row. Judged from
traces of a model's scores while it is decoded; see `bounds.py` for what rests on it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Sigma(NamedTuple):
    """Size of a model's step-to-step score changes, per row (R,): sigma_x of Assumption 1."""

    plain: Tensor  # root mean square over slots and items
    robust: Tensor  # 1.4826 x median size: the same for Gaussian changes, smaller when a few are huge


def score_trace(model, histories, *, slots) -> Tensor:
    """Scores a model gives all items before each slot while it is decoded greedily: (R, K, M).

    model: `start`, `logits`, `advance`, as everywhere.
    """
    state = model.start(histories)
    trace = [model.logits(state)]
    used = torch.zeros_like(trace[0], dtype=torch.bool)
    for _ in range(slots - 1):
        items = trace[-1].masked_fill(used, -math.inf).argmax(1)
        used = used.scatter(1, items[:, None], True)
        state = model.advance(state, items)
        trace.append(model.logits(state))
    return torch.stack(trace, 1)


def estimate_sigma(scores) -> Sigma:
    """How much a score moves from slot to slot, per row. scores: (R, K, M), from `score_trace`.

    >>> estimate_sigma(torch.tensor([[[0.5, 0.5], [0.6, 0.4]]])).plain
    tensor([0.1000], dtype=torch.float64)
    """
    change = torch.as_tensor(scores).double().diff(dim=1).flatten(1)  # (R, (K-1) M)
    return Sigma(change.square().mean(1).sqrt(), 1.482602 * change.abs().median(1).values)


class Check(NamedTuple):
    """One thing Assumption 1 says."""

    name: str
    statistic: float  # standard normal or chi-square when the assumption holds
    p_value: float
    effect: float  # how far off, free of the sample size; 0 is perfect
    limit: float  # largest effect that is let pass
    holds: bool  # False when the p-value is below 0.005 *and* the effect above its limit


class AssumptionReport(NamedTuple):
    """Whether score changes look as Assumption 1 has them; print it for one sentence."""

    holds: bool
    sigma: float  # median over rows
    checks: tuple[Check, ...]

    def __str__(self):
        broken = [f"{c.name} (effect {c.effect:.2g}, limit {c.limit:.2g})" for c in self.checks if not c.holds]
        if broken:
            return f"Assumption 1 does not hold; sigma is about {self.sigma:.3g}. Broken: {', '.join(broken)}."
        return f"Nothing speaks against Assumption 1 ({len(self.checks)} checks); sigma is about {self.sigma:.3g}."


def check_assumption(scores) -> AssumptionReport:
    """Whether step-to-step changes are N(0, sigma_row), independent over items and slots.

    With many rows any test rejects any real model, so each check must be both significant and sizeable to fail:
    p-value below 0.005 and effect above its limit. Effects, for changes divided by their row's sigma:

    - "zero mean": root mean square of the items' mean changes, limit 0.1 sigma;
    - "normal": the larger of |skewness| and half the |excess kurtosis| (Jarque-Bera), limit 0.25;
    - "same variance over items", "... over slots": spread of the relative variance, limit 0.25;
    - "independent items": root mean square correlation between two items, limit 0.1;
    - "independent slots": |correlation| of an item's change with its next, limit 0.1.

    scores: (R, K, M), from `score_trace`.  At most 64 items, evenly spaced, are looked at.

    >>> noise = torch.randn(50, 5, 12, generator=torch.Generator().manual_seed(0))
    >>> print(check_assumption(noise.cumsum(1)))
    Nothing speaks against Assumption 1 (6 checks); sigma is about 0.972.
    """
    scores = torch.as_tensor(scores).double()
    if scores.ndim != 3 or scores.shape[1] < 2:
        raise ValueError(f"`scores` must be (rows, slots, items) with at least 2 slots, got {tuple(scores.shape)}.")
    if not torch.isfinite(scores).all():
        raise ValueError("`scores` must be finite: leave out the items that are masked with -inf or nan.")
    sigma = estimate_sigma(scores).plain
    items = torch.linspace(0, scores.shape[2] - 1, min(64, scores.shape[2])).round().long().unique()
    # Rows whose scores never move keep the assumption with sigma 0; they have nothing to look at.
    moving = scores[sigma > 0][:, :, items].diff(dim=1)
    z = moving / moving.square().mean((1, 2), keepdim=True).sqrt().clamp(min=1e-300)  # (R, T, M)
    checks = _checks(z) if z.numel() else ()
    return AssumptionReport(all(check.holds for check in checks), float(sigma.median()), checks)


def _checks(z) -> tuple[Check, ...]:
    """The six checks on standardised changes z (R, T, M).

    Dividing a row by its own sigma pulls the fourth moment down by n / (n + 2), n = T M, exactly; that is undone.
    """
    rows, steps, items = z.shape
    per_item, per_slot = rows * steps, rows * items
    mean = z.mean((0, 1)).square()  # (M,)
    off_mean = _beyond(mean, 1 / per_item)
    skewness = float((z**3 - 3 * z).mean())  # a mean that is off is another check's business
    fourth = float((z**4).mean()) * (1 + 2 / (steps * items))
    off_normal = max(abs(skewness), abs(fourth - 3) / 2)
    checks = [
        _chi_square("zero mean", float(mean.sum()) * per_item, items, off_mean, 0.1),
        _chi_square("normal", z.numel() * (skewness**2 / 6 + (fourth - 3) ** 2 / 24), 2, off_normal, 0.25),
        _same_variance("same variance over items", z.square().mean((0, 1)), per_item, fourth),
        _same_variance("same variance over slots", z.square().mean((0, 2)), per_slot, fourth),
        _independent_items(z.flatten(0, 1)),
    ]
    lag = z[:, 1:] * z[:, :-1]
    if lag.numel():
        statistic = float(lag.sum()) / lag.numel() ** 0.5
        checks.append(_verdict("independent slots", statistic, _two_sided(statistic), abs(float(lag.mean())), 0.1))
    return tuple(checks)


def _same_variance(name, variance, count, fourth):
    """Variances of groups of `count` numbers each; their cube roots are close to normal (Wilson-Hilferty)."""
    spread = max(fourth - 1, 1e-12) / 2  # 1 for Gaussian numbers
    roots = variance.pow(1 / 3)
    statistic = float((roots - roots.mean()).square().sum()) / (2 / (9 * count) * spread)
    effect = _beyond((variance / variance.mean() - 1).square(), 2 * spread / count)
    return _chi_square(name, statistic, max(len(variance) - 1, 1), effect, 0.25)


def _independent_items(z):
    """z (N, M). For independent Gaussian columns each squared cosine has mean 1/N, variance 2 (N-1) / (N^2 (N+2))."""
    number = len(z)
    square = (torch.nn.functional.normalize(z, dim=0).T @ torch.nn.functional.normalize(z, dim=0)).square()
    square = square[torch.ones_like(square, dtype=torch.bool).triu(1)]  # one per pair
    if number < 2 or not len(square):
        return _verdict("independent items", 0.0, 1.0, 0.0, 0.1)
    variance = 2 * (number - 1) / (number**2 * (number + 2))
    statistic = float((square - 1 / number).sum()) / (len(square) * variance) ** 0.5
    return _verdict("independent items", statistic, _two_sided(statistic) / 2, _beyond(square, 1 / number), 0.1)


def _beyond(squares, expected):
    """Root mean square with the part that chance alone explains taken off."""
    return max(0.0, float(squares.mean()) - expected) ** 0.5


def _chi_square(name, statistic, freedom, effect, limit):
    p_value = torch.special.gammaincc(
        torch.tensor(freedom / 2, dtype=torch.float64), torch.tensor(statistic / 2).double()
    )
    return _verdict(name, statistic, float(p_value), effect, limit)


def _two_sided(statistic):
    return math.erfc(abs(statistic) / math.sqrt(2))


def _verdict(name, statistic, p_value, effect, limit):
    return Check(name, statistic, p_value, effect, limit, not (p_value < 0.005 and effect > limit))
