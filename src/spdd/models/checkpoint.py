"""A trained model in one file: its kind, config, weights, and the fingerprint of the items it knows.

The first line names the format and a sha256 of everything after it, so half a file, a damaged file and a file of
something else are told apart before anything is read from them. Nothing but tensors and plain values is ever loaded.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..files import atomic

FORMAT = b"spdd-checkpoint-1"


class Checkpoint(NamedTuple):
    """What a file holds. more: whatever else was saved with it"""

    kind: str
    config: dict[str, Any]
    weights: dict[str, Tensor]
    fingerprint: str
    more: dict[str, Any]


def save(
    path: str | Path, *, kind: str, config: dict[str, Any], weights: dict[str, Tensor], fingerprint: str, **more: Any
) -> None:
    """Write a checkpoint in one step: a reader, or a crash, finds the old file or the new one, never a part."""
    path = Path(path)
    buffer = io.BytesIO()
    torch.save({"kind": kind, "config": config, "weights": weights, "fingerprint": fingerprint, "more": more}, buffer)
    body = buffer.getbuffer()
    try:
        with atomic(path) as file:
            file.write(FORMAT + b" " + hashlib.sha256(body).hexdigest().encode() + b"\n")
            file.write(body)
    except OSError as error:
        why = f"{error.strerror}." if error.strerror else error  # what `atomic` says by itself is a sentence
        raise OSError(
            error.errno,
            f"Checkpoint '{path}' ({len(body) / 1e6:.0f} MB) cannot be written: {why} "
            "What was there before is untouched. Free some space or name a folder that can be written to",
        ) from error


def load(path: str | Path, *, kind: str | None = None, fingerprint: str | None = None) -> Checkpoint:
    """The checkpoint in `path`, on the CPU, or a ValueError that says what is wrong with it.

    kind:        what the caller can use ("sasrec"); anything else is refused
    fingerprint: of the items at hand; a model of other items is refused, since its item numbers mean other things
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"Checkpoint '{path}' is not there. Train a model first, or correct the path.")
    head, _, body = path.read_bytes().partition(b"\n")
    form, _, digest = head.partition(b" ")
    if form != FORMAT:
        raise ValueError(
            f"'{path}' is no checkpoint: its first line must begin with '{FORMAT.decode()}', "
            f"got {head[:24]!r}. Name a file that training wrote, such as best.pt."
        )
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise ValueError(
            f"Checkpoint '{path}' is truncated or damaged: its {len(body)} bytes do not match the sha256 in its first "
            "line. Copy it again, or train again."
        )
    try:
        held = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
        found = Checkpoint(**held)
    except (pickle.UnpicklingError, RuntimeError, TypeError) as error:
        raise ValueError(
            f"Checkpoint '{path}' holds something else than tensors and plain values: {error}. It was not written by "
            "this version; train again."
        ) from error
    if kind is not None and found.kind != kind:
        raise ValueError(f"Checkpoint '{path}' holds a '{found.kind}' model; a '{kind}' model is wanted. Name another.")
    if fingerprint is not None and found.fingerprint != fingerprint:
        raise ValueError(
            f"Checkpoint '{path}' was trained on other items: its catalog fingerprint is {found.fingerprint}, that of "
            f"the items at hand is {fingerprint}. Use the data it was trained with, or train again."
        )
    return found
