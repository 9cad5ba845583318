"""What one request to an engine asks for, said in flat words, and whether it can be had: shared by vLLM and SGLang.

Where a server's requests come from strangers, they name no files: the menu, and a policy for requests that say nothing, are
files that the server's environment names. Both are read once a process and shared; a file that was replaced is read again
for the requests that come after, and those that have begun go on with what they began with.
"""

from __future__ import annotations

import difflib
import functools
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ..policy_file import Policy
    from ..slate import Slate
    from .menu import Menu
    from .plan import Plan
    from .rows import Rows

MENU, POLICY = "SPDD_MENU", "SPDD_POLICY"
FLAT = ("spdd_decoder", "spdd_slots", "spdd_objectives", "spdd_settings")
KEYS = ("spdd", *FLAT, "spdd_exclude")


class Asked(NamedTuple):
    """A policy ready for one row. begun: one row before its first token; never changed, so that requests can share it"""

    plan: Plan
    begun: Rows

    @property
    def menu(self) -> Menu:
        return self.plan.menu


def asked(given: Mapping[str, Any] | None, *, vocabulary: int | None = None, tokenizer: Any = None) -> Asked | None:
    """What a request's own settings ask for, with the environment's policy behind them; None for nothing at all.

    given: "spdd" is a whole policy, a mapping or JSON text that says what a policy file does, or "off"; "spdd_objectives"
           like "new>=3" or a list of such, "spdd_slots", "spdd_decoder" and "spdd_settings" like "rate=0.2" say the same
           piece by piece, instead of what the policy has; "spdd_exclude" lists item numbers. Other keys are not looked at.
    vocabulary, tokenizer: of the engine's model, where they are known: the menu must fit
    """
    own = {key: value for key, value in (given or {}).items() if isinstance(key, str) and key.startswith("spdd")}
    default = os.environ.get(POLICY)
    if not own and not default:
        return None
    for key in own:
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, 1)
            raise ValueError(
                f"'{key}' must be one of {', '.join(KEYS)}.{f' Did you mean {near[0]!r}?' if near else ''}"
            )
    if own.get("spdd") in ("off", False):
        if len(own) > 1:
            raise ValueError(
                f"'spdd' is 'off', so there must be no {', '.join(sorted(set(own) - {'spdd'}))} beside it."
            )
        return None
    menu = menu_here()
    menu.check(vocabulary=vocabulary)
    if tokenizer is not None:
        _fits(menu, tokenizer)
    policy = _stated(own, default)
    found = _ready(menu, policy.model_dump_json(by_alias=True, exclude_unset=True))
    exclude = own.get("spdd_exclude")
    if exclude is not None and len(_listed("spdd_exclude", exclude, int)):
        found = Asked(found.plan, found.plan.begin(1, [_listed("spdd_exclude", exclude, int)]))
    return found


def slates(tokens: Sequence[Sequence[int]], given: Mapping[str, Any] | None = None) -> Slate:
    """What these outputs spell, as every decoder returns it: items, what they gained, and whether that was met.

    tokens: the tokens of each output, without the prompt; what follows the slate is not looked at
    given:  what the requests were given, one mapping for all
    """
    import numpy as np

    from .rows import advance, join

    found = asked(given)
    if found is None:
        raise ValueError(f"no policy was asked for. Give what the requests were given, or name a policy in {POLICY}.")
    length = max((len(row) for row in tokens), default=0)
    written = np.full((len(tokens), max(length, 1)), -1)
    for line, row in zip(written, tokens, strict=True):
        line[: len(row)] = row
    rows = join(found.menu, [found.begun] * len(tokens))
    return found.plan.slate(advance(found.menu, rows, written))


def max_tokens(given: Mapping[str, Any] | None = None) -> int:
    """How many tokens a request must be allowed: a full slate, and its end where the menu has one."""
    found = asked(given)
    if found is None:
        raise ValueError(
            f"no policy was asked for. Give what the requests will be given, or name a policy in {POLICY}."
        )
    return found.plan.tokens


def menu_here() -> Menu:
    """The menu that the environment names, read once a process."""
    path = os.environ.get(MENU)
    if not path:
        raise ValueError(
            f"no menu to choose from: the environment variable {MENU} must name a file written by `Menu.save` before the "
            "engine starts."
        )
    try:
        seen = os.stat(path)
    except OSError as error:
        raise ValueError(f"the menu '{path}' of {MENU} cannot be read: {error.strerror}.") from None
    return _menu(path, seen.st_ino, seen.st_mtime_ns, seen.st_size)


# ---- parts ------------------------------------------------------------------------------------------------------


@functools.lru_cache(2)
def _menu(path: str, *_version: int) -> Menu:
    from .menu import Menu

    return Menu.load(path)


@functools.lru_cache(8)
def _fits(menu: Menu, tokenizer: Any) -> None:
    menu.check(tokenizer=tokenizer)


@functools.lru_cache(2)
def _default(path: str, *_version: int) -> Policy:
    from ..policy_file import read_policy

    return read_policy(path)


@functools.lru_cache(256)
def _ready(menu: Menu, policy: str) -> Asked:
    from .plan import Plan

    plan = Plan.of(menu, json.loads(policy))
    for objective in plan.decoder.objectives:
        if objective.per != "slate":
            raise ValueError(
                f"objective '{objective.name}' must have per = \"slate\" inside an engine, got {objective.per!r}: requests are "
                "served apart, and share no price. Use decoder.generate for targets over traffic."
            )
    return Asked(plan, plan.begin(1))


def _stated(own: Mapping[str, Any], default: str | None) -> Policy:
    """The policy of a request: its own, or else the environment's, with what is said piece by piece instead."""
    from ..policy_file import Policy, amended, parse_objectives, parse_setting, policy_of

    given = own.get("spdd")
    if isinstance(given, str) and given != "on":
        try:
            given = json.loads(given)
        except ValueError:
            raise ValueError(
                f"'spdd' must be a policy (a mapping, or JSON text of one), 'on' or 'off', got {given[:80]!r}."
            ) from None
    if given is None or given is True or given == "on":
        if default is None:
            policy = Policy.model_validate({})
        else:
            seen = os.stat(default) if os.path.exists(default) else None
            policy = _default(default, *((seen.st_ino, seen.st_mtime_ns, seen.st_size) if seen else ()))
    else:
        policy = policy_of(given, "'spdd'")
    if not any(key in own for key in FLAT):
        return policy
    slots, decoder = own.get("spdd_slots"), own.get("spdd_decoder")
    return amended(
        policy,
        decoder=decoder,
        slots=int(slots) if isinstance(slots, float) and slots.is_integer() else slots,  # JSON knows no whole numbers
        objectives=parse_objectives(_listed("spdd_objectives", own.get("spdd_objectives", ()), str)),
        settings=dict(parse_setting(text) for text in _listed("spdd_settings", own.get("spdd_settings", ()), str)),
        where="request",
    )


def _listed(key: str, given: Any, kind: type) -> list[Any]:
    found = [given] if isinstance(given, str | int) else given
    if not isinstance(found, list | tuple) or not all(isinstance(x, kind) and not isinstance(x, bool) for x in found):
        what = 'text like "new>=3", or a list of such' if kind is str else "a list of item numbers"
        raise ValueError(f"'{key}' must be {what}, got {str(given)[:80]!r}.")
    return list(found)
