"""A linear head that the server fits anew to features drawn from what it knows of each class."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.config.schema import Bounds
from pip_flower.models.heads import Head

Rows = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True)
class RefitOptions:
    """Features drawn for each class, and SGD: passes over them, batches, rate, momentum."""

    draws: Annotated[int, Bounds(1)]
    epochs: Annotated[int, Bounds(1)]
    batch_size: Annotated[int, Bounds(1)]
    learning_rate: Annotated[float, Bounds(0, exclusive_minimum=True)]
    momentum: Annotated[float, Bounds(0, 0.999)]


def refit(
    rows: Rows,
    drawn: Iterable[tuple[Tensor, Tensor]],
    options: RefitOptions,
    generator: torch.Generator,
    *,
    temperature: float = 0.0,
    annealed: bool = False,
) -> Rows:
    """Weight [K, D] and bias [K] after unmasked cross-entropy on drawn features and targets, one set for each
    epoch. With a temperature logits are scaled to unit length and divided by it; annealed, the rate falls to
    zero along a cosine."""
    weight, bias = (torch.tensor(value, dtype=torch.float32, requires_grad=True) for value in rows)
    optimizer = torch.optim.SGD([weight, bias], options.learning_rate, options.momentum)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs) if annealed else None
    for features, targets in drawn:
        for part in torch.randperm(len(targets), generator=generator).split(options.batch_size):
            logits = F.linear(features[part], weight, bias)
            if temperature:
                logits = F.normalize(logits, dim=1) / temperature
            loss = F.cross_entropy(logits, targets[part])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        if schedule is not None:
            schedule.step()
    return weight.detach().numpy(), bias.detach().numpy()


def joined_rows(head: Head, arrays: Arrays, tasks: int) -> Rows:
    """The head's weight and bias for the classes of the first `tasks` tasks, as copies."""
    weights, biases = zip(
        *([arrays[name] for name in head.names(task)] for task in range(tasks)), strict=True
    )
    return np.concatenate(weights), np.concatenate(biases)


def split_rows(head: Head, rows: Rows, classes: Sequence[int]) -> NamedArrays:
    """The inverse of `joined_rows`, for tasks of so many classes."""
    ends = np.cumsum(classes)[:-1]
    found: NamedArrays = {}
    for task, pair in enumerate(zip(*(np.split(part, ends) for part in rows), strict=True)):
        found |= dict(zip(head.names(task), pair, strict=True))
    return found
