"""Class Gaussians with full covariance: what clients send of them, how they are pooled and drawn from."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.method.exchange import ClientJob, ClientUpdate, Contribution, Exchange
from pip_flower.method.reply_checks import ArraySpec, RejectedError, check_counts
from pip_flower.method.round import Round
from pip_flower.method.workspace import Workspace
from pip_flower.methods.moments import (
    Floats,
    Moments,
    check_moment,
    moments_of,
    packed,
    robust_pool,
    unpacked,
)

_SENT = ("count", "mean", "covariance")
# How far below zero, in units of the trace, float32 may push an eigenvalue.
_ROUNDING = 1e-5


class ClassGaussians(Exchange):
    """The end of a task: `count` [C], `mean` [C, D] and `covariance` [C, D (D + 1) / 2] of the classes of a
    client's samples; the server has those of everybody's as `gaussian.t.count` and so on."""

    def __init__(
        self,
        workspace: Workspace,
        width: int,
        received: Callable[[int], tuple[str, ...]],
        features: Callable[[ClientJob], NDArray[np.floating]],
    ) -> None:
        super().__init__(workspace)
        self.width, self._received, self._features = width, received, features

    def start_task(self, task: int) -> NamedArrays:
        """On the server: nothing is known of the task's classes."""
        specs = self.expected(task, {}, 0)
        return {
            f"gaussian.{task}.{kind}": np.zeros([size or 0 for size in spec.shape], spec.dtype)
            for kind, spec in specs.items()
        }

    def received(self, task: int) -> tuple[str, ...]:
        """What the features depend on."""
        return self._received(task)

    def returned(self, task: int) -> tuple[str, ...]:  # noqa: ARG002
        """One Gaussian per class."""
        return _SENT

    def fit(self, job: ClientJob) -> ClientUpdate:
        """Each image goes once through the model of the task's end."""
        targets = self.workspace.tasks.targets(job.samples.labels, job.task)
        features, classes = self._features(job), len(self.workspace.tasks.classes[job.task])
        found = [
            moments_of(features[targets == c], np.zeros((targets == c).sum(), int), 1) for c in range(classes)
        ]
        return ClientUpdate(as_arrays(found), len(job.samples), {}, job.memory)

    def expected(self, task: int, arrays: Arrays, samples: int) -> dict[str, ArraySpec]:  # noqa: ARG002
        """Products of two features may be longer than one, by as much as there are dimensions."""
        classes, width, real = len(self.workspace.tasks.classes[task]), self.width, np.dtype(np.float32)
        return {
            "count": ArraySpec((classes,), np.dtype(np.int64), np.inf),
            "mean": ArraySpec((classes, width), real),
            "covariance": ArraySpec((classes, width * (width + 1) // 2), real, float(width)),
        }

    def inspect(self, task: int, reply: Arrays, samples: int) -> None:  # noqa: ARG002
        """Counts of the client's samples, and covariances that samples can have."""
        check_counts("count", reply["count"], samples)
        if np.any(reply["mean"][reply["count"] == 0]):
            raise RejectedError("mean has a class that count does not have")
        for few, covariance in zip(reply["count"] < 2, reply["covariance"], strict=True):
            if few and np.any(covariance):
                raise RejectedError("covariance has a class with fewer than two samples")
            check_moment("covariance", unpacked(covariance, self.width), _ROUNDING)

    def merge(self, round_: Round, contributions: Sequence[Contribution], arrays: Arrays) -> NamedArrays:  # noqa: ARG002
        """The Gaussians of everybody's samples together, or by the configured robust rule."""
        by_client = [from_arrays(given.update.arrays, self.width) for given in contributions]
        found = []
        for parts in zip(*by_client, strict=True):
            held = [part for part in parts if part.count[0] > 0] or list(parts[:1])
            found.append(robust_pool(held, self.config.aggregation))
        return {f"gaussian.{round_.task}.{kind}": value for kind, value in as_arrays(found).items()}

    def known(self, arrays: Arrays, tasks: int) -> list[Moments]:
        """On the server: one for each class of the first `tasks` tasks."""
        found = []
        for task in range(tasks):
            found += from_arrays({kind: arrays[f"gaussian.{task}.{kind}"] for kind in _SENT}, self.width)
        return found


def as_arrays(classes: Sequence[Moments]) -> NamedArrays:
    """Moments of one class each as counts, means and unbiased covariances."""
    return {
        "count": np.array([one.count[0] for one in classes], dtype=np.int64),
        "mean": np.concatenate([one.mean for one in classes]).astype(np.float32),
        "covariance": np.stack([packed(covariance(one)) for one in classes]).astype(np.float32),
    }


def from_arrays(arrays: Arrays, width: int) -> list[Moments]:
    """The inverse of `as_arrays`."""
    rows = zip(*(np.asarray(arrays[kind], dtype=np.float64) for kind in _SENT), strict=True)
    return [
        Moments(np.array([n]), mean[None], max(0.0, n - 1) * unpacked(triangle, width))
        for n, mean, triangle in rows
    ]


def covariance(moments: Moments) -> Floats:
    """Unbiased, of one class [D, D]; zero for a single sample."""
    return moments.scatter / max(1.0, float(moments.count[0]) - 1)


def draw(moments: Moments, count: int, generator: torch.Generator) -> Tensor:
    """`count` features [count, D] from the Gaussian of one class."""
    values, vectors = np.linalg.eigh(covariance(moments))
    spread = torch.from_numpy((vectors * np.sqrt(np.maximum(values, 0.0))).T.copy())
    noise = torch.randn(count, len(values), generator=generator, dtype=torch.float64)
    return (torch.from_numpy(moments.mean) + noise @ spread).float()
