"""Class-conditional Gaussians with diagonal covariance: summarise, merge, update, draw.

Pure functions on a table with one row per class. Statistics are float64 inside this module, whatever
precision they travel in.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pip_flower.aggregation import clipped_rows, middle
from pip_flower.config.sections import AggregationConfig
from pip_flower.fidelity import Paper

Floats = NDArray[np.floating]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Prototypes:
    """Rows sorted by class: classes [K], mean [K, D], population variance [K, D], count [K]."""

    classes: Integers
    mean: Floats
    variance: Floats
    count: Integers

    def __len__(self) -> int:
        return len(self.classes)

    def select(self, classes: Iterable[int]) -> "Prototypes":
        """The rows of those of `classes` that are in the table."""
        return self.at(np.isin(self.classes, list(classes)))

    def without(self, classes: Iterable[int]) -> "Prototypes":
        """The rows of all other classes."""
        return self.at(~np.isin(self.classes, list(classes)))

    def at_least(self, samples: int) -> "Prototypes":
        """The rows that rest on `samples` samples or more."""
        return self.at(self.count >= samples)

    def as_arrays(self) -> dict[str, NDArray[Any]]:
        """Named arrays to send or save; means and variances in float32."""
        return {
            "prototype.classes": self.classes.astype(np.int64),
            "prototype.mean": self.mean.astype(np.float32),
            "prototype.variance": self.variance.astype(np.float32),
            "prototype.count": self.count.astype(np.int64),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "Prototypes":
        """The inverse of `as_arrays`."""
        return cls(
            arrays["prototype.classes"].astype(np.int64),
            arrays["prototype.mean"].astype(np.float64),
            arrays["prototype.variance"].astype(np.float64),
            arrays["prototype.count"].astype(np.int64),
        )

    def at(self, rows: Integers | NDArray[np.bool_]) -> "Prototypes":
        """The rows at these positions."""
        return Prototypes(self.classes[rows], self.mean[rows], self.variance[rows], self.count[rows])


ARRAY_NAMES = ("prototype.classes", "prototype.mean", "prototype.variance", "prototype.count")


def empty(dim: int) -> Prototypes:
    """A table without rows."""
    none = np.zeros(0, dtype=np.int64)
    return Prototypes(none, np.zeros((0, dim)), np.zeros((0, dim)), none)


def summarise(features: Floats, labels: Integers, fidelity: Paper) -> Prototypes:
    """Mean, variance and count of each class in a batch; features [n, D], labels [n]."""
    features = features.astype(np.float64)
    classes = np.unique(labels).astype(np.int64)
    groups = [features[labels == label] for label in classes]
    if not groups:
        return empty(features.shape[1])
    return Prototypes(
        classes,
        np.stack([group.mean(axis=0) for group in groups]),
        np.stack([fidelity.batch_variance(group) for group in groups]),
        np.array([len(group) for group in groups], dtype=np.int64),
    )


def pool(tables: Sequence[Prototypes]) -> Prototypes:
    """Tables of disjoint samples as one, each row weighing as much as the samples it rests on: the
    statistics of all the samples together (Chan et al.)."""
    return _mixture(tables, [table.count.astype(np.float64) for table in tables], Paper())


def merge(tables: Sequence[Prototypes], weights: Sequence[float], fidelity: Paper) -> Prototypes:
    """The global table (Eq. 14-15): a class's rows are mixed by the weights of the clients that hold it."""
    shares = [np.full(len(table), weight) for table, weight in zip(tables, weights, strict=True)]
    return _mixture(tables, shares, fidelity)


def robust_merge(
    tables: Sequence[Prototypes],
    weights: Sequence[float],
    known: Prototypes,
    fidelity: Paper,
    config: AggregationConfig,
) -> Prototypes:
    """The global table by the configured rule; `known` is the one of the rounds before."""
    if config.clip_prototypes:
        tables = _clipped(tables, known, config.clip_prototypes)
    if config.rule == "mean":
        return merge(tables, weights, fidelity)
    every = stacked(tables)
    classes = np.unique(every.classes)
    dim = every.mean.shape[1]
    mean, variance = np.zeros((len(classes), dim)), np.zeros((len(classes), dim))
    count = np.zeros(len(classes), dtype=np.int64)
    for row, label in enumerate(classes):
        found = every.at(every.classes == label)
        mean[row] = middle(found.mean, config)
        # As Eq. 15, with the rule in place of the weighted mean.
        variance[row] = middle(found.variance + (found.mean - mean[row]) ** 2, config)
        count[row] = found.count.sum()
    return Prototypes(classes, mean, variance, count)


def _clipped(tables: Sequence[Prototypes], known: Prototypes, longest: float) -> list[Prototypes]:
    """The same rows, each mean and standard deviation (as one vector) near what is known of the class."""
    every = stacked(tables)
    rows = np.concatenate([every.mean, np.sqrt(every.variance)], axis=1)
    for label in np.unique(every.classes):
        found = every.classes == label
        old = known.select([int(label)])
        centre = np.concatenate([old.mean[0], np.sqrt(old.variance[0])]) if len(old) else None
        rows[found] = clipped_rows(rows[found], centre, longest)
    mean, deviation = np.split(rows, 2, axis=1)
    near = Prototypes(every.classes, mean, deviation**2, every.count)
    ends = np.cumsum([len(table) for table in tables])
    return [near.at(np.arange(end - len(table), end)) for table, end in zip(tables, ends, strict=True)]


def _mixture(tables: Sequence[Prototypes], weights: Sequence[Floats], fidelity: Paper) -> Prototypes:
    """Mixes rows of the same class; `weights[i]` [K_i] are those of the rows of table i."""
    every = stacked(tables)
    weight = np.concatenate(list(weights))
    classes = np.unique(every.classes)
    dim = every.mean.shape[1]
    mean, variance = np.zeros((len(classes), dim)), np.zeros((len(classes), dim))
    count = np.zeros(len(classes), dtype=np.int64)
    for row, label in enumerate(classes):
        found = np.flatnonzero(every.classes == label)
        share = (weight[found] / weight[found].sum())[:, None]
        mean[row] = (share * every.mean[found]).sum(axis=0)
        variance[row] = fidelity.global_variance(share, every.mean[found], every.variance[found], mean[row])
        count[row] = every.count[found].sum()
    return Prototypes(classes, mean, variance, count)


def update(old: Prototypes, new: Prototypes) -> Prototypes:
    """`new` where it has a row, otherwise the last value: a class nobody reported keeps it."""
    kept = old.select(set(old.classes.tolist()) - set(new.classes.tolist()))
    both = stacked([kept, new])
    return both.at(np.argsort(both.classes))


def augmented(
    table: Prototypes, copies: Integers, rng: np.random.Generator, fidelity: Paper
) -> tuple[Floats, Integers]:
    """Each class's mean, then the prototypes drawn around it (section 5), `copies` [K] per class:
    features [K + drawn, D] and labels."""
    drawn, rows = fidelity.augment(table.mean, table.variance, copies, rng)
    return np.concatenate([table.mean, drawn]), np.concatenate([table.classes, table.classes[rows]])


def balanced_copies(classes: Integers, labels: Integers, batch_size: int) -> Integers:
    """m for each of `classes` so that, with its mean, it appears in a batch as often as the classes the
    client holds do on average."""
    in_batch = min(batch_size, len(labels)) * np.array([(labels == c).mean() for c in classes])
    target = min(batch_size, len(labels)) / len(np.unique(labels))
    copies = np.round(target - in_batch - 1).clip(min=0)
    return np.asarray(copies, dtype=np.int64)


def stacked(tables: Sequence[Prototypes]) -> Prototypes:
    """All rows, table by table; a class may have several."""
    return Prototypes(
        np.concatenate([table.classes for table in tables]),
        np.concatenate([table.mean for table in tables]),
        np.concatenate([table.variance for table in tables]),
        np.concatenate([table.count for table in tables]),
    )
