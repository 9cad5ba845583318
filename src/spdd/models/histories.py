"""What a person has done so far, as a model reads it: item numbers, oldest first, one row per person.

Rows come as lists, arrays, or one (R, L) array; -1 stands for padding and for an item the vocabulary does not know.
Both are dropped here, so a model sees known items only, and padding can never change a score.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..histories import pad_front


def aligned(histories: Any, *, most: int | None = None, items: int | None = None, device=None) -> Tensor:
    """(R, L) int64 item numbers, the known ones flush right, -1 before them.

    histories: lists or arrays of item numbers, or one (R, L) array or tensor
    most:      only the last so many known items of a row are kept
    items:     how many items there are; larger numbers are refused (not looked at where the histories are on a GPU,
               since looking would make the host wait)
    """
    padded = pad_front(histories)
    if items is not None and padded.device.type == "cpu" and padded.numel():
        _check_known(padded, items)
    if device is not None:
        padded = padded.to(device, non_blocking=True)
    known = padded >= 0
    order = known.to(torch.uint8).sort(dim=1, stable=True).indices  # unknown first, otherwise as they came
    padded = padded.gather(1, order).clamp_min(-1)
    return padded if most is None or padded.shape[1] <= most else padded[:, -most:]


def _check_known(padded: Tensor, items: int) -> None:
    worst = int(padded.max())
    if worst >= items:
        row = int((padded == worst).any(1).nonzero()[0])
        raise ValueError(
            f"`histories` row {row} holds item number {worst}, but the model knows items 0 to {items - 1}. "
            "Use the vocabulary the model was trained with, and -1 for items it does not have."
        )
