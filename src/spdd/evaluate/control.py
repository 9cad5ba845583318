"""Steering: the setting of a decoder at which it delivers what was asked.

A price, a weight or a target that is asked for is a knob, and what comes of it (an average share, say) rises with the knob, by
steps and with noise. Few looks are allowed, because each is a whole pass over the users.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Steered(NamedTuple):
    """Where the knob came to stand, what it delivers there, and everything that was tried, in order."""

    knob: float
    delivered: float
    tried: dict[float, float]


def steer(
    delivered: Callable[[float], float],
    asked: float,
    *,
    first: float,
    low: float,
    high: float,
    step: float,
    tolerance: float,
    most: int = 12,
) -> Steered:
    """The knob in [low, high] that comes nearest to what is asked, in at most so many looks.

    From `first` in growing steps until what is asked lies between two looks, then between them, each time where a straight
    line would have it but never within a tenth of either end, so that a staircase is climbed too.

    delivered: what a knob gives; roughly rising.  step: the first step.  tolerance: near enough to stop

    >>> found = steer(lambda x: x * x, 0.25, first=0.1, low=0, high=1, step=0.2, tolerance=0.001)
    >>> round(found.knob, 2), len(found.tried)
    (0.5, 7)
    """
    tried: dict[float, float] = {}
    below = above = None
    knob = first
    while knob not in tried:
        tried[knob] = delivered(knob)
        error = tried[knob] - asked
        if abs(error) <= tolerance or len(tried) == most:
            break
        if error < 0:
            below = knob
        else:
            above = knob
        if below is None or above is None:
            knob = min(knob + step, high) if above is None else max(knob - step, low)
            step *= 2
        else:
            reach = (asked - tried[below]) / (tried[above] - tried[below])
            knob = below + min(max(reach, 0.1), 0.9) * (above - below)
    best = min(tried, key=lambda knob: abs(tried[knob] - asked))
    return Steered(best, tried[best], tried)
