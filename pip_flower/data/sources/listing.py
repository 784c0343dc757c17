"""What a source holds, before anything is decoded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import KeepConfig

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


def part_of(labels: NDArray[np.int64], names: Sequence[str], read: Callable[[int], Image]) -> Part:
    """Images numbered from 0."""
    return Part(labels, names, read, np.arange(len(labels), dtype=np.int64))


def listing_of(class_names: Sequence[str], train: Part, test: Part) -> Listing:
    """A source of two parts that each number their images from 0; test images count on from the others."""
    return Listing(tuple(class_names), train, replace(test, ids=test.ids + len(train)))


def labelled(listing: Listing, class_names: tuple[str, ...]) -> Listing:
    """Labels by position in `class_names`, where those are given: the same on every node, whichever of the
    classes it holds."""
    if not class_names:
        return listing
    unknown = [name for name in listing.class_names if name not in class_names]
    if unknown:
        raise ConfigError(
            "dataset.class_names",
            f"the data has classes that are not among them: {_some(unknown)}",
            "Add them to the list, or remove their images",
        )
    position = np.array([class_names.index(name) for name in listing.class_names], dtype=np.int64)
    train, test = (replace(part, labels=position[part.labels]) for part in (listing.train, listing.test))
    return Listing(class_names, train, test)


def keep(listing: Listing, config: KeepConfig) -> Listing:
    """Only the first classes, and of each only the first images, in the source's order; 0 keeps all."""
    names = listing.class_names[: config.classes or None]
    return replace(
        listing,
        class_names=names,
        train=_first(listing.train, len(names), config.train),
        test=_first(listing.test, len(names), config.test),
    )


def require_images(class_names: Sequence[str], labels: NDArray[np.int64], part: str) -> None:
    """Refuse classes of which there is nothing to learn, or nothing to test."""
    present = np.unique(labels)
    empty = [name for label, name in enumerate(class_names) if label not in present]
    if empty:
        raise ConfigError(
            "dataset.data_dir",
            f"{len(empty)} of {len(class_names)} classes have no {part} images: {_some(empty)}",
            "Add images, or leave these classes out",
        )


def _first(part: Part, classes: int, count: int) -> Part:
    kept = [np.flatnonzero(part.labels == label)[: count or None] for label in range(classes)]
    rows = np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *kept]))
    return part if len(rows) == len(part) else part.take(rows)


def _some(names: Sequence[str], shown: int = 5) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(map(repr, names[:shown])) + more
