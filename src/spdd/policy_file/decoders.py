"""Decoders by the names people type, and the settings each of them takes."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

import spdd

from .hints import close_to, near, short

if TYPE_CHECKING:
    from ..decode.decoder import Decoder

# The names people type, and the class of the front door each stands for.
DECODERS = {
    "spdd": "SPDD",
    "must-fill": "MustFill",
    "greedy": "Greedy",
    "wa": "WA",
    "epr": "EPR",
    "bandit-ucb": "BanditUCB",
    "bandit-ts": "BanditTS",
    "mmr": "MMR",
    "dpp": "DPP",
    "calibrated": "Calibrated",
    "provider-max-min": "ProviderMaxMin",
}

# Settings that name columns, because they say what items are like: a column of labels, or a list of columns of numbers.
OF_ITEMS = {"mmr": "embeddings", "dpp": "embeddings", "calibrated": "table"}
OF_PROVIDERS = "provider-max-min"  # asks whose items are, with a column of labels that hold for all of the traffic
NOT_IN_FILES = ("objectives", "slots", "similarity", "names")  # said elsewhere, or a matrix, or read off the column


def decoder_class(name: str) -> type[Decoder]:
    if name not in DECODERS:
        raise ValueError(f"decoder must be one of {', '.join(DECODERS)}, got '{name}'.{close_to(name, DECODERS)}")
    return getattr(spdd, DECODERS[name])


def settings_of(decoder: str) -> dict[str, Any]:
    """The type of each setting the decoder takes, by name."""
    made = decoder_class(decoder)
    types = typing.get_type_hints(made)
    return {f.name: types[f.name] for f in dataclasses.fields(made) if f.init and f.name not in NOT_IN_FILES}


def check_settings(decoder: str, settings: Mapping[str, Any]) -> None:
    """Names and types; the decoder itself checks the rest."""
    known = settings_of(decoder)
    for name, given in settings.items():
        if name not in known:
            raise ValueError(f"decoder '{decoder}' has no setting '{name}'.{near(name, known)}")
        try:
            TypeAdapter(known[name]).validate_python(given, strict=True)
        except ValidationError as error:
            rule = error.errors()[0]["msg"].removeprefix("Input should be ")
            raise ValueError(f"setting '{name}' of decoder '{decoder}' must be {rule}, got {short(given)}.") from None
