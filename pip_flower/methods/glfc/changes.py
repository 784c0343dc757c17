"""When a client takes a new task to have begun, and which classes then enter its memory."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.config.schema import Bounds, ConfigError
from pip_flower.config.sections import Config
from pip_flower.data.tasks import split_tasks
from pip_flower.method.exchange import ClientJob
from pip_flower.methods.networks.model import ModelTraining

ENTROPY, TRAINED = "change.entropy", "change.trained"


@dataclass(frozen=True)
class ChangeOptions:
    """By the schedule, or by a rise of the entropy of the global model on the client's own samples."""

    by: Literal["schedule", "entropy"]
    rise: Annotated[float, Bounds(0)]

    def check(self, config: Config) -> None:
        """Refuse a rise that even a model that knows nothing does not reach."""
        classes = len(split_tasks(config).classes[0])
        if self.by == "entropy" and self.rise >= np.log(classes):
            raise ConfigError(
                "method.change.rise",
                f"the entropy over the {classes} classes of the first task is {np.log(classes):.3g} at most, "
                f"so that a rise above {self.rise:g} never comes",
                "Give a smaller one, or method.change.by=schedule",
            )


@dataclass(frozen=True)
class Change:
    """Whether a task has begun for the client, the entropy that it was told by, and the tasks that it has
    trained."""

    signal: bool
    entropy: float
    trained: tuple[int, ...]

    def kept(self, task: int) -> NamedArrays:
        """What a client remembers of it after it has trained `task`."""
        trained = sorted({*self.trained, task})
        return {ENTROPY: np.array([self.entropy]), TRAINED: np.array(trained, dtype=np.int64)}


class ChangeDetector:
    """Looks at the global model as a client receives it, loaded into the network of `training`."""

    def __init__(self, training: ModelTraining, options: ChangeOptions) -> None:
        self.training = training
        self.options = options

    def look(self, job: ClientJob) -> Change:
        """Whether the job's task is new to the client."""
        trained = tuple(int(task) for task in job.memory.get(TRAINED, ()))
        if self.options.by == "schedule":
            return Change(job.task not in trained, 0.0, trained)
        before = float(job.memory[ENTROPY][0]) if ENTROPY in job.memory else 0.0
        now = self._entropy(job.arrays, job)
        return Change(now - before > self.options.rise, now, trained)

    @torch.inference_mode()
    def _entropy(self, arrays: Arrays, job: ClientJob) -> float:
        """Mean entropy, over all classes seen, of the loaded network on the client's samples of the task."""
        head, device = self.training.head, self.training.workspace.device
        names = head.names_of(range(job.task + 1))
        rows = {name: torch.as_tensor(arrays[name], device=device) for name in names}
        features = self.training.features(job.samples)
        return float(mean_entropy(head.logits(rows, features, range(job.task + 1))))


def mean_entropy(logits: Tensor) -> Tensor:
    """Of the softmax of logits [n, C], in nats."""
    logs = logits.log_softmax(dim=1)
    return -(logs.exp() * logs).sum(dim=1).mean()
