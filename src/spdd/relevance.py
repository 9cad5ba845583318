"""The scales on which relevance can be expressed before a price is added to it.

The paper adds prices to probabilities; its proof needs relevance in [0, 1]; logits make prices comparable
across users. Each scale is one number per row (`normaliser`) and one elementwise map (`relevance`), so a
few columns can be scored without touching the rest of the catalogue again.
"""

from __future__ import annotations

import torch
from torch import Tensor

SCALES = ("probability", "sigmoid", "relative", "log_probability", "logit", "identity")

CHUNK = 1 << 17

# Scales on which relevance is a logarithm: a price multiplies the odds by exp(price * value).
LOG_SCALES = ("log_probability", "logit", "identity")


def check_scale(scale: str) -> str:
    if scale not in SCALES:
        raise ValueError(f"`scale` must be one of {', '.join(SCALES)}, got {scale!r}.")
    return scale


def normaliser(scale: str, logits: Tensor, eligible: Tensor | None = None) -> Tensor | None:
    """(R, 1) what `relevance` takes off each row's logits, over the items eligible for the row; None where nothing is.

    Leaving out ineligible items makes padding harmless: a column nobody may choose changes no probability.
    """
    if scale not in ("probability", "log_probability", "relative"):
        return None
    # In pieces that stay in the CPU's cache; a GPU takes all rows at once.
    rows = max(1, CHUNK // logits.shape[1]) if logits.device.type == "cpu" else max(1, len(logits))
    parts = logits.split(rows)
    masks = [None] * len(parts) if eligible is None else eligible.split(rows)
    return torch.cat([_normaliser(scale, part, mask) for part, mask in zip(parts, masks, strict=True)])


def _normaliser(scale, logits, eligible):
    if eligible is not None:
        logits = logits.masked_fill(~eligible, -torch.inf)
    top = logits.amax(1, keepdim=True).clamp_min(torch.finfo(logits.dtype).min)
    if scale == "relative":
        return top.double()
    # Each term to the precision the scores came in, their sum in float64.
    return top.double() + (logits - top).exp().sum(1, keepdim=True, dtype=torch.float64).log()


def relevance(scale: str, logits: Tensor, norm: Tensor | None = None) -> Tensor:
    """Relevance of each logit on `scale`, in float64. logits: (R, N), any columns of the row. norm: `normaliser`'s."""
    logits = logits.double()
    if norm is not None:
        logits = logits - norm
    if scale in ("probability", "relative"):
        return logits.exp()
    return logits.sigmoid() if scale == "sigmoid" else logits


def log_weight(scale: str, scores: Tensor) -> Tensor:
    """Log of the weight with which a priced score is sampled: the score itself on log scales, else its logarithm."""
    return scores if scale in LOG_SCALES else scores.clamp_min(0).log()
