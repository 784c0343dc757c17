"""Methods without gradients: clients report sums over frozen features, the server solves.

Sums do not care how samples are spread over clients, so the classifier is that of the pooled data of all
clients that were drawn in the task.
"""

from abc import abstractmethod
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.data.samples import Samples
from pip_flower.method.base import Method
from pip_flower.method.exchange import ClientJob, ClientUpdate
from pip_flower.method.merging import Merge
from pip_flower.method.reply_checks import ArraySpec
from pip_flower.method.round import Round

Floats = NDArray[np.float64]


class StatisticsMethod(Method):
    """Base of `ncm` and `ranpac`; features are q(x) of the frozen ViT in float64.

    A client reports once per task: counting it twice would skew the sums.
    """

    asks_once_per_task = True

    @abstractmethod
    def solve(self, tasks: int, arrays: Arrays) -> NamedArrays:
        """On the server, after a task: the classifier that the sums of the first `tasks` tasks give."""

    @abstractmethod
    def summed(self, job: ClientJob) -> NamedArrays:
        """The sums over one client's samples, under the names of `returned`."""

    @abstractmethod
    def merging(self, round_: Round) -> Mapping[str, Merge]:
        """The sums of `returned`, with the counts behind those that divide into means."""

    def end_task(self, task: int, arrays: Arrays) -> NamedArrays:
        """The classifier of all tasks seen."""
        return self.solve(task + 1, arrays)

    def expected(self, task: int, arrays: Arrays, samples: int) -> dict[str, ArraySpec]:
        """Sums may be as long as they have terms."""
        return {
            name: ArraySpec.like(arrays[name], scale=samples * self.longest()) for name in self.sent_up(task)
        }

    def longest(self) -> float:
        """By how much the terms of a sum may be longer than a feature."""
        return 1.0

    def received(self, task: int) -> tuple[str, ...]:  # noqa: ARG002
        """Nothing: the frozen features do not depend on what others found."""
        return ()

    def fit(self, job: ClientJob) -> ClientUpdate:
        """The sums over the client's samples."""
        return ClientUpdate(self.summed(job), len(job.samples), {})

    def features(self, samples: Samples) -> Floats:
        """Frozen features [n, D]."""
        found: Floats = self.workspace.queries(samples).cpu().numpy().astype(np.float64)
        return found

    def one_hot(self, labels: NDArray[np.int64], task: int) -> Floats:
        """Labels of `task` [n] -> [n, classes of the task]."""
        return np.eye(len(self.workspace.tasks.classes[task]))[self.workspace.tasks.targets(labels, task)]


def as_tensor(arrays: Mapping[str, Tensor], names: list[str]) -> Tensor:
    """The named arrays joined along their first axis."""
    return torch.cat([arrays[name] for name in names])
