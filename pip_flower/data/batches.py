"""Rows of a data set in pieces."""

import numpy as np
from numpy.typing import NDArray


def batches(rows: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """`rows` cut into pieces of at most `size`."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]
