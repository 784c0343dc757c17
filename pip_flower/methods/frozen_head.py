"""Frozen head: a linear head on the features of the frozen ViT, averaged; what prompts must beat."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.data.batches import batches
from pip_flower.data.samples import Samples
from pip_flower.method.base import Method
from pip_flower.method.descent import descend
from pip_flower.method.exchange import ClientJob, ClientUpdate
from pip_flower.method.registry import register
from pip_flower.method.workspace import Workspace
from pip_flower.models.heads import LinearHead
from pip_flower.runtime.streams import stream


@dataclass(frozen=True)
class FrozenHeadOptions:
    """There is nothing to choose; `training` says how the head is trained."""


class FrozenHead(Method):
    """Only the head rows of the current task are trained, with all other logits masked."""

    def __init__(self, workspace: Workspace, options: FrozenHeadOptions) -> None:
        super().__init__(workspace, options)
        self.head = LinearHead(workspace.backbone.dim)

    def start_task(self, task: int, arrays: Arrays) -> NamedArrays:  # noqa: ARG002
        """Fresh rows."""
        return self.workspace.fresh_head(self.head, task)

    def received(self, task: int) -> tuple[str, ...]:
        """The task's rows."""
        return self.head.names(task)

    def returned(self, task: int) -> tuple[str, ...]:
        """The task's rows, trained."""
        return self.head.names(task)

    def predicting(self, tasks: int) -> tuple[str, ...]:
        """The rows of all tasks seen."""
        return self.head.names_of(range(tasks))

    def fit(self, job: ClientJob) -> ClientUpdate:
        """Adam on the task's rows."""
        config, device = self.config, self.workspace.device
        state = {name: torch.tensor(value, device=device) for name, value in job.arrays.items()}
        for value in state.values():
            value.requires_grad_(True)
        optimizer = torch.optim.Adam(state.values(), lr=config.training.learning_rate)
        features = self.workspace.queries(job.samples)
        targets = torch.from_numpy(self.workspace.tasks.targets(job.samples.labels, job.task)).to(device)

        def loss(rows: NDArray[np.int64]) -> Tensor:
            return F.cross_entropy(self.head.logits(state, features[rows], [job.task]), targets[rows])

        means = []
        for epoch in range(config.training.epochs):
            rng = stream(config.seed, "batches", job.round, job.partition, epoch)
            order = batches(rng.permutation(len(job.samples)), config.training.batch_size)
            means.append(descend(order, loss, list(state.values()), optimizer, config.training.clip_norm))
        arrays = {name: value.detach().cpu().numpy() for name, value in state.items()}
        metrics = {"first_epoch_loss": means[0], "last_epoch_loss": means[-1]}
        return ClientUpdate(dict(arrays), len(job.samples), metrics)

    def scores(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:
        """Logits of all classes seen."""
        return self.head.logits(arrays, self.workspace.queries(samples), range(tasks))


register(
    "frozen-head",
    title="Linear head on frozen features",
    options=FrozenHeadOptions,
    method=FrozenHead,
)
