"""The texts of the command line ("new>=3", "artist<=2", "rate=0.1") in the words of a policy file."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable
from typing import Any

_NUMBER = r"[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\s*%?|[+-]?(?:nan|inf)"
_AFTER = re.compile(rf"(?P<name>.*\S)\s*(?P<sign>>=|<=|≥|≤)\s*(?P<target>{_NUMBER})$", re.DOTALL)
_BEFORE = re.compile(rf"(?P<target>{_NUMBER})\s*(?P<sign>>=|<=|≥|≤)\s*(?P<name>.*\S)$", re.DOTALL)
_PER = re.compile(r"(?P<rest>.*\S)\s+per\s+(?P<per>slate|traffic|both)$", re.DOTALL)
_SIDE = {">=": "at_least", "≥": "at_least", "<=": "at_most", "≤": "at_most"}
_TURNED = {"at_least": "at_most", "at_most": "at_least"}


def parse_objective(text: str) -> dict[str, Any]:
    """What an objective's text says, in the words of a policy file.

    >>> parse_objective("new creators>=3")
    {'name': 'new creators', 'at_least': 3}
    >>> parse_objective("10% <= new <= 30% per traffic")
    {'name': 'new', 'at_most': '30%', 'at_least': '10%', 'per': 'traffic'}
    """
    rest = text.strip()
    per = _PER.match(rest)
    if per:
        rest = per["rest"]
    found: dict[str, Any] = {}
    after = _AFTER.match(rest)
    if after:
        found[_SIDE[after["sign"]]] = _target(after["target"])
        rest = after["name"]
    before = _BEFORE.match(rest)
    if before:
        side = _TURNED[_SIDE[before["sign"]]]
        if side in found:
            raise ValueError(f"objective '{text}' states two {'floors' if side == 'at_least' else 'caps'}. Give one.")
        found[side] = _target(before["target"])
        rest = before["name"]
    if not found:
        raise ValueError(
            f"objective must read like 'new creators>=3', 'margin<=2.5', 'new>=30%', '2<=new<=4' or "
            f"'new>=3 per traffic', got '{text}'."
        )
    return {"name": rest, **found, **({"per": per["per"]} if per else {})}


def parse_objectives(texts: Iterable[str]) -> list[dict[str, Any]]:
    """All of them; a floor and a cap stated apart become one objective.

    >>> parse_objectives(["new>=2", "new<=4"])
    [{'name': 'new', 'at_least': 2, 'at_most': 4}]
    """
    merged: dict[str, dict[str, Any]] = {}
    for text in texts:
        found = parse_objective(text)
        held = merged.setdefault(found["name"], {})
        for key in held.keys() & found.keys() - {"name"}:
            if held[key] != found[key]:
                words = {"at_least": "floor", "at_most": "cap", "per": "`per`"}
                raise ValueError(
                    f"objective '{found['name']}' has two values for its {words[key]}, {held[key]} and {found[key]}. Give one."
                )
        held.update(found)
    return list(merged.values())


def parse_per_group(text: str) -> dict[str, Any]:
    """What --at-most-per says.

    >>> parse_per_group("artist<=2")
    {'name': 'at most 2 per artist', 'kind': 'per_group', 'column': 'artist', 'most': 2}
    """
    found = re.fullmatch(r"(?P<column>.*\S)\s*(?:<=|≤)\s*(?P<most>\d+)", text.strip(), re.DOTALL)
    if not found or int(found["most"]) < 1:
        raise ValueError(
            f"--at-most-per must read like 'artist<=2', a column and a whole number of at least 1, got '{text}'."
        )
    column, most = found["column"], int(found["most"])
    return {"name": f"at most {most} per {column}", "kind": "per_group", "column": column, "most": most}


def parse_setting(text: str) -> tuple[str, Any]:
    """Name and value of a setting: a TOML value, or else the text as it stands.

    >>> parse_setting("rate=0.2"), parse_setting("scale=probability"), parse_setting("weight=[0.2, 0.1]")
    (('rate', 0.2), ('scale', 'probability'), ('weight', [0.2, 0.1]))
    """
    name, sign, value = (part.strip() for part in text.partition("="))
    if not name or not sign or not value:
        raise ValueError(f"--set must read like 'rate=0.2', got '{text}'.")
    try:
        found = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return name, value
    return name, found["value"] if len(found) == 1 else value


def _target(text: str) -> float | int | str:
    text = text.replace("_", "").replace(" ", "")
    if text.endswith("%"):
        return text
    number = float(text)
    return int(number) if math.isfinite(number) and number == int(number) else number
