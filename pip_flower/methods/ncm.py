"""NCM: nearest class mean over frozen features, by cosine. One round per task suffices."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.data.samples import Samples
from pip_flower.method.exchange import ClientJob
from pip_flower.method.merging import Merge, Sum
from pip_flower.method.registry import register
from pip_flower.method.reply_checks import RejectedError, check_counts
from pip_flower.method.round import Round
from pip_flower.methods.statistics import StatisticsMethod, as_tensor


@dataclass(frozen=True)
class NCMOptions:
    """There is nothing to choose."""


class NCM(StatisticsMethod):
    """`sum.t` [classes, D] and `count.t` [classes] from the clients; `mean.t` from the server."""

    def start_task(self, task: int, arrays: Arrays) -> NamedArrays:  # noqa: ARG002
        """Empty sums."""
        classes = len(self.workspace.tasks.classes[task])
        empty = np.zeros((classes, self.workspace.backbone.dim))
        return {f"sum.{task}": empty, f"count.{task}": np.zeros(classes)}

    def returned(self, task: int) -> tuple[str, ...]:
        """Class sums and counts."""
        return (f"sum.{task}", f"count.{task}")

    def predicting(self, tasks: int) -> tuple[str, ...]:
        """Class means and how many samples are behind them."""
        return tuple(f"{kind}.{task}" for task in range(tasks) for kind in ("mean", "count"))

    def merging(self, round_: Round) -> Mapping[str, Merge]:
        """A mean per class."""
        sums, counts = self.returned(round_.task)
        return {sums: Sum(counts, axis=0), counts: Sum()}

    def inspect(self, task: int, reply: Arrays, samples: int) -> None:
        """Counts of the client's samples; nothing comes of nothing."""
        sums, count = (reply[name] for name in self.returned(task))
        check_counts(f"count.{task}", count, samples)
        if np.any(sums[count == 0]):
            raise RejectedError(f"sum.{task} has a class that count.{task} does not have")

    def summed(self, job: ClientJob) -> NamedArrays:
        """Sum of features and number of samples of each class."""
        members = self.one_hot(job.samples.labels, job.task)
        sums = members.T @ self.features(job.samples)
        return {f"sum.{job.task}": sums, f"count.{job.task}": members.sum(axis=0)}

    def solve(self, tasks: int, arrays: Arrays) -> NamedArrays:
        """The means of the newest task's classes."""
        sums, count = (np.asarray(arrays[f"{kind}.{tasks - 1}"]) for kind in ("sum", "count"))
        return {f"mean.{tasks - 1}": sums / np.maximum(count, 1)[:, None]}

    def scores(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:
        """Cosine to each class mean; a class that nobody reported cannot win."""
        means = as_tensor(arrays, [f"mean.{task}" for task in range(tasks)])
        count = as_tensor(arrays, [f"count.{task}" for task in range(tasks)])
        features = torch.from_numpy(self.features(samples)).to(means.device)
        cosine = F.normalize(features, dim=1) @ F.normalize(means, dim=1).T
        return cosine.masked_fill(count == 0, -torch.inf)


register("ncm", title="Nearest class mean", options=NCMOptions, method=NCM, sends="class feature sums")
