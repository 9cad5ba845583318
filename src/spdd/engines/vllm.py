"""vLLM: a logits processor for both of its model runners, found by the entry point `vllm.logits_processors`.

    V1  tells which rows were removed, added and moved, and hands over each request's live list of output tokens
    V2  numbers requests by slots that do not move, and keeps all tokens in one buffer on the device

In both, a request's state is a function of the tokens it wrote, so pre-emption, resumption and chunked prefill need nothing
of their own. This file is imported by every vLLM beside which spdd is installed: it loads nothing heavy before a request
asks for something, and nothing that happens here may stop an engine.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import weakref
from typing import Any

from .request import POLICY, asked, max_tokens, slates

__all__ = ["SlateProcessor", "max_tokens", "slates"]

log = logging.getLogger("vllm.spdd")  # below vLLM's own logger: its level and its handlers
ROADS = ("vllm.v1.sample.logits_processor", "vllm.v1.worker.gpu.sample.logits_processor")  # V1, V2
HIDDEN = (
    "under asynchronous scheduling vLLM's V1 runner shows output tokens to a processor only if it is named: start the engine "
    'with logits_processors=["spdd.engines.vllm:SlateProcessor"], or with async_scheduling=False.'
)
GUESSED = (
    "an engine with speculative decoding cannot keep promises: its V1 runner leaves processors out, and its drafts are not "
    "priced. Send such requests to an engine without speculative_config."
)


def _bases() -> tuple[type, ...]:
    """The base class of each runner that this vLLM has."""
    found = []
    for road in ROADS:
        try:
            found.append(importlib.import_module(road).LogitsProcessor)
        except Exception as error:  # whatever it is: a runner that cannot be loaded is not one that asks us
            log.debug("spdd: %s cannot be loaded: %s", road, error)
    return tuple(dict.fromkeys(found)) or (object,)


_working: weakref.WeakValueDictionary[int, SlateProcessor] = weakref.WeakValueDictionary()


class SlateProcessor(*_bases()):  # pyrefly: ignore[invalid-inheritance]
    """Steers requests whose settings ask for it (see `request.asked`), and leaves all others alone.

    vLLM makes it, as (config, device, is_pin_memory) or as (config, buffers of its requests).
    """

    def __init__(self, vllm_config: Any, device_or_states: Any, is_pin_memory: Any = None):
        self.states = device_or_states if hasattr(device_or_states, "all_token_ids") else None  # V2 hands over buffers
        self.device = device_or_states.device if self.states is not None else device_or_states
        self.seats: Any = None  # made when the first request asks for something
        model = getattr(vllm_config, "model_config", None)
        self.vocabulary = model.get_vocab_size() if model is not None else None
        self.refused = _cannot(vllm_config)
        # Who names the processor that the entry point brings as well gets two: one works, or prices would count twice.
        self.config = vllm_config  # kept, so that no other configuration gets its id
        self.idle = _working.setdefault(id(vllm_config), self) is not self

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuses what cannot be had, before generation; in vLLM's front process, for one request alone."""
        if not _speaks(sampling_params):
            return
        engine = _engine()
        config = getattr(engine, "vllm_config", None)
        found = asked(
            sampling_params.extra_args,
            vocabulary=config.model_config.get_vocab_size() if config else None,
            tokenizer=getattr(engine, "tokenizer", None),
        )
        if found is None:
            return
        why = _cannot(config)
        if why:
            raise ValueError(why)
        for name in ("structured_outputs", "allowed_token_ids", "bad_words"):
            if getattr(sampling_params, name, None):
                raise ValueError(f"`{name}` must not be given beside a policy, which says itself what may be written.")
        _check_length(found, sampling_params.max_tokens)

    def is_argmax_invariant(self) -> bool:
        return False

    # ---- V1 ---------------------------------------------------------------------------------------------------------

    def update_state(self, batch_update: Any) -> None:
        if batch_update is None or self.idle:
            return
        for row in batch_update.removed:
            if self.seats:
                self.seats.leave(row)
        for row, params, _, tokens in batch_update.added:
            self._sit(row, params, tokens)
        for one, other, how in batch_update.moved:
            if self.seats:
                (self.seats.swap if how.name == "SWAP" else self.seats.move)(one, other)

    # ---- V2 ---------------------------------------------------------------------------------------------------------

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Whether this request will be steered. Its tokens are not in the buffers yet."""
        return not self.idle and self._sit(req_idx, sampling_params, req_idx)

    def apply_staged_writes(self) -> None:
        """Nothing is staged: states catch up when they are needed."""

    # ---- both -------------------------------------------------------------------------------------------------------

    def apply(self, logits: Any, ctx: Any = None) -> Any:
        if not self.seats:
            return logits
        if ctx is None:
            lost = self.seats.price(logits, {row: row for row in range(len(logits))}, _from_lists(self.seats))
        else:
            slots = ctx.idx_mapping_np.tolist()
            if len(slots) != len(logits):  # drafts: several lines a request, which were refused
                slots = ctx.expanded_idx_mapping.tolist()
            lines = {slot: line for line, slot in enumerate(slots)}
            length = dict(zip(ctx.idx_mapping_np.tolist(), ctx.seq_lens_upper_bound_np.tolist(), strict=False))
            lost = self.seats.price(logits, lines, _from_buffers(self.seats, self.states, length))
        for _ in lost:
            log.error("spdd: a request is ended, its tokens are hidden: %s", HIDDEN)
        return logits

    def _sit(self, row: int, params: Any, source: Any) -> bool:
        """Whether somebody sits in the row now. What cannot be served is ended: raising would stop the engine."""
        if not _speaks(params):
            if self.seats:
                self.seats.leave(row)
            return False
        from .seats import Seat, Seats

        try:
            found = asked(params.extra_args, vocabulary=self.vocabulary)
            if found is not None and self.refused:
                raise ValueError(self.refused)
            seat = None if found is None else Seat(found, source, _stops(params))
        except Exception as error:  # a menu replaced since the request was checked, say
            log.error("spdd: a request is ended: %s", error)
            seat = Seat(None, source, _stops(params))
        if self.seats is None:
            self.seats = Seats(None if getattr(self.device, "type", self.device) == "cpu" else self.device)
        self.seats.sit(row, seat)
        return seat is not None


# ---- what was written -----------------------------------------------------------------------------------------------


def _from_lists(table: Any):
    from . import seats as here

    # Tokens can be taken back, where a cache of keys and values could not be read. Lines are laid out after this.
    for seat in table.taken.values():
        if seat.asked is not None and len(seat.source) < seat.seen:
            here.again(seat)
    return lambda seats: here.unseen([seat.source for seat in seats], seats)


def _from_buffers(table: Any, states: Any, length: dict[int, int]):
    """Nothing here waits for the device, and how much is new is known on the host."""
    from . import seats as here

    def written(seat: Any) -> int:
        return max(length.get(seat.source, 0) - int(states.prompt_len.np[seat.source]), 0)

    for seat in table.taken.values():
        if seat.asked is not None and seat.source in length and written(seat) < seat.seen:
            here.again(seat)

    def unseen(seats: list[Any]):
        import torch

        buffer = states.all_token_ids.gpu
        start = [int(states.prompt_len.np[seat.source]) + seat.seen for seat in seats]
        fresh = [written(seat) - seat.seen for seat in seats]
        for seat, count in zip(seats, fresh, strict=True):
            seat.seen += count
        slot, start_, count = (torch.tensor(x, device=buffer.device) for x in ([s.source for s in seats], start, fresh))
        step = torch.arange(max(fresh, default=0), device=buffer.device)
        at = (start_[:, None] + step).clamp_max(buffer.shape[1] - 1)
        tokens = buffer[slot[:, None], at].long().masked_fill(step >= count[:, None], -1)
        return tokens if table.device is not None else tokens.cpu().numpy(), [False] * len(seats)

    return unseen


# ---- what cannot be had ---------------------------------------------------------------------------------------------


def _speaks(params: Any) -> bool:
    """Whether a request may have something to say to us; all the others cost this line."""
    extra = params.extra_args
    return POLICY in os.environ or (
        bool(extra) and any(isinstance(key, str) and key.startswith("spdd") for key in extra)
    )


def _cannot(config: Any) -> str:
    """Why an engine so configured can keep no promise; "" where it can."""
    if config is None:
        return ""
    if getattr(config, "speculative_config", None) is not None:
        return GUESSED
    named = getattr(getattr(config, "model_config", None), "logits_processors", None)
    hides = getattr(getattr(config, "scheduler_config", None), "async_scheduling", False) and not named
    return HIDDEN if hides and not getattr(config, "use_v2_model_runner", False) else ""


def _engine() -> Any:
    """vLLM's input processor, which is checking a request just now; None if nobody is.

    Its classmethod is handed the request and nothing else, though what cannot be had depends on the engine: with speculative
    decoding the V1 runner does not even make us, and a request would be served without its policy and without a word.
    """
    frame = sys._getframe(1)
    for _ in range(8):
        frame = frame.f_back
        if frame is None:
            return None
        caller = frame.f_locals.get("self")
        if caller is not None and hasattr(caller, "vllm_config") and hasattr(caller, "tokenizer"):
            return caller
    return None


def _check_length(found: Any, given: int | None) -> None:
    menu, slots = found.menu, found.plan.slots
    full = menu.length(slots)
    if given is not None and given < full:
        raise ValueError(
            f"`max_tokens` must be at least {full}, which {slots} items take, got {given}. (vLLM's own beam search asks for one "
            "token at a time, and hands no settings on: see docs/vllm.md.)"
        )
    if menu.end is None and given != full:
        raise ValueError(
            f"`max_tokens` must be {full}, which {slots} items take, got {given}: this menu has no token that ends a slate, and "
            "generation would go on behind it. Set max_tokens, or build the menu with end=..."
        )


def _stops(params: Any) -> tuple[int, ...]:
    return tuple(getattr(params, "all_stop_token_ids", ()))
