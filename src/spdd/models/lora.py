"""Low-rank adapters (Hu et al. 2021) and new rows of a vocabulary: what is learnt while the rest of a model is frozen.

A linear layer W becomes W + scale · up · down, with `up` zero at the start, so a model just adapted is the model it
was. `merge` folds the adapters into plain layers again; `weights` are the adapters alone, a few MB to keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Adapted(nn.Module):
    """A frozen linear layer with a learnt part of low rank beside it."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float):
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), alpha / rank
        like = {"device": base.weight.device, "dtype": base.weight.dtype}
        self.down = nn.Parameter(torch.empty(rank, base.in_features, **like))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank, **like))
        nn.init.kaiming_uniform_(self.down, a=5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.down), self.up) * self.scale

    def merged(self) -> nn.Linear:
        with torch.no_grad():
            self.base.weight += self.scale * (self.up @ self.down)
        return self.base


class NewRows(nn.Module):
    """An embedding whose first rows are frozen and whose other rows, `more`, are learnt."""

    def __init__(self, base: nn.Embedding, first: int):
        super().__init__()
        weight = base.weight.detach()
        self.base = nn.Embedding.from_pretrained(weight[:first].clone())
        self.more = nn.Parameter(weight[first:].clone())

    @property
    def weight(self) -> Tensor:
        return torch.cat([self.base.weight, self.more])

    def forward(self, tokens: Tensor) -> Tensor:
        first = self.base.num_embeddings
        new = F.embedding((tokens - first).clamp_min(0), self.more)
        return torch.where((tokens >= first)[..., None], new, self.base(tokens.clamp_max(first - 1)))

    def merged(self) -> nn.Embedding:
        return nn.Embedding.from_pretrained(self.weight.detach(), freeze=False)


class NewColumns(nn.Module):
    """The output layer that belongs to `NewRows`: frozen logits of the old tokens, learnt ones of the new."""

    def __init__(self, base: nn.Linear, first: int, more: nn.Parameter | None = None):
        super().__init__()
        weight = base.weight.detach()
        self.base = nn.Linear(base.in_features, first, bias=base.bias is not None, device="meta")
        self.base.weight = nn.Parameter(weight[:first].clone(), requires_grad=False)
        if base.bias is not None:
            self.base.bias = nn.Parameter(base.bias.detach()[:first].clone(), requires_grad=False)
        self.more = nn.Parameter(weight[first:].clone()) if more is None else more

    @property
    def weight(self) -> Tensor:
        return torch.cat([self.base.weight, self.more])

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.base(x), F.linear(x, self.more)], -1)

    def merged(self) -> nn.Linear:
        whole = nn.Linear(self.base.in_features, len(self.weight), bias=self.base.bias is not None, device="meta")
        whole.weight = nn.Parameter(self.weight.detach())
        if self.base.bias is not None:
            whole.bias = nn.Parameter(F.pad(self.base.bias.detach(), (0, len(self.more))))
        return whole


def adapt(
    lm: Any, *, rank: int = 16, alpha: float = 32.0, first: int | None = None, layers: Sequence[str] = LAYERS
) -> Any:
    """The model with adapters in its linear layers of these names, and all else frozen but the tokens from `first` on.

    lm: a transformers causal language model; changed in place and returned
    """
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise ValueError(f"`rank` must be a whole number of at least 1, got {rank!r}.")
    lm.requires_grad_(False)
    found = [(n, m) for n, m in lm.named_modules() if isinstance(m, nn.Linear) and n.rpartition(".")[2] in layers]
    if not found:
        known = sorted({n.rpartition(".")[2] for n, m in lm.named_modules() if isinstance(m, nn.Linear)})
        raise ValueError(
            f"`layers` must name linear layers of the model, got {', '.join(layers)}; it has {', '.join(known)}."
        )
    for name, layer in found:
        _put(lm, name, Adapted(layer, rank, alpha))
    if first is not None:
        tied = lm.get_input_embeddings().weight is lm.get_output_embeddings().weight
        rows = NewRows(lm.get_input_embeddings(), first)
        head = NewColumns(lm.get_output_embeddings(), first, rows.more if tied else None)
        lm.set_input_embeddings(rows)
        lm.set_output_embeddings(head)
    return lm


def merge(lm: Any) -> Any:
    """The model with plain layers again, which give what the adapted ones gave. Changed in place and returned."""
    for name, layer in list(lm.named_modules()):
        if isinstance(layer, Adapted | NewRows | NewColumns):
            _put(lm, name, layer.merged())
    if lm.config.tie_word_embeddings:
        lm.tie_weights()
    return lm.requires_grad_(True)


def weights(lm: nn.Module) -> dict[str, Tensor]:
    """What is learnt, alone. `lm.load_state_dict(these, strict=False)` puts it back into a model adapted alike."""
    learnt = {name for name, p in lm.named_parameters(remove_duplicate=False) if p.requires_grad}
    return {name: tensor for name, tensor in lm.state_dict().items() if name in learnt}


def _put(lm: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(lm.get_submodule(parent), last, layer)
