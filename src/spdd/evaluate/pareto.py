"""What a family of policies can trade: its front, the area it covers, and whether it beats another family.

A family is a decoder at many settings, so many points, each a pair of metrics (both to be maximised). Intervals and
tests redraw users (`bootstrap.py`), the same for both families. The area of a redrawn front is a little above that of
the truth, since noise can only add corners; differences between families share that and are what to read.

Letters: P points, C metrics, D draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .bootstrap import Known, redrawn, summary
from .metrics import Ratio


class Family(NamedTuple):
    """A decoder at its settings: two metrics of every point, (P, U) each."""

    first: Ratio
    second: Ratio

    def points(self) -> np.ndarray:
        """(P, 2)"""
        return np.stack([self.first.value(), self.second.value()], -1)

    def redrawn(self, draws: np.ndarray) -> np.ndarray:
        """(D, P, 2)"""
        return np.stack([redrawn(self.first, draws), redrawn(self.second, draws)], -1)


def front(points: Any) -> np.ndarray:
    """(P,) bool, the points that no other point beats: none is at least as good in all and better in one.

    points: (P, C), every metric to be maximised

    >>> front([[1, 2], [2, 1], [1, 1]])
    array([ True,  True, False])
    """
    points = np.asarray(points, dtype=np.float64)
    no_worse = (points[:, None] >= points).min(2)  # (P, P): row beats column
    better = (points[:, None] > points).max(2)
    return (no_worse & better).max(0) == 0


def hypervolume(points: Any, reference: Any) -> Any:
    """Area (volume) the points dominate, measured from `reference`. Larger is better.

    points: (P, C), or (D, P, 2) for one area per draw; every metric to be maximised.  reference: (C,)

    >>> hypervolume([[1, 2], [2, 1]], [0, 0])
    3.0
    """
    above = np.nan_to_num(np.maximum(np.asarray(points, dtype=np.float64) - np.asarray(reference), 0))
    if above.shape[-1] != 2:
        return _volume(above)
    order = np.argsort(-above[..., 0], axis=-1, kind="stable")
    first, second = (np.take_along_axis(above[..., c], order, -1) for c in (0, 1))
    width = first - np.concatenate([first[..., 1:], np.zeros_like(first[..., :1])], -1)
    area = (width * np.maximum.accumulate(second, -1)).sum(-1)
    return float(area) if area.ndim == 0 else area


def _volume(points: np.ndarray) -> float:
    """Slices along the last metric, each as thick as the step to the next lower one. points: (P, C), from the origin"""
    if points.shape[1] == 2:
        return hypervolume(points, [0, 0])
    if points.shape[1] == 1:
        return float(points.max(initial=0))
    points = points[np.argsort(-points[:, -1], kind="stable")]
    below = np.append(points[1:, -1], 0)
    return float(
        sum((p[-1] - b) * _volume(points[: i + 1, :-1]) for i, (p, b) in enumerate(zip(points, below, strict=True)))
    )


def hypervolumes(families: Mapping[str, Family], draws: np.ndarray, reference: Any = (0, 0)) -> dict[str, Known]:
    """The area of each family's front with its interval."""
    return {
        n: summary(hypervolume(f.points(), reference), hypervolume(f.redrawn(draws), reference))
        for n, f in families.items()
    }


def ahead(one: Family, other: Family, draws: np.ndarray, reference: Any = (0, 0)) -> Known:
    """By how much the area of `one` is above that of `other`, on the same users, as a part of the other's."""
    value, rival = (hypervolume(f.points(), reference) for f in (one, other))
    own, theirs = (hypervolume(f.redrawn(draws), reference) for f in (one, other))
    with np.errstate(divide="ignore", invalid="ignore"):
        return summary(float(np.divide(value, rival)) - 1, own / theirs - 1)


def dominated(one: Family, other: Family, draws: np.ndarray) -> tuple[Known, np.ndarray]:
    """What part of `other`'s front some point of `one` beats in both metrics, and per point how sure that is.

    Beaten: a point of `one` is above it in both. The second answer is (P,): in what part of the draws each point of
    `other` is beaten by the point of `one` that beats it most often; nan for points off its front. One choice for all
    draws, so that noise among many points cannot do it.
    """
    mine, theirs = one.redrawn(draws), other.redrawn(draws)  # (D, P, 2), (D, P', 2)
    kept = front(other.points())
    beats = _above(mine, theirs)  # (D, P, P')
    sure = beats.mean(0).max(0)
    now = _above(one.points(), other.points()).max(0)
    part = beats.max(1)[:, kept].mean(1)
    return summary(float(now[kept].mean()), part), np.where(kept, sure, np.nan)


def _above(points: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(..., P, P') 1 where a point is above another in every metric."""
    return (points[..., :, None, :] > others[..., None, :, :]).min(-1).astype(np.float32)
