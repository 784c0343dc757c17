"""Class-conditional Gaussians with diagonal covariance: summarise, merge, update, draw.

Pure functions on a table with one row per class. Statistics are float64 inside this module, whatever
precision they travel in.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
        return self._rows(np.isin(self.classes, list(classes)))

    def at_least(self, samples: int) -> "Prototypes":
        """The rows that rest on `samples` samples or more."""
        return self._rows(self.count >= samples)

    def as_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Named arrays to send or save; means and variances in float32."""
        return {
            "prototype.classes": self.classes.astype(np.int64),
            "prototype.mean": self.mean.astype(np.float32),
            "prototype.variance": self.variance.astype(np.float32),
            "prototype.count": self.count.astype(np.int64),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]]) -> "Prototypes":
        """The inverse of `as_arrays`."""
        return cls(
            arrays["prototype.classes"].astype(np.int64),
            arrays["prototype.mean"].astype(np.float64),
            arrays["prototype.variance"].astype(np.float64),
            arrays["prototype.count"].astype(np.int64),
        )

    def _rows(self, keep: NDArray[np.bool_]) -> "Prototypes":
        return Prototypes(
            self.classes[keep], self.mean[keep], self.variance[keep], self.count[keep]
        )


ARRAY_NAMES = ("prototype.classes", "prototype.mean", "prototype.variance", "prototype.count")


def empty(dim: int) -> Prototypes:
    """A table without rows."""
    none = np.zeros(0, dtype=np.int64)
    return Prototypes(none, np.zeros((0, dim)), np.zeros((0, dim)), none)


def summarise(features: Floats, labels: Integers) -> Prototypes:
    """Mean, variance and count of each class; features [n, D], labels [n]."""
    features = features.astype(np.float64)
    classes = np.unique(labels).astype(np.int64)
    groups = [features[labels == label] for label in classes]
    if not groups:
        return empty(features.shape[1])
    return Prototypes(
        classes,
        np.stack([group.mean(axis=0) for group in groups]),
        np.stack([group.var(axis=0) for group in groups]),
        np.array([len(group) for group in groups], dtype=np.int64),
    )


def merge(tables: Sequence[Prototypes], weights: Sequence[float] | None = None) -> Prototypes:
    """One table for all (Eq. 14-15): a class's rows are mixed by their table's weight, or by their own
    counts, which gives the statistics of the pooled samples.

    The variance is written as the weighted mean of var + (mu - mu_G)^2: equal to Eq. 15's
    E[mu^2 + var] - mu_G^2, but never negative.
    """
    classes = np.unique(np.concatenate([table.classes for table in tables]))
    dim = tables[0].mean.shape[1]
    mean = np.zeros((len(classes), dim))
    variance = np.zeros((len(classes), dim))
    count = np.zeros(len(classes), dtype=np.int64)
    for row, label in enumerate(classes):
        found = [
            (table, int(np.searchsorted(table.classes, label)), index)
            for index, table in enumerate(tables)
            if label in table.classes
        ]
        counts = np.array([table.count[at] for table, at, _ in found], dtype=np.int64)
        mix = counts if weights is None else np.array([weights[index] for *_, index in found])
        share = (mix / mix.sum())[:, None]
        means = np.stack([table.mean[at] for table, at, _ in found])
        variances = np.stack([table.variance[at] for table, at, _ in found])
        mean[row] = (share * means).sum(axis=0)
        variance[row] = (share * (variances + (means - mean[row]) ** 2)).sum(axis=0)
        count[row] = counts.sum()
    return Prototypes(classes, mean, variance, count)


def update(old: Prototypes, new: Prototypes) -> Prototypes:
    """`new` where it has a row, otherwise the last value: a class nobody reported keeps it."""
    kept = old.select(set(old.classes.tolist()) - set(new.classes.tolist()))
    parts = (kept, new)
    classes = np.concatenate([part.classes for part in parts])
    order = np.argsort(classes)
    return Prototypes(
        classes[order],
        np.concatenate([part.mean for part in parts])[order],
        np.concatenate([part.variance for part in parts])[order],
        np.concatenate([part.count for part in parts])[order],
    )


def augmented(
    table: Prototypes, copies: Integers, rng: np.random.Generator
) -> tuple[Floats, Integers]:
    """Each mean and, per class, `copies` [K] draws mean + beta * sigma with beta ~ U(0, 1), one beta
    per draw: features [K + sum(copies), D] and labels."""
    rows = np.repeat(np.arange(len(table)), copies)
    beta = rng.random((len(rows), 1))
    drawn = table.mean[rows] + beta * np.sqrt(table.variance[rows])
    return np.concatenate([table.mean, drawn]), np.concatenate([table.classes, table.classes[rows]])
