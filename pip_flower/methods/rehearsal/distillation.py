"""Losses that keep a model near its teacher, the model at the end of the task before."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from pip_flower.models.stages import pooled


def softened(logits: Tensor, teacher_logits: Tensor, temperature: float, squared: bool = False) -> Tensor:
    """KD_T: the cross-entropy of softmax(o / T) to softmax(ô / T), both logits [B, C] of the same classes,
    mean over the batch; times T^2 if `squared`, so that gradients keep their size."""
    wanted = (teacher_logits / temperature).softmax(dim=1)
    loss = -(wanted * (logits / temperature).log_softmax(dim=1)).sum(dim=1).mean()
    return loss * temperature**2 if squared else loss


def taskwise(
    logits: Tensor, teacher_logits: Tensor, sizes: Sequence[int], temperature: float, squared: bool = True
) -> Tensor:
    """SS-IL's sum of KD_T over the old tasks, each on its own `sizes[t]` columns; logits [B, C] may have more
    columns than the teacher's [B, sum of sizes]."""
    taught = teacher_logits.split(list(sizes), dim=1)
    old = logits[:, : sum(sizes)].split(list(sizes), dim=1)
    losses = [softened(*pair, temperature, squared) for pair in zip(old, taught, strict=True)]
    return sum(losses, logits.new_zeros(()))


def sigmoid_targets(labels_one_hot: Tensor, teacher_logits: Tensor) -> Tensor:
    """iCaRL's y' [B, C]: the teacher's sigmoid [B, n] on the first n columns, which are the old classes, and
    the labels on the others. An exemplar's own label is overwritten too."""
    targets = labels_one_hot.clone()
    targets[:, : teacher_logits.shape[1]] = torch.sigmoid(teacher_logits)
    return targets


def sigmoid_distillation(logits: Tensor, positions: Tensor, teacher_logits: Tensor | None) -> Tensor:
    """iCaRL's loss: sigmoid cross-entropy of logits [B, C] to y', mean over batch and classes; the
    labels are the columns `positions` [B]."""
    targets = F.one_hot(positions, logits.shape[1]).float()
    if teacher_logits is not None:
        targets = sigmoid_targets(targets, teacher_logits)
    return F.binary_cross_entropy_with_logits(logits, targets)


def feature_cosine(features: Tensor, teacher_features: Tensor) -> Tensor:
    """PODNet Flat: 1 - cos(z, ẑ) of features [B, D], mean over the batch."""
    return (1 - F.cosine_similarity(features, teacher_features, dim=1)).mean()


def pooled_distance(maps: Sequence[Tensor], teacher_maps: Sequence[Tensor]) -> Tensor:
    """PODNet Spatial: the Euclidean distance of the descriptors of each stage's map [B, C_i, H_i, W_i], mean
    over batch and stages."""
    distances = [
        torch.linalg.vector_norm(pooled(own) - pooled(taught), dim=1)
        for own, taught in zip(maps, teacher_maps, strict=True)
    ]
    return torch.stack(distances).mean()
