"""The linear head."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pip_flower.models.heads.base import Head, State


class LinearHead(Head):
    """`head.t.weight` [classes, D] and `head.t.bias` [classes]."""

    def names(self, task: int) -> tuple[str, str]:
        """A task's rows."""
        return (f"{self.prefix}.{task}.weight", f"{self.prefix}.{task}.bias")

    def start_task(self, task: int, classes: int, generator: torch.Generator) -> dict[str, Tensor]:
        """As timm initialises a linear layer."""
        weight, bias = self.names(task)
        fresh = nn.init.trunc_normal_(torch.empty(classes, self.width), std=0.02, generator=generator)
        return {weight: fresh, bias: torch.zeros(classes)}

    def rows(self, state: State, task: int) -> tuple[Tensor, Tensor]:
        """A task's weight and bias."""
        weight, bias = self.names(task)
        return state[weight], state[bias]

    def logits(self, state: State, features: Tensor, tasks: Sequence[int]) -> Tensor:
        """W z + b."""
        weights, biases = zip(*(self.rows(state, task) for task in tasks), strict=True)
        return nn.functional.linear(features, torch.cat(weights), torch.cat(biases))
