"""Images with their labels, as the rest of the system sees them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Samples:
    """Images uint8 [n, H, W, 3], labels int64 [n], and ids int64 [n] unique within the data set."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    ids: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: NDArray[np.int64]) -> "Samples":
        """The samples at `rows`, in that order."""
        return Samples(self.images[rows], self.labels[rows], self.ids[rows])


@dataclass(frozen=True)
class ImageData:
    """A data set with its official split into training and test samples."""

    train: Samples
    test: Samples
    class_names: tuple[str, ...]
