"""BiC's bias correction: one line for the logits of each task."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pip_flower.models.heads.base import State


class BiasCorrection:
    """`bias.t.alpha` [1] and `bias.t.beta` [1], which start at (1, 0) and then change nothing."""

    def __init__(self, prefix: str = "bias") -> None:
        self.prefix = prefix

    def names(self, task: int) -> tuple[str, str]:
        """A task's line."""
        return (f"{self.prefix}.{task}.alpha", f"{self.prefix}.{task}.beta")

    def start_task(self, task: int) -> dict[str, Tensor]:
        """(1, 0)."""
        alpha, beta = self.names(task)
        return {alpha: torch.ones(1), beta: torch.zeros(1)}

    def corrected(self, state: State, logits: Tensor, sizes: Sequence[int], tasks: Sequence[int]) -> Tensor:
        """Logits o [B, C] -> alpha_t o + beta_t; the columns are those of `tasks` in turn, `sizes`
        of them."""
        columns = logits.split(list(sizes), dim=1)
        lines = [[state[name] for name in self.names(task)] for task in tasks]
        return torch.cat(
            [alpha * block + beta for block, (alpha, beta) in zip(columns, lines, strict=True)], dim=1
        )
