"""The plain training loop: one clipped optimizer step per batch."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

Batch = TypeVar("Batch")


def descend(
    batches: Iterable[Batch],
    loss: Callable[[Batch], Tensor],
    parameters: Sequence[Tensor],
    optimizer: torch.optim.Optimizer,
    clip_norm: float,
) -> float:
    """A step for each batch, with the loss that it has after the step before; the mean of the losses."""
    losses = []
    for batch in batches:
        value = loss(batch)
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        nn.utils.clip_grad_norm_(parameters, clip_norm)
        optimizer.step()
        losses.append(value.detach())
    # One synchronisation with the device per epoch, not per step.
    return float(torch.stack(losses).mean())
