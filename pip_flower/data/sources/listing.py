"""What a source holds, before anything is decoded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pip_flower.config import KeepConfig

Image = NDArray[np.uint8]


@dataclass(frozen=True)
class Part:
    """One half (training or test) of a source: `read(row)` decodes one image uint8 [H, W, 3], and
    `names[row]` is what a person would call it."""

    labels: NDArray[np.int64]
    names: Sequence[str]
    read: Callable[[int], Image]
    ids: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: NDArray[np.int64]) -> "Part":
        """The images at `rows`, in that order."""
        names = [self.names[row] for row in rows]
        return Part(self.labels[rows], names, lambda i: self.read(int(rows[i])), self.ids[rows])


@dataclass(frozen=True)
class Listing:
    """A whole source: labels count from 0 in the order of `class_names`."""

    class_names: tuple[str, ...]
    train: Part
    test: Part


def listing_of(class_names: Sequence[str], train: Part, test: Part) -> Listing:
    """A source of two parts that each number their images from 0; test images count on from the others."""
    return Listing(tuple(class_names), train, replace(test, ids=test.ids + len(train)))


def keep(listing: Listing, config: KeepConfig) -> Listing:
    """Only the first classes, and of each only the first images, in the source's order; 0 keeps all."""
    names = listing.class_names[: config.classes or None]
    return replace(
        listing,
        class_names=names,
        train=_first(listing.train, len(names), config.train),
        test=_first(listing.test, len(names), config.test),
    )


def _first(part: Part, classes: int, count: int) -> Part:
    kept = [np.flatnonzero(part.labels == label)[: count or None] for label in range(classes)]
    rows = np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *kept]))
    return part if len(rows) == len(part) else part.take(rows)


def part_of(labels: NDArray[np.int64], names: Sequence[str], read: Callable[[int], Image]) -> Part:
    """Images numbered from 0."""
    return Part(labels, names, read, np.arange(len(labels), dtype=np.int64))


def array_part(images: NDArray[np.uint8], labels: NDArray[np.int64], name: str) -> Part:
    """Images that are arrays already; grey ones [n, H, W] or [n, H, W, 1] become RGB."""

    def read(row: int) -> Image:
        image = images[row] if images.ndim == 4 else images[row][..., None]
        return np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image

    return part_of(labels, [f"{name} {row}" for row in range(len(labels))], read)
