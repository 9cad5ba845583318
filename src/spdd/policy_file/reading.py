"""From a file, a mapping, or the options of a command to a policy that can be built, or a message that says why not."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from .decoders import DECODERS, settings_of
from .hints import close_to, near, short
from .policy import Policy
from .stated import OBJECTIVE_KINDS
from .texts import parse_objectives, parse_per_group, parse_setting


def read_policy(path: str | Path) -> Policy:
    """The policy in a .toml or .json file, checked whole: its decoder can be built.

    >>> _ = Path("policy.toml").write_text('slots = 5\\nobjectives = [{name = "new", at_least = "30%"}]')
    >>> read_policy("policy.toml").decoder().objectives[0].at_least
    '30%'
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (".toml", ".json"):
        raise ValueError(f"policy file '{path}' must end in .toml or .json, got '{path.suffix}'.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"policy file '{path}' must be UTF-8 text. Save it again as UTF-8.") from None
    except OSError as error:
        raise ValueError(f"policy file '{path}' cannot be read: {error.strerror or error}.") from None
    try:
        found = tomllib.loads(text) if suffix == ".toml" else json.loads(text, object_pairs_hook=_once)
    except ValueError as error:  # both decoders' errors are; they name line and column
        raise ValueError(f"policy file '{path}' is not {suffix[1:].upper()}: {error}.") from None
    return policy_of(found, f"policy file '{path}'")


def policy_of(found: Any, where: str = "policy") -> Policy:
    """The policy a mapping says, checked whole. where: how messages call it"""
    if not isinstance(found, Mapping):
        raise ValueError(f"{where} must hold keys like `slots` and `objectives`, got {short(found)}.")
    try:
        policy = Policy.model_validate(dict(found))
    except ValidationError as error:
        raise ValueError("\n".join(dict.fromkeys(_message(e, where) for e in error.errors()))) from None
    try:
        policy.check()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None
    return policy


def policy_said(
    file: str | Path | None,
    *,
    decoder: str | None = None,
    slots: int | None = None,
    objectives: Iterable[str] | None = (),
    at_most_per: Iterable[str] | None = (),
    settings: Iterable[str] | None = (),
) -> Policy:
    """The policy of a file, or the usual one, with what the options of a command say on top.

    >>> policy_said(None, slots=5, objectives=["new>=2"], settings=["rate=0.1"]).decoder().slots
    5
    """
    return amended(
        Policy() if file is None else read_policy(file),
        decoder=decoder,
        slots=slots,
        objectives=[*parse_objectives(objectives or ()), *map(parse_per_group, at_most_per or ())],
        settings=dict(map(parse_setting, settings or ())),
    )


def amended(
    policy: Policy,
    *,
    decoder: str | None = None,
    slots: int | None = None,
    objectives: Sequence[Mapping[str, Any]] = (),
    settings: Mapping[str, Any] | None = None,
    where: str = "command line",
) -> Policy:
    """The policy with what the command line, or a request, says instead. where: how messages call that

    An objective the policy has already gets the new floor or cap and keeps the rest; others are added. With
    another decoder, only those of the policy's settings are kept that it has too.
    """
    found = policy.model_dump(by_alias=True, exclude_defaults=True)
    kept = dict(policy.settings)
    if decoder is not None:
        known = settings_of(decoder)
        found["decoder"] = decoder
        kept = {name: given for name, given in kept.items() if name in known or decoder == policy.decoder_name}
    if slots is not None:
        found["slots"] = slots
    stated = {o.name: o.model_dump(by_alias=True, exclude_unset=True) for o in policy.objectives}
    for objective in objectives:
        stated[objective["name"]] = {**stated.get(objective["name"], {}), **objective}
    return policy_of({**found, "objectives": list(stated.values()), "settings": {**kept, **(settings or {})}}, where)


def _once(pairs):
    found = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key '{key}' is given twice in one object")
        found[key] = value
    return found


def _message(error: Mapping[str, Any], where: str) -> str:
    """One line: where, which key, the rule, what came, the way out."""
    at, model = [str(part) for part in error["loc"]], Policy
    if at[:1] == ["objectives"] and len(at) > 2:
        model = OBJECTIVE_KINDS[at.pop(2)]
    # Behind the key stand the kinds of a union that were tried: no business of the reader's.
    at = at[: 3 if model is not Policy else 2 if at[:1] == ["objectives"] else 1]
    key = [part for part in at if not part.isdigit()][-1:] or [""]
    path = re.sub(r"\.(\d+)", r"[\1]", ".".join(at))
    came = short(error["input"])
    known = [field.alias or name for name, field in model.model_fields.items()]
    match error["type"]:
        case _ if path == "decoder":
            rule = f"must be one of {', '.join(DECODERS)}, got {came}.{close_to(error['input'], DECODERS)}"
        case "extra_forbidden":
            rule = f"is no key here.{near(key[0], known)}"
        case "missing":
            rule = f"is required in {came}."
        case "union_tag_invalid":
            rule = f"must have a `kind` of {', '.join(OBJECTIVE_KINDS)}, got {came}."
        case "value_error":
            rule = f"{error['ctx']['error']}, got {came}."
        case _:
            rule = f"must be {_RULES.get(key[0], error['msg'].lower())}, got {came}."
    return f"{where}: `{path}` {rule}"


_RULES = {
    "slots": "a whole number of at least 1",
    "objectives": "a list of objectives, each with a `name`",
    "settings": "a table of settings, like {rate = 0.1}",
    "name": "a non-empty string",
    "column": "the name of a column",
    "columns": "a list of column names",
    "at_least": 'a number or a percentage of the slots like "30%"',
    "at_most": 'a number or a percentage of the slots like "30%"',
    "per": "'slate', 'traffic' or 'both'",
    "rate": "a number",
    "most": "a whole number of at least 1",
    "distance": "a whole number of at least 2",
    "concave": "'sqrt', 'log' or a number",
    "wanted": "a number for each category, like {rock = 0.6, jazz = 0.4}",
}
