"""Averages of named arrays, plain and robust; pure functions, summed in the order given.

Median and trimmed mean are taken by coordinate and count every client alike: a weight that a client can
raise by claiming more samples is no defence.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pip_flower.config.sections import AggregationConfig

Arrays = Mapping[str, NDArray[Any]]
Floats = NDArray[np.floating]


def weighted_mean(updates: Sequence[Arrays], weights: Sequence[float]) -> dict[str, NDArray[np.float32]]:
    """sum_l w_l x_l / sum_l w_l for every array (Eq. 12-13); float64 sums, float32 results."""
    shares = np.asarray(weights, dtype=np.float64)
    if len(updates) != len(shares) or not len(updates) or shares.min() < 0 or shares.sum() <= 0:
        raise ValueError(f"{len(updates)} updates cannot be averaged with weights {list(weights)}")
    shares = shares / shares.sum()
    mean: dict[str, NDArray[np.float32]] = {}
    for name in updates[0]:
        total = np.zeros(updates[0][name].shape, dtype=np.float64)
        for share, update in zip(shares, updates, strict=True):
            total += share * update[name]
        mean[name] = total.astype(np.float32)
    return mean


def merged_model(
    updates: Sequence[Arrays], weights: Sequence[float], sent: Arrays, config: AggregationConfig
) -> dict[str, NDArray[np.float32]]:
    """One model from those of several clients that all started from `sent`, by the configured rule."""
    if config.clip_norm:
        updates = [clipped(update, sent, config.clip_norm) for update in updates]
    if config.rule == "mean":
        return weighted_mean(updates, weights)
    return {
        name: middle(np.stack([update[name] for update in updates]), config).astype(np.float32)
        for name in updates[0]
    }


def middle(stack: Floats, config: AggregationConfig) -> Floats:
    """Median or trimmed mean [...] over the first axis of stack [n, ...]; float64."""
    values = stack.astype(np.float64)
    if config.rule == "median":
        return np.asarray(np.median(values, axis=0))
    cut = int(config.trim * len(values))
    return np.asarray(np.sort(values, axis=0)[cut : len(values) - cut].mean(axis=0))


def clipped(update: Arrays, sent: Arrays, longest: float) -> dict[str, NDArray[Any]]:
    """`update` with its change, taken over all arrays together, scaled down to `longest`."""
    changes = {name: value.astype(np.float64) - sent[name] for name, value in update.items()}
    norm = np.sqrt(sum(float(np.sum(change**2)) for change in changes.values()))
    if norm <= longest:
        return dict(update)
    factor = longest / norm
    return {
        name: (sent[name] + factor * change).astype(update[name].dtype) for name, change in changes.items()
    }


def clipped_rows(rows: Floats, known: Floats | None, longest: float) -> Floats:
    """Rows [n, F] that are no further than `longest` from what is known [F]; with nothing known, from their
    own median, which a minority cannot move far."""
    centre = np.median(rows, axis=0) if known is None else known
    change = rows - centre
    norm = np.linalg.norm(change, axis=1, keepdims=True)
    return np.asarray(centre + change * np.minimum(1.0, longest / np.maximum(norm, 1e-300)))


def robust_total(
    sums: Sequence[Floats], counts: Sequence[Floats], so_far: tuple[Floats, Floats], config: AggregationConfig
) -> Floats:
    """A sum over everybody's samples [G, F] from those of the clients: per group, the robust mean of the
    clients' means times the samples of all of them.

    `sums` are [G, F] each, `counts` [G]; `so_far` is what earlier rounds added up to, sum and count.
    """
    total = np.zeros(sums[0].shape)
    for group in range(len(total)):
        held = np.array([count[group] for count in counts])
        if not held.any():
            continue
        means = np.stack([s[group] / n for s, n in zip(sums, held, strict=True) if n > 0])
        if config.clip_prototypes:
            known = so_far[0][group] / so_far[1][group] if so_far[1][group] > 0 else None
            means = clipped_rows(means, known, config.clip_prototypes)
        if config.rule == "mean":
            shares = held[held > 0] / held.sum()
            total[group] = held.sum() * (shares[:, None] * means).sum(axis=0)
        else:
            total[group] = held.sum() * middle(means, config)
    return total


def is_plain(config: AggregationConfig) -> bool:
    """Whether sums are simply added up."""
    return config.rule == "mean" and not config.clip_prototypes
