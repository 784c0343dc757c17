"""The end of a task: epochs on as many samples of old classes as of new ones, with the encoder frozen."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from pip_flower.arrays import pick
from pip_flower.config.schema import Bounds
from pip_flower.method.exchange import ClientJob, ClientUpdate, Exchange
from pip_flower.method.merging import Kept, Merge
from pip_flower.method.round import Round
from pip_flower.methods.dytox.transformer import TransformerTraining
from pip_flower.methods.networks.model import Stage, Step
from pip_flower.methods.rehearsal.holdings import rehearsal
from pip_flower.methods.rehearsal.memory import MemoryOptions
from pip_flower.models.network import load_arrays


@dataclass(frozen=True)
class TuningOptions:
    """How many epochs (0 is none), and the learning rate."""

    epochs: Annotated[int, Bounds(0)]
    learning_rate: Annotated[float, Bounds(0, exclusive_minimum=True)]


class BalancedTuning(Exchange):
    """Clients choose exemplars of the task's classes with the final model and tune the block of task
    attention and the newest token and rows on their whole memory; in the first task they only choose."""

    def __init__(self, training: TransformerTraining, options: TuningOptions, memory: MemoryOptions) -> None:
        super().__init__(training.workspace)
        self.training = training
        self.options = options
        self.memory = memory

    def received(self, task: int) -> tuple[str, ...]:
        """The model, with the rows that training had beside it."""
        return (*self.training.names(task + 1), *(self.training.divergence.names(task) if task else ()))

    def returned(self, task: int) -> tuple[str, ...]:
        """What is tuned."""
        return (*self.training.head.block_names(), *self.training.head.own_names(task))

    def merging(self, round_: Round) -> Mapping[str, Merge]:
        """By mean; nothing is tuned in the first task."""
        return super().merging(round_) if round_.task else dict.fromkeys(self.returned(0), Kept())

    def fit(self, job: ClientJob) -> ClientUpdate:
        """Choose, then tune."""
        load_arrays(self.training.network, job.arrays)
        exemplars = rehearsal(self.workspace, self.memory, job).exemplars
        unit = self.training.unit_features(job.samples)
        memory = exemplars.updated(job.memory, job.samples, unit, None)
        balanced = exemplars.rehearsed(memory, self.workspace.data.train, excluding=())
        arrays, metrics = pick(job.arrays, self.returned(job.task)), {}
        if job.task:
            first = self.config.training.epochs
            epochs = range(first, first + self.options.epochs)
            stage = Stage(epochs, self.options.learning_rate, network=False)
            trained = self.training.fit(job, balanced, 0, lambda step: self.loss(step, job.task), stage)
            arrays, metrics = pick(trained.arrays, self.returned(job.task)), trained.metrics
        return ClientUpdate(arrays, len(job.samples), metrics, memory)

    def loss(self, step: Step, task: int) -> Tensor:
        """Sigmoid cross-entropy over all classes seen."""
        logits = step.logits(range(task + 1))
        positions = torch.from_numpy(self.workspace.tasks.positions(step.labels, task + 1)).to(logits.device)
        return F.binary_cross_entropy_with_logits(logits, F.one_hot(positions, logits.shape[1]).float())
