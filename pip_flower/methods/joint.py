"""Joint: pooled training of prompts and head, in one place on the data of all tasks seen.

It breaks the rules that the others keep (data is pooled, old samples are kept), and so shows what they cost
this model; other models may do better without breaking them.
All data are one task to it, whose prompts every sample gets: none can be chosen wrongly.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pip_flower.arrays import Arrays, NamedArrays, pick
from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import Config
from pip_flower.data.batches import batches
from pip_flower.data.samples import Samples
from pip_flower.fidelity import Paper
from pip_flower.method.base import Method
from pip_flower.method.descent import descend
from pip_flower.method.exchange import ClientJob, ClientUpdate
from pip_flower.method.registry import register
from pip_flower.method.workspace import Workspace
from pip_flower.models.heads import LinearHead
from pip_flower.models.prompts import Batch, PromptOptions, make_structure
from pip_flower.runtime.devices import adam
from pip_flower.runtime.streams import stream, torch_stream

# The task that all data belong to, as far as prompts are concerned.
_ONLY = 0


@dataclass(frozen=True)
class JointOptions:
    """The prompts."""

    prompt: PromptOptions


class Joint(Method):
    """The prompts and all head rows are trained, with the classes of all tasks seen as candidates."""

    options: JointOptions

    @classmethod
    def check(cls, config: Config) -> None:
        """Prompts that can be, and images that are in one place."""
        super().check(config)
        config.method.options.prompt.check()
        if config.partition.scheme == "local":
            raise ConfigError(
                "method.name",
                "joint trains in one place, but with partition.scheme=local every node keeps its own images",
                "Choose another method",
            )

    def __init__(self, workspace: Workspace, options: JointOptions) -> None:
        super().__init__(workspace, options)
        self.head = LinearHead(workspace.backbone.dim)
        self.structure = make_structure(options.prompt, workspace.backbone, Paper(), len(workspace.tasks))

    def samples(self, task: int, partition: int, round_: int) -> Samples:  # noqa: ARG002
        """Everybody's samples of all tasks so far."""
        train = self.workspace.data.train
        return train.take(np.flatnonzero(np.isin(train.labels, self.workspace.tasks.seen(task + 1))))

    def start_task(self, task: int, arrays: Arrays) -> NamedArrays:  # noqa: ARG002
        """Prompts with the first task, and head rows for each task's classes."""
        generator = torch_stream(self.workspace.config.seed, "start-task", task)
        added = self.structure.start_task(_ONLY, {}, generator) if task == 0 else {}
        prompts = {name: value.numpy() for name, value in added.items()}
        return prompts | self.workspace.fresh_head(self.head, task, generator)

    def draw(self, able: Sequence[int], count: int, rng: np.random.Generator) -> list[int]:  # noqa: ARG002
        """Always client 0, which stands for a place that has everybody's data."""
        return [0]

    def received(self, task: int) -> tuple[str, ...]:
        """The whole model."""
        return self.predicting(task + 1)

    def returned(self, task: int) -> tuple[str, ...]:
        """The whole model, trained."""
        return self.predicting(task + 1)

    def predicting(self, tasks: int) -> tuple[str, ...]:
        """The prompts, and the head rows of the tasks seen."""
        return (*self.structure.trained(_ONLY), *self.head.names_of(range(tasks)))

    def fit(self, job: ClientJob) -> ClientUpdate:
        """Adam on everything; cross-entropy over all classes seen."""
        training, device = self.workspace.config.training, self.workspace.device
        state = {
            name: torch.tensor(value, device=device, requires_grad=True)
            for name, value in pick(job.arrays, self.received(job.task)).items()
        }
        optimizer = adam(state.values(), training.learning_rate, device)

        def loss(batch: Batch) -> Tensor:
            return self._loss(state, batch, job.task + 1)

        means = []
        for epoch in range(training.epochs):
            given = self._batches(job, epoch)
            means.append(descend(given, loss, list(state.values()), optimizer, training.clip_norm))
        arrays = {name: value.detach().cpu().numpy() for name, value in state.items()}
        metrics = {"first_epoch_loss": means[0], "last_epoch_loss": means[-1]}
        return ClientUpdate(dict(arrays), len(job.samples), metrics)

    @torch.inference_mode()
    def scores(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:
        """Logits of all classes seen."""
        queries = self.workspace.queries(samples) if self.structure.needs_query(_ONLY) else None
        found = []
        for rows in batches(np.arange(len(samples)), self.workspace.config.evaluation.batch_size):
            images = self.workspace.views.test(samples.images[rows])
            query = None if queries is None else queries[rows]
            features = self.structure.forward(arrays, images, query, task=_ONLY, tasks=1).features
            found.append(self.head.logits(arrays, features, range(tasks)))
        return torch.cat(found)

    def _loss(self, state: Mapping[str, Tensor], batch: Batch, tasks: int) -> Tensor:
        prompted = self.structure.forward(state, batch.images, batch.queries, task=_ONLY, tasks=1)
        outputs = self.head.logits(state, prompted.features, range(tasks))
        matching = self.structure.matching_loss(prompted.similarity)
        return F.cross_entropy(outputs, batch.targets) + matching

    def _batches(self, job: ClientJob, epoch: int) -> Iterator[Batch]:
        """Targets are positions among all classes seen."""
        config, samples = self.workspace.config, job.samples
        positions = self.workspace.tasks.positions(samples.labels, job.task + 1)
        targets = torch.from_numpy(positions).to(self.workspace.device)
        queries = self.workspace.queries(samples)
        generator = torch_stream(config.seed, "views", job.round, job.partition, epoch)
        order = stream(config.seed, "batches", job.round, job.partition, epoch).permutation(len(samples))
        for rows in batches(order, config.training.batch_size):
            images = self.workspace.views.train(samples.images[rows], generator)
            yield Batch(images, queries[rows], targets[rows])


register(
    "joint",
    title="Pooled training of prompts and head",
    options=JointOptions,
    method=Joint,
    keeps="all images of all tasks, in one place",
)
