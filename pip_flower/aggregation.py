"""Averages of named arrays; pure functions, summed in the order given."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]


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
