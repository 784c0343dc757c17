"""Fed-CPrompt: CODA-Prompt's components, kept near the global ones and away from those of finished tasks.

After G. Bagwe, X. Yuan, M. Pan and L. Zhang, "Fed-CPrompt: Contrastive Prompt for Rehearsal-Free Federated
Continual Learning", workshop on Federated Learning and Analytics at ICML 2023. A client adds to the loss of
its task's components P

    weight * max(|P - P_g| - gamma * min over finished tasks i of |P - P_i| + margin, 0)

where P_g are the components as the round began; in the first task there are no P_i, and the first distance
stands alone. The released code takes distances between features instead, with factors of its own.

Components and head rows have their task in their name, so that only those who train a task are averaged into
it and finished ones never change: what the paper's asynchronous learning rests on. Left open: clients at
different tasks in the same round, because the schedule is one for all; the paper's values of the three
factors, which are ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from pip_flower.config.schema import Bounds
from pip_flower.method.exchange import ClientJob
from pip_flower.methods.pip.pip import PIP, PIPOptions
from pip_flower.methods.pip.training import Penalty
from pip_flower.models.prompts import CODAOptions, State


@dataclass(frozen=True)
class ContrastOptions:
    """The factors of the contrastive loss."""

    weight: Annotated[float, Bounds(0)]
    gamma: Annotated[float, Bounds(0)]
    margin: Annotated[float, Bounds(0)]


@dataclass(frozen=True)
class FedCPromptOptions(PIPOptions):
    """PIP's options on CODA-Prompt's components, and those of the contrastive loss."""

    prompt: CODAOptions
    contrast: ContrastOptions


class FedCPrompt(PIP):
    """As PIP, with a contrastive term on the prompts."""

    options: FedCPromptOptions
    has_released_code = False

    def penalty(self, job: ClientJob) -> Penalty | None:
        """The contrastive loss against the prompts of this round's start and of finished tasks."""
        if not self.options.contrast.weight:
            return None
        name = f"coda.{job.task}.prompt"
        received = torch.tensor(job.arrays[name], device=self.workspace.device)

        def loss(prompts: State) -> Tensor:
            finished = [prompts[f"coda.{task}.prompt"] for task in range(job.task)]
            return contrast(prompts[name], received, finished, self.options.contrast)

        return loss


def contrast(own: Tensor, received: Tensor, finished: Sequence[Tensor], options: ContrastOptions) -> Tensor:
    """Prompts near those that were received, and farther from all finished ones by a margin."""
    near: Tensor = torch.linalg.vector_norm(own - received)
    if not finished:
        return options.weight * near
    far: Tensor = torch.stack([torch.linalg.vector_norm(own - other) for other in finished]).min()
    return options.weight * (near - options.gamma * far + options.margin).relu()
