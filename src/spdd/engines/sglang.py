"""SGLang: a custom logit processor, sent along with each request that wants one.

SGLang hands over the logits of the requests that sent it, and each one's own parameters, among them (`__req__`) the request
with its output so far. Where a row stands is worked out anew from that output at every step, so retraction, chunked prefill
and batches that change need nothing. What SGLang cannot be told, `arguments` refuses before a request is sent; in the server
nothing is raised, because that would stop it: a request that cannot be served is ended.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from .request import Asked, asked, max_tokens, slates

try:
    from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor  # pyrefly: ignore[missing-import]
except ImportError:  # SGLang is not here, as on a client's machine without it
    CustomLogitProcessor = object

__all__ = ["SlateProcessor", "arguments", "max_tokens", "slates"]

log = logging.getLogger("sglang.spdd")
OURS = "__spdd__"  # where a request's parameters keep what was asked; SGLang's own copy of them, one per request
HIDDEN = (
    "the request's last token is not in its output yet: start the server with --disable-overlap-schedule, and without "
    "speculative decoding"
)


class SlateProcessor(CustomLogitProcessor):
    """Steers requests whose `custom_params` ask for it; see `request.asked`."""

    def __call__(
        self, logits: torch.Tensor, custom_param_list: list[dict[str, Any] | None] | None = None
    ) -> torch.Tensor:
        """The logits (R, V) with those of our rows changed in place. custom_param_list: of each row"""
        lines: dict[Any, list[int]] = {}
        given = custom_param_list or []
        drafts = _several(given)
        for line, params in enumerate(given):
            if params is None:
                continue
            if OURS not in params:
                params[OURS] = _asked(params, logits.shape[1])
            found = params[OURS]
            if isinstance(found, Asked):
                if line in drafts or _hidden(params.get("__req__")):
                    log.error("spdd: a request is ended: %s.", HIDDEN)
                    params[OURS] = found = -1 if found.menu.end is None else found.menu.end
                else:
                    lines.setdefault(found.menu, []).append(line)
            if found is not None and not isinstance(found, Asked):
                _end(logits, line, found, params.get("__req__"))
        for menu, mine in lines.items():
            self._price(menu, logits, mine, [given[line] for line in mine])
        return logits

    @staticmethod
    def _price(menu: Any, logits: torch.Tensor, lines: list[int], given: Sequence[Any]) -> None:
        from .rows import advance, priced, to

        written = [list(params["__req__"].output_ids) for params in given]
        tokens = np.full((len(lines), max(map(len, written))), -1)
        for row, one in zip(tokens, written, strict=True):
            row[: len(one)] = one
        rows = _together(menu, tuple(params[OURS].begun for params in given))
        if logits.device.type != "cpu":
            rows = to(rows, logits.device)
        rows = advance(menu, rows, tokens)
        index = torch.tensor(lines, device=logits.device)
        logits.index_copy_(0, index, priced(menu, rows, logits.index_select(0, index), in_place=True))


def arguments(given: Mapping[str, Any] | None, **sampling: Any) -> dict[str, Any]:
    """What to hand to `Engine.generate`, or to post, beside the prompt; what cannot be had is refused here.

    given:    see `request.asked`.  sampling: other sampling parameters, e.g. temperature=0

    >>> from spdd.catalog import Catalog; from spdd.engines.menu import Menu; import os
    >>> Menu.of(Catalog.of([[0, 1], [1, 0]]), first=3, end=2).save("menu"); os.environ["SPDD_MENU"] = "menu"
    >>> arguments({"spdd_slots": 2}, temperature=0)["sampling_params"]
    {'max_new_tokens': 5, 'temperature': 0, 'custom_params': {'spdd_slots': 2}}
    """
    found = asked(given)
    if found is None:
        return {"sampling_params": dict(sampling)}
    if (sampling.get("beam_width") or 1) > 1:
        raise ValueError(
            "`beam_width` must be 1 beside a policy: SGLang's beams are chosen from logits that no processor has seen. Use n for "
            "several samples, or `spdd.generate` for beams."
        )
    for name in ("json_schema", "regex", "ebnf", "structural_tag"):
        if sampling.get(name):
            raise ValueError(f"`{name}` must not be given beside a policy, which says itself what may be written.")
    full, most = found.menu.length(found.plan.slots), found.plan.tokens
    length = sampling.get("max_new_tokens", most)
    if length < full or (found.menu.end is None and length != full):
        raise ValueError(f"`max_new_tokens` must be {most}, which {found.plan.slots} items take, got {length}.")
    params = {"max_new_tokens": most, **sampling, "custom_params": dict(given or {})}
    to_str = getattr(SlateProcessor, "to_str", None)
    return {"sampling_params": params, **({"custom_logit_processor": to_str()} if to_str else {})}


# ---- parts ------------------------------------------------------------------------------------------------------


@functools.lru_cache(8)
def _together(menu: Any, begun: tuple[Any, ...]) -> Any:
    """One batch of these rows, which are the same ones from step to step."""
    from .rows import join

    return join(menu, begun)


def _asked(params: Mapping[str, Any], vocabulary: int) -> Any:
    """What is asked; None for nothing; the token to end with (or -1) where it cannot be had."""
    try:
        return asked(params, vocabulary=vocabulary)
    except Exception as error:  # raising stops the server and all its requests
        log.error("spdd: a request is ended: %s", error)
        return -1


def _hidden(request: Any) -> bool:
    """Whether a token was read that is not in the output: the overlap schedule runs one step ahead of it."""
    if request is None:
        return True
    read = getattr(getattr(request, "kv", None), "kv_committed_len", 0)
    return read > len(request.origin_input_ids) + len(request.output_ids)


def _several(given: Sequence[Any]) -> set[int]:
    """Lines of requests that have more than one: drafts, of which nothing tells which tokens lie between."""
    lines: dict[int, list[int]] = {}
    for line, params in enumerate(given):
        if params is not None:
            lines.setdefault(id(params), []).append(line)
    return {line for same in lines.values() if len(same) > 1 for line in same}


def _end(logits: torch.Tensor, line: int, end: int, request: Any) -> None:
    """Only tokens that end the request are left; without any, the logits stay as they are."""
    sampling = getattr(request, "sampling_params", None)
    known = [*(getattr(request, "eos_token_ids", None) or ()), *(getattr(sampling, "stop_token_ids", None) or ())]
    stops = [token for token in {end, *known} if 0 <= token < logits.shape[1]]
    if stops:
        only = torch.full_like(logits[line], -torch.inf)
        only[stops] = 0
        logits[line] = only
