"""The linear head, stored as one block of rows for each task.

Masking the logits of all other tasks to -inf is the same as reading only the rows of one task, so a task
trains its own block and cannot touch another.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


def row_names(task: int) -> tuple[str, str]:
    """Names of a task's rows: weight [classes, D] and bias [classes]."""
    return (f"head.{task}.weight", f"head.{task}.bias")


def rows(state: Mapping[str, Tensor], task: int) -> tuple[Tensor, Tensor]:
    """A task's rows."""
    weight, bias = row_names(task)
    return state[weight], state[bias]


def start_task(task: int, classes: int, dim: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Fresh rows, as timm initialises a linear layer."""
    weight, bias = row_names(task)
    fresh = nn.init.trunc_normal_(torch.empty(classes, dim), std=0.02, generator=generator)
    return {weight: fresh, bias: torch.zeros(classes)}


def logits(state: Mapping[str, Tensor], features: Tensor, tasks: Sequence[int]) -> Tensor:
    """Features [B, D] -> logits [B, classes of `tasks`], in the order of `tasks`."""
    weights, biases = zip(*(rows(state, task) for task in tasks), strict=True)
    return nn.functional.linear(features, torch.cat(weights), torch.cat(biases))
