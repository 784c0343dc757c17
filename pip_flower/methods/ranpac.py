"""RanPAC: random projection of frozen features, ridge regression from summed second moments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.config.schema import Bounds
from pip_flower.data.samples import Samples
from pip_flower.method.exchange import ClientJob, Contribution
from pip_flower.method.merging import Merge, Sum
from pip_flower.method.registry import register
from pip_flower.method.reply_checks import ArraySpec, RejectedError, check_counts
from pip_flower.method.round import Round
from pip_flower.methods.statistics import Floats, StatisticsMethod
from pip_flower.runtime.process import once_per_process
from pip_flower.runtime.streams import stream

_RIDGES = 10.0 ** np.arange(-8, 9)
_PARTS = ("fit", "held")


@dataclass(frozen=True)
class RanPACOptions:
    """M random features; the fraction of samples that chooses the ridge."""

    features: Annotated[int, Bounds(1)]
    held_out: Annotated[float, Bounds(0, 0.9, exclusive_minimum=True)]


class RanPAC(StatisticsMethod):
    """`gram.part` [M, M], `cross.part.t` [M, classes], `count.part` [1] and `labels.part.t` [classes] (counts
    by class) of two disjoint parts of the samples, one to fit and one to choose the ridge; `head` [M,
    classes seen] from the server. Of the symmetric second moments only the upper triangle travels."""

    options: RanPACOptions

    def start_task(self, task: int, arrays: Arrays) -> NamedArrays:  # noqa: ARG002
        """Empty sums; second moments run on over all tasks."""
        size = self.options.features
        classes = len(self.workspace.tasks.classes[task])
        added: NamedArrays = {}
        for part in _PARTS:
            added[f"cross.{part}.{task}"] = np.zeros((size, classes))
            added[f"labels.{part}.{task}"] = np.zeros(classes)
            if task == 0:
                added |= {f"gram.{part}": np.zeros((size, size)), f"count.{part}": np.zeros(1)}
        return added

    def returned(self, task: int) -> tuple[str, ...]:
        """Second moments, products with the labels, and counts, of both parts."""
        kinds = ("gram.{}", "cross.{}.{}", "count.{}", "labels.{}.{}")
        return tuple(kind.format(part, task) for part in _PARTS for kind in kinds)

    def merging(self, round_: Round) -> Mapping[str, Merge]:
        """One second moment, and a mean per class."""
        rules: dict[str, Merge] = dict.fromkeys(self.returned(round_.task), Sum())
        for part in _PARTS:
            rules[f"gram.{part}"] = Sum(f"count.{part}")
            rules[f"cross.{part}.{round_.task}"] = Sum(f"labels.{part}.{round_.task}", axis=1)
        return rules

    def merge(self, round_: Round, contributions: Sequence[Contribution], arrays: Arrays) -> NamedArrays:
        """Of whole matrices."""
        whole = [
            replace(given, update=replace(given.update, arrays=self._whole(given.update.arrays)))
            for given in contributions
        ]
        return super().merge(round_, whole, arrays)

    def expected(self, task: int, arrays: Arrays, samples: int) -> dict[str, ArraySpec]:
        """Second moments by their upper triangles."""
        specs = super().expected(task, arrays, samples)
        size = self.options.features
        for part in _PARTS:
            specs[f"gram.{part}"] = replace(specs[f"gram.{part}"], shape=(size * (size + 1) // 2,))
        return specs

    def longest(self) -> float:
        """A product of two projections onto M random directions."""
        return float(self.options.features)

    def inspect(self, task: int, reply: Arrays, samples: int) -> None:
        """Counts of the client's samples, and second moments that samples can have."""
        counts = np.concatenate([reply[f"count.{part}"] for part in _PARTS])
        labels = np.concatenate([reply[f"labels.{part}.{task}"] for part in _PARTS])
        check_counts("count", counts, samples)
        check_counts("labels", labels, samples)
        for part in _PARTS:
            rows, columns = np.triu_indices(self.options.features)
            if np.any(reply[f"gram.{part}"][rows == columns] < 0):
                raise RejectedError(f"gram.{part} is not a second moment")

    def predicting(self, tasks: int) -> tuple[str, ...]:  # noqa: ARG002
        """The solved head."""
        return ("head",)

    def summed(self, job: ClientJob) -> NamedArrays:
        """H'H, H'Y and the count of each part; a sample's part depends on its id alone."""
        projected = self.projected(job.samples)
        labels = self.one_hot(job.samples.labels, job.task)
        seed = self.config.seed
        drawn = np.array([stream(seed, "held-out", int(id_)).random() for id_ in job.samples.ids])
        sums: NamedArrays = {}
        for part, chosen in zip(
            _PARTS, (drawn >= self.options.held_out, drawn < self.options.held_out), strict=True
        ):
            rows = projected[chosen]
            sums[f"gram.{part}"] = upper_triangle(rows.T @ rows)
            sums[f"cross.{part}.{job.task}"] = rows.T @ labels[chosen]
            sums[f"count.{part}"] = np.array([len(rows)], dtype=np.float64)
            sums[f"labels.{part}.{job.task}"] = labels[chosen].sum(axis=0)
        return sums

    def solve(self, tasks: int, arrays: Arrays) -> NamedArrays:
        """(G + ridge I)^-1 Q with the ridge of least squared error on the held-out part."""
        gram = {part: np.asarray(arrays[f"gram.{part}"]) for part in _PARTS}
        if self.config.aggregation.rule != "mean":
            # A median of second moments, taken by coordinate, need not be one.
            gram = {part: nearest_moment(value) for part, value in gram.items()}
        cross = {
            part: np.concatenate([arrays[f"cross.{part}.{task}"] for task in range(tasks)], axis=1)
            for part in _PARTS
        }
        ridge = best_ridge(gram["fit"], cross["fit"], gram["held"], cross["held"])
        total = gram["fit"] + gram["held"] + ridge * np.eye(self.options.features)
        return {"head": np.linalg.solve(total, cross["fit"] + cross["held"]), "ridge": np.array([ridge])}

    def scores(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:  # noqa: ARG002
        """Regression outputs."""
        return torch.from_numpy(self.projected(samples)).to(arrays["head"].device) @ arrays["head"]

    def projected(self, samples: Samples) -> Floats:
        """h = relu(z W) with W ~ N(0, 1) from the run's seed: the same on every node."""
        return np.maximum(self.features(samples) @ self._projection(), 0.0)

    def _whole(self, reply: Arrays) -> NamedArrays:
        """A reply with second moments as matrices."""
        grams = {f"gram.{part}": symmetric(reply[f"gram.{part}"], self.options.features) for part in _PARTS}
        return {**reply, **grams}

    def _projection(self) -> Floats:
        shape = (self.workspace.backbone.dim, self.options.features)
        seed = self.config.seed
        key = ("ranpac-projection", seed, shape)
        return once_per_process(key, lambda: stream(seed, "projection").standard_normal(shape))


def upper_triangle(matrix: Floats) -> Floats:
    """The entries [M (M + 1) / 2] on and above the diagonal of a symmetric matrix [M, M], row by row."""
    return matrix[np.triu_indices(len(matrix))]


def symmetric(triangle: Floats, size: int) -> Floats:
    """The symmetric matrix [size, size] with this upper triangle."""
    matrix = np.empty((size, size))
    matrix[np.triu_indices(size)] = triangle
    matrix.T[np.triu_indices(size)] = triangle
    return matrix


def best_ridge(gram: Floats, cross: Floats, held_gram: Floats, held_cross: Floats) -> float:
    """The ridge whose solution of the fitted part has the least squared error on the held-out part.

    |H W - Y|^2 = tr(W' G W) - 2 tr(W' Q) + |Y|^2 needs only the sums; one eigendecomposition of the
    fitted G serves all ridges.
    """
    values, vectors = np.linalg.eigh(gram)
    rotated = vectors.T @ cross
    errors = []
    for ridge in _RIDGES:
        head = vectors @ (rotated / (np.maximum(values, 0.0) + ridge)[:, None])
        errors.append(np.sum(head * (held_gram @ head)) - 2 * np.sum(head * held_cross))
    return float(_RIDGES[int(np.argmin(errors))])


def nearest_moment(gram: Floats) -> Floats:
    """The positive semidefinite matrix nearest to a symmetric one [M, M]."""
    values, vectors = np.linalg.eigh((gram + gram.T) / 2)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


register(
    "ranpac",
    title="RanPAC: ridge regression on random features",
    options=RanPACOptions,
    method=RanPAC,
    sends="class sums and second moments of projected features",
)
