"""Gaussians of all classes seen that move along with the features, and the linear head that they give.

Features are rows. A class has a mean, all classes one covariance.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pip_flower.methods.moments import Drift, Floats, Moments

# Of a logit that must never win: the class has no mean.
_NEVER = -1e30


@dataclass(frozen=True)
class Gaussians:
    """`count` [K] samples of each class, `mean` [K, D], and `scatter` [D, D], summed over all classes."""

    count: Floats
    mean: Floats
    scatter: Floats

    def moved(self, by: "Transport") -> "Gaussians":
        """Where the features of these samples are now."""
        return Gaussians(self.count, by.apply(self.mean), by.apply_to_scatter(self.scatter))

    def joined(self, moments: Moments) -> "Gaussians":
        """These classes and then those of `moments`."""
        return Gaussians(
            np.concatenate([self.count, moments.count]),
            np.concatenate([self.mean, moments.mean]),
            self.scatter + moments.scatter,
        )


@dataclass(frozen=True)
class Transport:
    """z -> z + z A + s; A is `linear` [D, D] or nothing."""

    shift: Floats
    linear: Floats | None = None

    def apply(self, features: Floats) -> Floats:
        """Features [n, D]."""
        moved = features + self.shift
        return moved if self.linear is None else moved + features @ self.linear

    def apply_to_scatter(self, scatter: Floats) -> Floats:
        """M' S M with M = I + A."""
        if self.linear is None:
            return scatter
        by = np.eye(len(scatter)) + self.linear
        return np.asarray(by.T @ scatter @ by)


def mean_drift(drift: Drift) -> Transport:
    """Everything moved as the mean did."""
    return Transport(drift.change)


def linear_drift(drift: Drift, ridge: float) -> Transport:
    """The change as a linear function of the old feature, by ridge regression; `ridge` is in units of the old
    features' mean variance. What did not move is not moved, exactly."""
    dim = len(drift.old)
    size = np.trace(drift.spread) / dim
    if size == 0:
        return mean_drift(drift)
    linear = np.linalg.solve(drift.spread + ridge * size * np.eye(dim), drift.cross)
    return Transport(drift.change - drift.old @ linear, linear)


def covariance(gaussians: Gaussians, shrinkage: float) -> Floats:
    """The classes' common covariance [D, D], moved towards its mean variance by `shrinkage`."""
    dim = gaussians.scatter.shape[0]
    plain = gaussians.scatter / max(1.0, float(gaussians.count.sum()))
    size = np.trace(plain) / dim or 1.0
    return np.asarray((1 - shrinkage) * plain + shrinkage * size * np.eye(dim))


def discriminant(gaussians: Gaussians, shrinkage: float) -> tuple[Floats, Floats]:
    """Weight [K, D] and bias [K] of linear discriminant analysis, all classes alike likely; a class without a
    sample never wins."""
    common = covariance(gaussians, shrinkage)
    weight = np.asarray(np.linalg.lstsq(common, gaussians.mean.T, rcond=None)[0].T, dtype=np.float64)
    bias = -0.5 * (weight * gaussians.mean).sum(axis=1)
    return weight, np.where(gaussians.count > 0, bias, _NEVER)


def best_ridge(fitted: Drift, held: Drift, ridges: Sequence[float]) -> float:
    """The ridge whose map from the fitted part predicts the change of the held part best, in squares."""

    def error(ridge: float) -> float:
        by = linear_drift(fitted, ridge)
        linear = np.zeros_like(held.cross) if by.linear is None else by.linear
        missed = held.change - (held.old @ linear + by.shift)
        squares = np.sum(linear * (held.spread @ linear)) - 2 * np.sum(linear * held.cross)
        return float(squares + held.count * missed @ missed)

    return min(ridges, key=error)


def best_shrinkage(fitted: Gaussians, held: Moments, first: int, shrinkages: Sequence[float]) -> float:
    """The shrinkage under which the held samples, of the classes from `first` on, are most likely."""
    known = fitted.count[first:] > 0
    apart = np.sqrt(held.count[known])[:, None] * (held.mean - fitted.mean[first:])[known]
    scatter = held.scatter + apart.T @ apart
    count = float(held.count[known].sum())

    def surprise(shrinkage: float) -> float:
        common = covariance(fitted, shrinkage)
        sign, logarithm = np.linalg.slogdet(common)
        if sign <= 0:
            return np.inf
        return float(np.trace(np.linalg.solve(common, scatter)) + count * logarithm)

    return min(shrinkages, key=surprise)
