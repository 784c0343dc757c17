"""The cosine head: the angle between a feature and a class's weight, whatever their lengths."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from pip_flower.models.heads.base import Head, State


class CosineHead(Head):
    """`head.t.weight` [classes, D], and `head.scale` [1], learnt, which all tasks share; it comes with task 0
    and starts at `scale`."""

    def __init__(self, width: int, prefix: str = "head", scale: float = 1.0) -> None:
        super().__init__(width, prefix)
        self.scale = scale

    @property
    def scale_name(self) -> str:
        """The scale, which a later task trains too though it is not among that task's names."""
        return f"{self.prefix}.scale"

    def weight_name(self, task: int) -> str:
        """A task's rows."""
        return f"{self.prefix}.{task}.weight"

    def names(self, task: int) -> tuple[str, ...]:
        """A task's rows, and with the first task the scale."""
        rows = self.weight_name(task)
        return (rows, self.scale_name) if task == 0 else (rows,)

    def start_task(self, task: int, classes: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Uniform within 1 / sqrt(D), as torch starts a linear layer."""
        bound = self.width**-0.5
        fresh = torch.empty(classes, self.width).uniform_(-bound, bound, generator=generator)
        rows = {self.weight_name(task): fresh}
        return rows | {self.scale_name: torch.full((1,), self.scale)} if task == 0 else rows

    def logits(self, state: State, features: Tensor, tasks: Sequence[int]) -> Tensor:
        """scale * cos(z, w)."""
        weights = torch.cat([state[self.weight_name(task)] for task in tasks])
        return state[self.scale_name] * F.linear(F.normalize(features, dim=1), F.normalize(weights, dim=1))
