"""CIFAR-100 as its authors' python pickles, in their archive or extracted."""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pip_flower.config import DatasetConfig
from pip_flower.data.sources.listing import Listing, Part, array_part, listing_of
from pip_flower.data.sources.trees import Tree, open_tree
from pip_flower.schema import ConfigError

_ARCHIVE = "cifar-100-python.tar.gz"
_REMEDY = f"Give {_ARCHIVE}, or the directory that holds it or what it unpacks to"


def list_cifar100(config: DatasetConfig) -> Listing:
    """100 classes of 32 x 32 pixels with their fine labels; 500 training and 100 test images each."""
    path = Path(config.data_dir).expanduser()
    if not config.data_dir or not path.exists():
        raise ConfigError("dataset.data_dir", f"there is no {config.data_dir!r}", _REMEDY)
    tree = open_tree(path)
    if tree.folder_of("meta") is None and _ARCHIVE in tree.names:
        tree = open_tree(path / _ARCHIVE)
    root = tree.folder_of("meta")
    if root is None:
        raise ConfigError("dataset.data_dir", f"{str(path)!r} has no CIFAR-100 pickles", _REMEDY)
    names = _unpickled(tree, f"{root}meta")["fine_label_names"]
    return listing_of(names, _part(tree, root, "train"), _part(tree, root, "test"))


def _part(tree: Tree, root: str, name: str) -> Part:
    stored = _unpickled(tree, root + name)
    planes: NDArray[np.uint8] = stored["data"]
    images = planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return array_part(images, np.array(stored["fine_labels"], dtype=np.int64), f"{name} image")


def _unpickled(tree: Tree, name: str) -> dict[str, Any]:
    return dict(_ArraysOnly(io.BytesIO(tree.read(name)), encoding="latin1").load())


class _ArraysOnly(pickle.Unpickler):
    """A pickle may name any function to call; these need only what rebuilds arrays."""

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy.core", "numpy._core")
        known = {("numpy._core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}
        if (module, name) in known | {("_codecs", "encode")}:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")
