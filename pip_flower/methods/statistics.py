"""Methods without gradients: clients report sums over frozen features, the server solves.

Sums do not care how samples are spread over clients, so the classifier is that of the pooled data of all
clients that were drawn in the task.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pip_flower.data.samples import Samples
from pip_flower.arrays import Arrays
from pip_flower.method.base import ClientJob, ClientUpdate, Method
from pip_flower.method.reply_checks import ArraySpec

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Grouping:
    """A sum over samples, as one mean per entry of `axis` (one in all without an axis), and the name of the
    counts behind the means."""

    counts: str
    axis: int | None = None


class StatisticsMethod(Method):
    """Base of `ncm` and `ranpac`; features are q(x) of the frozen ViT in float64."""

    @abstractmethod
    def solve(self, tasks: int, arrays: Arrays) -> dict[str, NDArray[Any]]:
        """On the server, after a task: the classifier that the sums of the first `tasks` tasks give."""

    @abstractmethod
    def summed(self, job: ClientJob) -> dict[str, NDArray[Any]]:
        """The sums over one client's samples, under the names of `returned`."""

    @abstractmethod
    def groups(self, task: int) -> dict[str, Grouping]:
        """How the sums of `returned` divide into means; what is not listed is itself a count."""

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
        found: Floats = self.bench.queries(samples).cpu().numpy().astype(np.float64)
        return found

    def one_hot(self, labels: NDArray[np.int64], task: int) -> Floats:
        """Labels of `task` [n] -> [n, classes of the task]."""
        return np.eye(len(self.bench.tasks.classes[task]))[self.bench.tasks.targets(labels, task)]


def as_tensor(arrays: Mapping[str, Tensor], names: list[str]) -> Tensor:
    """The named arrays joined along their first axis."""
    return torch.cat([arrays[name] for name in names])
