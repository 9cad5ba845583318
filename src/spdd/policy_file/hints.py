"""What a message says of a wrong word: what was probably meant, what there is, and what came, cut short."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


def close_to(name: Any, known: Iterable[str]) -> str:
    """' Did you mean ...?' where something is close."""
    known = list(known)
    close = difflib.get_close_matches(str(name), known, n=3, cutoff=0.6)
    close = close or [k for k in known if k.lower() == str(name).lower()]
    return f" Did you mean {' or '.join(f'`{c}`' for c in close)}?" if close else ""


def near(name: Any, known: Iterable[str]) -> str:
    """The same, or else what there is."""
    known = list(known)
    more = f" and {len(known) - 12} more" if len(known) > 12 else ""
    return close_to(name, known) or f" There is: {', '.join(known[:12]) or 'none'}{more}."


def short(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 80 else f"{text[:76]} ..."
