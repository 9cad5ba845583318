"""Which decoders are compared, and at which settings: the points of a sweep, and the decoder of a point.

Each family has one knob. Those that aim at a target are asked for shares of the slots; those that weigh are given prices,
in nats where relevance is a logarithm. One objective, whose values come with the domain.

    Greedy                  the model's own slate
    must-fill               a quota: the model's own slate until the guard forces items in
    WA, EPR                 fixed weights inside the loop, and on a finished longer list; WA on three scales
    MB-UCB, MB-TS           bandits over generalised Gini weights; their knob squeezes the objective's values towards 1
    SPDD as printed         probabilities, first price 1, rate 1, no guard; "relative": on the scale the proof needs
    SPDD by default         what `SPDD([objective])` is, a floor in every slate
    SPDD over traffic       the same, asked for the average over all slates
    SPDD priced             the floor in every slate, and a price that does not move in it: the knob is the price
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..decode.bandits import BanditTS, BanditUCB
from ..decode.decoder import Decoder
from ..decode.spdd import SPDD, Greedy, MustFill
from ..decode.weighted import EPR, WA
from ..objective import Objective
from .sweep import Point

ASKED = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
PRICES = (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.35, 1.8, 2.4, 3.2, 4.3, 6.0, 9.0)
CHANCES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)  # prices where relevance is a probability
PARTS = (
    0.003,
    0.01,
    0.03,
    0.06,
    0.1,
    0.2,
    0.3,
    0.4,
    0.55,
    0.75,
    1.0,
)  # prices where relevance is a part of the best item's
SQUEEZED = (0.02, 0.1, 0.3, 0.5, 0.7, 1.0)

PRINTED = {"scale": "probability", "start": 1.0, "rate": 1.0, "guard": False}
DECODERS: dict[str, Callable[..., Decoder]] = {
    "greedy": Greedy,
    "must-fill": MustFill,
    "wa": WA,
    "epr": EPR,
    "bandit-ucb": BanditUCB,
    "bandit-ts": BanditTS,
    "spdd": SPDD,
}


def points(
    floor: float, slots: int = 10, *, seeds: Sequence[int] = (0,), unit: float = 1.0, asked: Sequence[float] = ASKED,
    prices: Sequence[float] = PRICES,
) -> list[Point]:  # fmt: skip
    """The points of the full comparison.

    floor: value units that every slate should have.  seeds: of what draws.  unit: the largest value of an item
    asked: shares of what a slate of such items would hold
    """
    asked = [a * unit for a in asked]
    found = [Point("greedy", {}, "greedy")]
    found += [aimed("must-fill", a, slots, "must-fill") for a in asked]
    found += [weighed("WA", p, "wa") for p in prices]
    found += [weighed("WA on probabilities", p, "wa", scale="probability") for p in CHANCES]
    found += [weighed("WA, relative", p, "wa", scale="relative") for p in PARTS]
    found += [weighed("EPR", p, "epr") for p in prices[::2]]  # each costs ten of the others
    found += [aimed("SPDD as printed", a, slots, "spdd", **PRINTED) for a in asked]
    found += [aimed("SPDD as printed, relative", a, slots, "spdd", **{**PRINTED, "scale": "relative"}) for a in asked]
    found += [aimed("SPDD by default", a, slots, "spdd") for a in asked]
    found += [aimed("SPDD over traffic", a, slots, "spdd", per="traffic") for a in asked]
    found += [aimed("SPDD over traffic, relative", a, slots, "spdd", per="traffic", scale="relative") for a in asked]
    found += priced(floor, prices=prices)
    return found + bandits(seeds)


def priced(floor: float, rates: Sequence[float] = (0.0, 0.1), prices: Sequence[float] = PRICES) -> list[Point]:
    """The floor in every slate, for each first price; a curve per rate."""
    return [
        Point(
            "SPDD priced" if rate == 0 else f"SPDD priced, rate {rate:g}",
            {"price": price}, "spdd", {"start": price, "rate": rate}, {"at_least": floor},
        )
        for rate in rates for price in (0.0, *prices)
    ]  # fmt: skip


def rates(
    slots: int = 10, *, unit: float = 1.0, asked: Sequence[float] = ASKED, speeds: Sequence[float] = (0.1, 0.3, 1.0, 3.0)
) -> list[Point]:  # fmt: skip
    """Slow and fast prices, unguarded (the paper's figure 5): on the printed scale that works, and on ours."""
    found = []
    for speed in speeds:
        for name, scale in (("relative", "relative"), ("logit", "logit")):
            settings = {"scale": scale, "start": 1.0, "rate": speed, "guard": False}
            found += [aimed(f"rate {speed:g}, {name}", a * unit, slots, "spdd", **settings) for a in asked]
    return found


def bandits(seeds: Sequence[int], squeezed: Sequence[float] = SQUEEZED) -> list[Point]:
    return [
        Point(curve, {"squeeze": s}, decoder, {"seed": seed}, {}, seed)
        for curve, decoder in (("MB-UCB", "bandit-ucb"), ("MB-TS", "bandit-ts"))
        for s in squeezed
        for seed in seeds
    ]


def decoder_of(point: Point, value: Any, slots: int, name: str = "objective") -> Decoder:
    """The decoder a point names. value: (M,) or (R, M) of the objective

    With one objective of 0/1 values all Gini weights rank alike, so a bandit would have one slate to offer. Its knob s
    makes the values 1 - s (1 - value): at 0 nothing is wanted, at 1 the objective is as stated.
    """
    if "squeeze" in point.knob:
        value = 1 - point.knob["squeeze"] * (1 - np.asarray(value, dtype=np.float64))
    objective = Objective(name, value, **point.objective)
    return DECODERS[point.decoder](objectives=[objective], slots=slots, **point.settings)


def aimed(curve: str, asked: float, slots: int, decoder: str, per: str = "slate", **settings: Any) -> Point:
    return Point(curve, {"asked": asked}, decoder, settings, {"at_least": asked * slots, "per": per})


def weighed(curve: str, price: float, decoder: str, **settings: Any) -> Point:
    return Point(curve, {"price": price}, decoder, {"weight": price / (1 + price), **settings})
