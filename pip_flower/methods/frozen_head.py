"""Frozen head: a linear head on the features of the frozen ViT, averaged; what prompts must beat."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pip_flower.data.samples import Samples
from pip_flower.method.descent import descend
from pip_flower.arrays import Arrays
from pip_flower.method.base import ClientJob, ClientUpdate, Method
from pip_flower.method.registry import register
from pip_flower.models import classifier
from pip_flower.runtime.streams import stream, torch_stream
from pip_flower.rounds.averaging import AveragingStrategy
from pip_flower.data.batches import batches


@dataclass(frozen=True)
class FrozenHeadOptions:
    """There is nothing to choose; `training` says how the head is trained."""


class FrozenHead(Method):
    """Only the head rows of the current task are trained, with all other logits masked."""

    def start_task(self, task: int, arrays: Arrays) -> dict[str, NDArray[Any]]:  # noqa: ARG002
        """Fresh rows."""
        generator = torch_stream(self.bench.config.seed, "start-task", task)
        classes = len(self.bench.tasks.classes[task])
        rows = classifier.start_task(task, classes, self.bench.backbone.dim, generator)
        return {name: value.numpy() for name, value in rows.items()}

    def received(self, task: int) -> tuple[str, ...]:
        """The task's rows."""
        return classifier.row_names(task)

    def returned(self, task: int) -> tuple[str, ...]:
        """The task's rows."""
        return classifier.row_names(task)

    def predicting(self, tasks: int) -> tuple[str, ...]:
        """The rows of all tasks seen."""
        return tuple(name for task in range(tasks) for name in classifier.row_names(task))

    def fit(self, job: ClientJob) -> ClientUpdate:
        """Adam on the task's rows."""
        config, device = self.bench.config, self.bench.device
        state = {name: torch.tensor(value, device=device) for name, value in job.arrays.items()}
        for value in state.values():
            value.requires_grad_(True)
        optimizer = torch.optim.Adam(state.values(), lr=config.training.learning_rate)
        features = self.bench.queries(job.samples)
        targets = torch.from_numpy(self.bench.tasks.targets(job.samples.labels, job.task)).to(device)
        means = []
        for epoch in range(config.training.epochs):
            rng = stream(config.seed, "batches", job.round, job.partition, epoch)
            losses = (
                F.cross_entropy(classifier.logits(state, features[rows], [job.task]), targets[rows])
                for rows in batches(rng.permutation(len(job.samples)), config.training.batch_size)
            )
            means.append(descend(losses, list(state.values()), optimizer, config.training.clip_norm))
        arrays = {name: value.detach().cpu().numpy() for name, value in state.items()}
        metrics = {"first_epoch_loss": means[0], "last_epoch_loss": means[-1]}
        return ClientUpdate(dict(arrays), len(job.samples), metrics)

    def scores(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:
        """Logits of all classes seen."""
        return classifier.logits(arrays, self.bench.queries(samples), range(tasks))


register(
    "frozen-head",
    title="Linear head on frozen features",
    options=FrozenHeadOptions,
    method=FrozenHead,
    strategy=AveragingStrategy,
)
