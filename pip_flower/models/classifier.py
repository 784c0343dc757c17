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


def start_task(task: int, classes: int, dim: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Fresh rows, as timm initialises a linear layer."""
    weight, bias = row_names(task)
    rows = nn.init.trunc_normal_(torch.empty(classes, dim), std=0.02, generator=generator)
    return {weight: rows, bias: torch.zeros(classes)}


def logits(state: Mapping[str, Tensor], features: Tensor, tasks: Sequence[int]) -> Tensor:
    """Features [B, D] -> logits [B, classes of `tasks`], in the order of `tasks`."""
    weight = torch.cat([state[row_names(task)[0]] for task in tasks])
    bias = torch.cat([state[row_names(task)[1]] for task in tasks])
    return nn.functional.linear(features, weight, bias)
