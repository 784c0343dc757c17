"""Rows of a data set in pieces."""

import numpy as np
from numpy.typing import NDArray


def batches(rows: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """`rows` cut into pieces of at most `size`."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def own_batches(order: NDArray[np.int64], size: int, samples: int) -> list[NDArray[np.int64]]:
    """`order` cut into pieces of `size`, from which positions beyond the first `samples` fall out, being
    somebody else's; pieces that are left with nothing are left out."""
    kept = (piece[piece < samples] for piece in batches(order, size))
    return [piece for piece in kept if len(piece)]
