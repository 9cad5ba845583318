"""spdd: slates that meet several objectives at once, from any recommender that gives scores, without retraining.

Names are loaded when they are first used, so that importing the package, and the command line's help, cost nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .decode.bandits import BanditTS, BanditUCB
    from .decode.diversity import DPP, MMR, Calibrated
    from .decode.providers import ProviderMaxMin
    from .decode.retriever import Retriever
    from .decode.search import FromCallable, Model
    from .decode.spdd import SPDD, Greedy, MustFill
    from .decode.weighted import EPR, WA
    from .engines.menu import Menu
    from .engines.plan import Plan
    from .engines.transformers import generate
    from .objective import Objective
    from .relevance import SCALES
    from .slate import IMPOSSIBLE, MET, SHORT, Slate, Status, Trace
    from .values import at_most_per_group, calibration, coverage, spacing

__version__ = "0.1.0"

_HOME = {
    "objective": ("Objective",),
    "values": ("coverage", "at_most_per_group", "spacing", "calibration"),
    "slate": ("Slate", "Trace", "Status", "MET", "SHORT", "IMPOSSIBLE"),
    "relevance": ("SCALES",),
    "decode.spdd": ("SPDD", "Greedy", "MustFill"),
    "decode.weighted": ("WA", "EPR"),
    "decode.bandits": ("BanditUCB", "BanditTS"),
    "decode.diversity": ("MMR", "DPP", "Calibrated"),
    "decode.providers": ("ProviderMaxMin",),
    "decode.retriever": ("Retriever",),
    "decode.search": ("FromCallable", "Model"),
    "engines.menu": ("Menu",),
    "engines.plan": ("Plan",),
    "engines.transformers": ("generate",),
}
_ROOM = {name: room for room, names in _HOME.items() for name in names}

__all__ = [
    "DPP",
    "EPR",
    "IMPOSSIBLE",
    "MET",
    "MMR",
    "SCALES",
    "SHORT",
    "SPDD",
    "WA",
    "BanditTS",
    "BanditUCB",
    "Calibrated",
    "FromCallable",
    "Greedy",
    "Menu",
    "Model",
    "MustFill",
    "Objective",
    "Plan",
    "ProviderMaxMin",
    "Retriever",
    "Slate",
    "Status",
    "Trace",
    "at_most_per_group",
    "calibration",
    "coverage",
    "generate",
    "spacing",
]


def __getattr__(name: str) -> Any:
    if name not in _ROOM:
        raise AttributeError(f"module 'spdd' has no attribute '{name}'")
    return getattr(importlib.import_module(f".{_ROOM[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
