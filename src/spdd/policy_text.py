"""The text of a policy file for a decoder that a sweep has tried."""

from __future__ import annotations

import json
from typing import Any

from .evaluate.sweep import Point


def policy_text(point: Point, name: str, column: str, slots: int, comment: str) -> str:
    """TOML that `read_policy` takes. name, column: of the objective.  comment: where it comes from

    >>> print(policy_text(Point("x", {}, "spdd", {"rate": 0.1}, {"at_least": 3}), "new", "is_new", 10, "By hand."))
    # By hand.
    decoder = "spdd"
    slots = 10
    <BLANKLINE>
    [settings]
    rate = 0.1
    <BLANKLINE>
    [[objectives]]
    name = "new"
    column = "is_new"
    at_least = 3
    <BLANKLINE>
    """
    lines = [f"# {comment.replace(chr(10), ' ')}", f"decoder = {_toml(point.decoder)}", f"slots = {slots}"]
    if point.settings:
        lines += ["", "[settings]", *(f"{key} = {_toml(x)}" for key, x in point.settings.items())]
    lines += ["", "[[objectives]]", f"name = {_toml(name)}"]
    if column != name:
        lines.append(f"column = {_toml(column)}")
    # A decoder that aims at nothing still counts: a floor of 0 is one that every slate holds.
    target = dict(point.objective) or {"at_least": 0}
    return "\n".join([*lines, *(f"{key} = {_toml(x)}" for key, x in target.items())]) + "\n"


def _toml(given: Any) -> str:
    """JSON's strings, numbers, booleans and lists of them are TOML's."""
    return json.dumps(given, ensure_ascii=False)
