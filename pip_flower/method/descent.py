"""The plain training loop: one clipped optimizer step per loss."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn


def descend(
    losses: Iterable[Tensor], parameters: Sequence[Tensor], optimizer: torch.optim.Optimizer, clip_norm: float
) -> float:
    """A step for each loss; their mean. `losses` must be lazy: each is computed after the step before it."""
    seen = []
    for loss in losses:
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, clip_norm)
        optimizer.step()
        seen.append(loss.detach())
    # One synchronisation with the device per epoch, not per step.
    return float(torch.stack(seen).mean())
