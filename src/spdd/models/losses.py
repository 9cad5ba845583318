"""What a next-item model is punished for: three losses over the same states and targets, one number per target."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def softmax(hidden: Tensor, table: Tensor, target: Tensor) -> Tensor:
    """(N,) cross-entropy over all items. hidden: (N, D)  table: (M, D)  target: (N,)"""
    return F.cross_entropy(hidden @ table.T, target, reduction="none")


def sampled(
    hidden: Tensor, table: Tensor, target: Tensor, share: Tensor, negatives: int, generator: torch.Generator
) -> Tensor:
    """(N,) cross-entropy over a sample: the batch's own targets, and `negatives` uniform items for each positive.

    An item that is drawn often would be pushed down too often, so the logarithm of how often it is expected in the
    sample is taken off its score (the logQ correction): N share + negatives / M, over both ways to be drawn. The sum
    over the sample is then an unbiased estimate of the sum over all other items. Draws of the positive are left out.

    share: (M,) share of training targets each item has
    """
    N, M = len(target), len(table)
    own = F.embedding(target, table)  # (N, D)
    drawn = torch.randint(M, (N, negatives), generator=generator, device=target.device)
    often = (N * share + negatives / M).log()  # (M,)
    beside = (hidden @ own.T).float() - often[target]
    apart = torch.einsum("nd,nsd->ns", hidden, F.embedding(drawn, table)).float() - often[drawn]
    beside = beside.masked_fill(target == target[:, None], -torch.inf)
    apart = apart.masked_fill(drawn == target[:, None], -torch.inf)
    positive = (hidden * own).sum(1).float()
    return torch.cat([positive[:, None], beside, apart], 1).logsumexp(1) - positive


def bce(hidden: Tensor, table: Tensor, target: Tensor, negatives: int, generator: torch.Generator) -> Tensor:
    """(N,) binary cross-entropy of the target, plus the mean over uniform negatives: the original SASRec has one."""
    drawn = torch.randint(len(table), (len(target), negatives), generator=generator, device=target.device)
    positive = (hidden * table[target]).sum(1).float()
    negative = torch.einsum("nd,nsd->ns", hidden, F.embedding(drawn, table)).float()
    negative = F.softplus(negative).masked_fill(drawn == target[:, None], 0)
    return F.softplus(-positive) + negative.mean(1)
