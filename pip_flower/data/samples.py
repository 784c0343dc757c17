"""Images with their labels, as the rest of the system sees them."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class ImageArray(Protocol):
    """Images uint8 [n, H, W, 3] by row: an array, or rows of one that stays on disk."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Any: ...


class StoredImages:
    """Some rows of images that are stored elsewhere; reading copies the rows asked for, nothing else."""

    def __init__(self, stored: ImageArray, rows: NDArray[np.int64]) -> None:
        self.stored = stored
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Any) -> NDArray[np.uint8]:
        found: NDArray[np.uint8] = self.stored[self.rows[rows]]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:] if dtype is None else self[:].astype(dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """[n, H, W, 3]"""
        return (len(self.rows), *self.stored[:1].shape[1:])


@dataclass(frozen=True)
class Samples:
    """Images uint8 [n, H, W, 3], labels int64 [n], and ids int64 [n] unique within the data set."""

    images: ImageArray
    labels: NDArray[np.int64]
    ids: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: NDArray[np.int64]) -> "Samples":
        """The samples at `rows`, in that order; the images themselves stay where they are."""
        return Samples(rows_of(self.images, rows), self.labels[rows], self.ids[rows])

    def joined(self, other: "Samples") -> "Samples":
        """These samples and then those of `other`, of the same data set."""
        return Samples(
            _joined(self.images, other.images),
            np.concatenate([self.labels, other.labels]),
            np.concatenate([self.ids, other.ids]),
        )


@dataclass(frozen=True)
class ImageData:
    """A data set: training, validation and test samples, the last as the data set itself says."""

    train: Samples
    validation: Samples
    test: Samples
    class_names: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    # The same wherever the same images with the same labels are, whatever their files are called.
    digest: str = ""


def rows_of(images: ImageArray, rows: NDArray[np.int64]) -> StoredImages:
    """The images at `rows`, without reading them."""
    if isinstance(images, StoredImages):
        return StoredImages(images.stored, images.rows[rows])
    return StoredImages(images, rows)


def _joined(first: ImageArray, second: ImageArray) -> ImageArray:
    if isinstance(first, StoredImages) and isinstance(second, StoredImages) and first.stored is second.stored:
        return StoredImages(first.stored, np.concatenate([first.rows, second.rows]))
    return np.concatenate([first[:], second[:]])
