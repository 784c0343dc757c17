"""Weights that make up for how unevenly classes are learnt, from the gradients that samples send to their own
logit."""

import torch
import torch.nn.functional as F
from torch import Tensor


def own_gradients(logits: Tensor, positions: Tensor) -> Tensor:
    """|sigmoid(o_y) - 1| [B] of logits [B, C]: how far a sample is from being learnt; no gradient flows."""
    return (torch.sigmoid(logits.detach()).gather(1, positions[:, None])[:, 0] - 1).abs()


def balanced(sizes: Tensor, groups: Tensor) -> Tensor:
    """Each of `sizes` [B] by the mean of its group [B], so that the weights of every group average 1."""
    weights = torch.ones_like(sizes)
    for group in groups.unique():
        members = groups == group
        weights[members] = sizes[members] / sizes[members].mean().clamp(min=torch.finfo(sizes.dtype).tiny)
    return weights


def one_hot(positions: Tensor, classes: int) -> Tensor:
    """Labels as targets of sigmoids [B, C]."""
    return F.one_hot(positions, classes).float()


def weighted_sigmoid_loss(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Sigmoid cross-entropy of logits [B, C], each sample by its weight [B]; mean over batch and classes."""
    losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    return (weights[:, None] * losses).mean()
