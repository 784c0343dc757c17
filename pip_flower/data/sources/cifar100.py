"""CIFAR-100 as its authors' python pickles, in their archive or extracted."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import DatasetConfig
from pip_flower.data.sources.arrays import array_part
from pip_flower.data.sources.base import Archive, Source
from pip_flower.data.sources.listing import Listing, Part, listing_of
from pip_flower.data.sources.pickles import unpickled
from pip_flower.data.sources.trees import Tree, open_tree

_ARCHIVE = "cifar-100-python.tar.gz"
_WANTED = "cifar-100-python.tar.gz, or the directory that it unpacks to (cifar-100-python/train, test, meta)"
_FILES = ("train", "test", "meta")


def list_cifar100(config: DatasetConfig) -> Listing:
    """100 classes of 32 x 32 pixels with their fine labels; 500 training and 100 test images each."""
    tree, root = _opened(config)
    names = _names(tree, root)
    train, test = (_part(tree, root + part, len(names), config.stored_size) for part in ("train", "test"))
    return listing_of(names, train, test)


def name_cifar100(config: DatasetConfig) -> Sequence[str]:
    """The fine labels."""
    return _names(*_opened(config))


def _opened(config: DatasetConfig) -> tuple[Tree, str]:
    tree = open_tree(config, _WANTED, lambda tree: tree.folder_of(*_FILES) is not None, _ARCHIVE)
    return tree, tree.folder_of(*_FILES) or ""


def _names(tree: Tree, root: str) -> list[str]:
    found: list[str] = unpickled(tree, f"{root}meta", "fine_label_names")["fine_label_names"]
    return found


def _part(tree: Tree, name: str, classes: int, size: int) -> Part:
    stored = unpickled(tree, name, "data", "fine_labels")
    planes: NDArray[np.uint8] = np.asarray(stored["data"])
    labels = np.array(stored["fine_labels"], dtype=np.int64)
    if planes.shape != (len(labels), 3072) or planes.dtype != np.uint8:
        raise ConfigError(
            "dataset.data_dir",
            f"{name!r} has {len(labels)} labels for images {planes.dtype} {planes.shape}",
            "Download or copy it again",
        )
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise ConfigError(
            "dataset.data_dir",
            f"{name!r} has labels from {labels.min()} to {labels.max()}, but there are {classes} classes",
            "Download or copy it again",
        )
    images = planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return array_part(images, labels, f"{name} image", size)


CIFAR100 = Source(
    "cifar100",
    _WANTED,
    list_cifar100,
    Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        _ARCHIVE,
        "eb9058c3a382ffc7106e4002c42a8d85",
    ),
    named=name_cifar100,
)
