"""Item numbers of many people as one array: rows of different lengths, oldest first, padded with -1 at the front."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def pad_front(histories: Any) -> Tensor:
    """(R, L) int64 item numbers, short rows padded with -1 at the front. Takes an array, a tensor or a list of lists.

    >>> pad_front([[3], [1, 2]])
    tensor([[-1,  3],
            [ 1,  2]])
    """
    if isinstance(histories, Tensor):
        return histories.long() if histories.dim() == 2 else histories.long()[:, None]
    try:
        if isinstance(histories, str | bytes):
            raise TypeError("text has no rows")
        if hasattr(histories, "__array__") and (given := np.asarray(histories)).dtype != object:
            return pad_front(torch.from_numpy(np.require(given, np.int64, ["C", "W"])))
        rows = [np.asarray(row, dtype=np.int64).reshape(-1) for row in histories]
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(
            f"histories must be lists of item numbers, one per row, got {histories!r:.60} ({error}). "
            "A row without a history is an empty list."
        ) from None
    sizes = np.array([len(row) for row in rows], dtype=np.int64)
    out = np.full((len(rows), sizes.max(initial=0)), -1, dtype=np.int64)
    if out.size:
        out[np.arange(out.shape[1]) >= out.shape[1] - sizes[:, None]] = np.concatenate(rows)
    return torch.from_numpy(out)
