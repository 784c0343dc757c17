"""The common ground of methods that train a whole network: what travels, and how it predicts."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.config.sections import Config
from pip_flower.data.samples import Samples
from pip_flower.method.base import Method
from pip_flower.method.exchange import ClientJob, ClientUpdate
from pip_flower.method.workspace import Workspace
from pip_flower.methods.networks.model import ModelOptions, ModelTraining, Step
from pip_flower.methods.networks.training import NetworkOptions, NetworkTraining


class NetworkMethod(Method):
    """Every array of the network travels both ways, with the head rows of the tasks seen."""

    uses_backbone = False
    options: ModelOptions
    training: ModelTraining

    @classmethod
    def check(cls, config: Config) -> None:
        """What a network can be trained with."""
        super().check(config)
        NetworkTraining.check(config)

    def __init__(self, workspace: Workspace, options: ModelOptions) -> None:
        super().__init__(workspace, options)
        self.training = self.make_training()

    def make_training(self) -> ModelTraining:
        """A network of timm's with a linear head."""
        assert isinstance(self.options, NetworkOptions)
        return NetworkTraining(self.workspace, self.options)

    def fingerprint(self) -> str:
        """The architecture."""
        return self.training.fingerprint()

    def start_task(self, task: int, arrays: Arrays) -> NamedArrays:  # noqa: ARG002
        """The network, before the first task, and head rows for the task's classes."""
        return self.training.start_task(task)

    def received(self, task: int) -> tuple[str, ...]:
        """The network and the head rows of all tasks so far."""
        return self.training.names(task + 1)

    def returned(self, task: int) -> tuple[str, ...]:
        """All that was received, trained."""
        return self.training.names(task + 1)

    def predicting(self, tasks: int) -> tuple[str, ...]:
        """The whole model."""
        return self.training.names(tasks)

    def inspect(self, task: int, reply: Arrays, samples: int) -> None:  # noqa: ARG002
        """A network that can be."""
        self.training.inspect(reply)

    def fit(self, job: ClientJob) -> ClientUpdate:
        """SGD on the client's samples of the task."""
        trained = self.training.fit(job, job.samples, 0, lambda step: self.loss(step, job))
        return ClientUpdate(trained.arrays, len(job.samples), trained.metrics)

    def loss(self, step: Step, job: ClientJob) -> Tensor:
        """Cross-entropy over the classes of the task."""
        targets = self.workspace.tasks.targets(step.labels, job.task)
        return F.cross_entropy(step.logits([job.task]), torch.from_numpy(targets).to(step.images.device))

    def columns(self, step: Step, task: int) -> Tensor:
        """The labels of a step as columns among the classes seen by the end of `task` [B]."""
        positions = self.workspace.tasks.positions(step.labels, task + 1)
        return torch.from_numpy(positions).to(step.images.device)

    def class_counts(self, task: int) -> tuple[int, int]:
        """How many classes are old and how many are new in `task`: n and m."""
        return len(self.workspace.tasks.seen(task)), len(self.workspace.tasks.classes[task])

    def scores(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:
        """Logits of all classes seen."""
        return self.training.scores(arrays, samples, tasks)
