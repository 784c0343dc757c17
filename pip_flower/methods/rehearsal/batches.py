"""Batches with a fixed number of old samples beside the new ones."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pip_flower.data.batches import batches

Rows = NDArray[np.int64]


class MixedBatch(NamedTuple):
    """Positions among the new samples and among the old ones."""

    new: Rows
    old: Rows


def mixed_batches(
    new: int, old: int, size: int, old_per_batch: int, rng: np.random.Generator
) -> Iterator[MixedBatch]:
    """One epoch: every new sample once, at most `size` to a batch, each batch with `old_per_batch` old ones,
    of which none comes again before all others came; new ones only if there are no old ones."""
    fresh = batches(rng.permutation(new), size)
    replayed = _cycled(old, len(fresh) * old_per_batch, rng).reshape(len(fresh), old_per_batch if old else 0)
    return (MixedBatch(*rows) for rows in zip(fresh, replayed, strict=True))


def _cycled(available: int, count: int, rng: np.random.Generator) -> Rows:
    """`count` positions below `available`, one permutation after another; none if there are none."""
    if not available or not count:
        return np.zeros(0, dtype=np.int64)
    rounds = -(-count // available)
    return np.concatenate([rng.permutation(available) for _ in range(rounds)])[:count]
