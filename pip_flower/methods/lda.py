"""LDA: linear discriminant analysis over frozen features, from sums. One round per task suffices.

What pip-drift is without prompts: class means and one covariance of all classes, added up over clients.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.config.schema import Bounds
from pip_flower.data.samples import Samples
from pip_flower.method.exchange import ClientJob
from pip_flower.method.merging import Merge, Sum
from pip_flower.method.registry import register
from pip_flower.method.reply_checks import RejectedError, check_class_sums
from pip_flower.method.round import Round
from pip_flower.methods.moments import nearest_moment, packed, unpacked
from pip_flower.methods.ncm import NCM
from pip_flower.methods.pip.discriminant import Gaussians, discriminant
from pip_flower.methods.statistics import Floats


@dataclass(frozen=True)
class LDAOptions:
    """Which covariance classes share, and how far it is moved towards its mean variance."""

    covariance: Literal["diagonal", "full"]
    shrinkage: Annotated[float, Bounds(0, 1)]


class LDA(NCM):
    """NCM's sums and `second.t`: the sum of z z' over the task's samples, of which there are `total.t`, by
    its upper triangle or its diagonal; `weight` [K, D] and `bias` [K] from the server."""

    options: LDAOptions

    def start_task(self, task: int, arrays: Arrays) -> NamedArrays:
        """Empty sums."""
        dim = self.workspace.backbone.dim
        size = dim if self.options.covariance == "diagonal" else dim * (dim + 1) // 2
        second = {f"second.{task}": np.zeros(size), f"total.{task}": np.zeros(1)}
        return super().start_task(task, arrays) | second

    def returned(self, task: int) -> tuple[str, ...]:
        """Class sums and counts, and the second moment."""
        return (*super().returned(task), f"second.{task}", f"total.{task}")

    def predicting(self, tasks: int) -> tuple[str, ...]:  # noqa: ARG002
        """The solved head."""
        return ("weight", "bias")

    def longest(self) -> float:
        """A product of two features."""
        return float(self.config.validation.max_norm)

    def merging(self, round_: Round) -> Mapping[str, Merge]:
        """A mean per class, and one second moment."""
        sums, counts, second, total = self.returned(round_.task)
        return {sums: Sum(counts, axis=0), counts: Sum(), second: Sum(total), total: Sum()}

    def inspect(self, task: int, reply: Arrays, samples: int) -> None:
        """As NCM; and a second moment of as many samples that is none without them."""
        first, second = self.returned(task)[:2], self.returned(task)[2:]
        sums, counts = ((name, reply[name]) for name in first)
        check_class_sums(sums, counts, samples)
        moment, total = (np.asarray(reply[name]) for name in second)
        if total[0] != reply[first[1]].sum():
            raise RejectedError(f"{second[1]} is not the sum of {first[1]}")
        squares = moment if self.options.covariance == "diagonal" else np.diag(self._matrix(moment))
        means = reply[first[0]] ** 2 / np.maximum(reply[first[1]], 1)[:, None]
        if np.any(squares < means.sum(axis=0) - 1e-6 * np.abs(squares)):
            raise RejectedError(f"{second[0]} is not a second moment of samples with these sums")

    def summed(self, job: ClientJob) -> NamedArrays:
        """The sums over the client's samples."""
        features = self.features(job.samples)
        if self.options.covariance == "diagonal":
            second = (features**2).sum(axis=0)
        else:
            second = packed(features.T @ features)
        total = np.array([len(features)], dtype=np.float64)
        return super().summed(job) | {f"second.{job.task}": second, f"total.{job.task}": total}

    def solve(self, tasks: int, arrays: Arrays) -> NamedArrays:
        """The head of all classes seen."""
        count, sums = (
            np.concatenate([np.asarray(arrays[f"{kind}.{task}"]) for task in range(tasks)])
            for kind in ("count", "sum")
        )
        mean = sums / np.maximum(count, 1)[:, None]
        second = np.sum([self._matrix(np.asarray(arrays[f"second.{task}"])) for task in range(tasks)], axis=0)
        scatter = second - (mean * count[:, None]).T @ mean
        if self.options.covariance == "diagonal":
            scatter = np.diag(np.diag(scatter))
        weight, bias = discriminant(Gaussians(count, mean, nearest_moment(scatter)), self.options.shrinkage)
        return {"weight": weight, "bias": bias}

    @torch.inference_mode()
    def scores(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:  # noqa: ARG002
        """Logits of all classes seen."""
        features = torch.from_numpy(self.features(samples)).to(arrays["weight"].device)
        return F.linear(features, arrays["weight"], arrays["bias"])

    def _matrix(self, second: Floats) -> Floats:
        if self.options.covariance == "diagonal":
            return np.asarray(np.diag(second))
        return unpacked(second, self.workspace.backbone.dim)


register(
    "lda",
    title="Linear discriminant analysis of frozen features",
    options=LDAOptions,
    method=LDA,
    sends="class feature sums and a second moment of features",
)
