"""What sums over features tell: class means, their common scatter, and how features moved; pure NumPy.

Moments of disjoint samples add up to those of all of them, whoever holds which.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pip_flower.aggregation import clipped_rows, is_plain, middle
from pip_flower.config.sections import AggregationConfig
from pip_flower.method.reply_checks import RejectedError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Drift:
    """How `count` samples moved from old to new features: mean old feature [D], mean change [D], and the
    centred sums of old x old and of old x change [D, D] each."""

    count: float
    old: Floats
    change: Floats
    spread: Floats
    cross: Floats


@dataclass(frozen=True)
class Moments:
    """By class: `count` [C] and `mean` [C, D]; `scatter` [D, D]: sum of the outer products of what differs
    from the class means; `drift`, where there are old features to compare with."""

    count: Floats
    mean: Floats
    scatter: Floats
    drift: Drift | None = None


def moments_of(
    features: NDArray[Any], targets: NDArray[np.int64], classes: int, old: NDArray[Any] | None = None
) -> Moments:
    """Of features [n, D] with targets [n] among `classes`; `old` [n, D] are those of the same samples with
    earlier prompts."""
    new = features.astype(np.float64)
    count = np.bincount(targets, minlength=classes).astype(np.float64)
    sums = np.zeros((classes, new.shape[1]))
    np.add.at(sums, targets, new)
    mean = sums / np.maximum(count, 1.0)[:, None]
    centred = new - mean[targets]
    drift = None if old is None else _drift_of(old.astype(np.float64), new)
    return Moments(count, mean, centred.T @ centred, drift)


def _drift_of(old: Floats, new: Floats) -> Drift:
    change = new - old
    # A client may hold no sample of a part.
    count = max(1, len(old))
    means = old.sum(axis=0) / count, change.sum(axis=0) / count
    centred = old - means[0]
    return Drift(float(len(old)), *means, centred.T @ centred, centred.T @ (change - means[1]))


def pool(parts: Sequence[Moments]) -> Moments:
    """Moments of disjoint samples as one: those of all the samples together."""
    count = np.sum([part.count for part in parts], axis=0)
    weights = [part.count[:, None] for part in parts]
    total = np.sum([w * part.mean for w, part in zip(weights, parts, strict=True)], axis=0)
    mean = total / np.maximum(count, 1.0)[:, None]
    scatter = np.zeros_like(parts[0].scatter)
    for weight, part in zip(weights, parts, strict=True):
        apart = np.sqrt(weight) * (part.mean - mean)
        scatter += part.scatter + apart.T @ apart
    drifts = [part.drift for part in parts if part.drift is not None]
    return Moments(count, mean, scatter, _pool_drifts(drifts) if drifts else None)


def _pool_drifts(parts: Sequence[Drift]) -> Drift:
    count = sum(part.count for part in parts)
    weight = max(1.0, count)
    old = np.sum([part.count * part.old for part in parts], axis=0) / weight
    change = np.sum([part.count * part.change for part in parts], axis=0) / weight
    spread, cross = np.zeros_like(parts[0].spread), np.zeros_like(parts[0].cross)
    for part in parts:
        apart = part.old - old
        spread += part.spread + part.count * np.outer(apart, apart)
        cross += part.cross + part.count * np.outer(apart, part.change - change)
    return Drift(count, old, change, spread, cross)


def robust_pool(parts: Sequence[Moments], config: AggregationConfig) -> Moments:
    """As `pool`, with the configured rule in place of means over clients: class means among those who hold
    the class, scatter and drift per sample among all."""
    if is_plain(config) or not any(part.count.any() for part in parts):
        return pool(parts)
    count = np.sum([part.count for part in parts], axis=0)
    mean = np.zeros_like(parts[0].mean)
    for row in range(len(mean)):
        held = [(part.count[row], part.mean[row]) for part in parts if part.count[row] > 0]
        if held:
            mean[row] = _typical([n for n, _ in held], [m for _, m in held], config)
    sizes = [float(part.count.sum()) for part in parts]
    scatter = count.sum() * _typical(
        sizes, [p.scatter / n for p, n in zip(parts, sizes, strict=True)], config
    )
    drifts = [part.drift for part in parts if part.drift is not None]
    drift = None
    if drifts:
        n = sum(found.count for found in drifts)
        weights = [found.count for found in drifts]
        drift = Drift(
            n,
            _typical(weights, [found.old for found in drifts], config),
            _typical(weights, [found.change for found in drifts], config),
            nearest_moment(n * _typical(weights, [found.spread / found.count for found in drifts], config)),
            n * _typical(weights, [found.cross / found.count for found in drifts], config),
        )
    return Moments(count, mean, nearest_moment(scatter), drift)


def _typical(weights: Sequence[float], values: Sequence[Floats], config: AggregationConfig) -> Floats:
    rows = np.stack([value.ravel() for value in values])
    if config.clip_prototypes:
        rows = np.asarray(clipped_rows(rows, None, config.clip_prototypes), dtype=np.float64)
    plain = config.rule == "mean"
    found = np.average(rows, axis=0, weights=weights) if plain else middle(rows, config)
    return np.asarray(found, dtype=np.float64).reshape(values[0].shape)


def nearest_moment(matrix: Floats) -> Floats:
    """The positive semidefinite matrix nearest to one that is symmetric up to rounding."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


def check_moment(name: str, matrix: Floats, rounding: float) -> None:
    """Refuse a matrix that is no second moment; `rounding` is how far below zero, in units of the trace, an
    eigenvalue may be."""
    lowest = float(np.linalg.eigvalsh(matrix).min())
    if lowest < -rounding * max(1e-30, float(np.trace(matrix))):
        raise RejectedError(f"{name} is not a second moment: it has an eigenvalue of {lowest:.3g}")


def without_correlations(moments: Moments) -> Moments:
    """Only the variances of the scatter."""
    return replace(moments, scatter=np.diag(np.diag(moments.scatter)))


def factored(scatter: Floats, rank: int) -> tuple[Floats, Floats]:
    """The `rank` strongest directions of a scatter, scaled [rank, D], and the variances they leave [D]."""
    values, vectors = np.linalg.eigh(scatter)
    strongest = np.argsort(values)[::-1][:rank]
    directions = (vectors[:, strongest] * np.sqrt(np.maximum(values[strongest], 0.0))).T
    rest = np.maximum(np.diag(scatter) - (directions**2).sum(axis=0), 0.0)
    missing = rank - len(directions)
    return np.pad(directions, ((0, max(0, missing)), (0, 0))), rest


def unfactored(directions: Floats, rest: Floats) -> Floats:
    """The scatter that `factored` keeps [D, D]."""
    return np.asarray(directions.T @ directions + np.diag(rest))


def packed(symmetric: Floats) -> Floats:
    """The upper triangle [D (D + 1) / 2] of a symmetric matrix [D, D]."""
    return np.asarray(symmetric[np.triu_indices(len(symmetric))])


def unpacked(triangle: NDArray[Any], dim: int) -> Floats:
    """The inverse of `packed`."""
    matrix = np.zeros((dim, dim))
    matrix[np.triu_indices(dim)] = triangle
    return np.asarray(matrix + np.triu(matrix, 1).T)
