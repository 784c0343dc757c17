"""MiniImageNet in the three layouts in use: CSV files and images, class folders, pickles.

They all come from few-shot learning, where train, val and test hold different classes. Here all classes
count, and a fraction of each class's images tests.
"""

import csv
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import DatasetConfig
from pip_flower.data.sources.arrays import array_part
from pip_flower.data.sources.base import Source
from pip_flower.data.sources.folder import Files, by_class, class_folders, split_of, split_off
from pip_flower.data.sources.listing import Listing, Part, listing_of, part_of
from pip_flower.data.sources.pickles import unpickled
from pip_flower.data.sources.pictures import is_picture
from pip_flower.data.sources.trees import Tree, open_tree

_WANTED = (
    "one of: train.csv, val.csv and test.csv beside images/; class folders (n01532829/...), all together or "
    "under train/, val/ and test/; mini-imagenet-cache-{train,val,test}.pkl or "
    "miniImageNet_category_split_{train_phase_train,val,test}.pickle. There is no official download"
)
_CSV = ("train.csv", "val.csv", "test.csv")
_PICKLES = (".pkl", ".pickle")


def list_miniimagenet(config: DatasetConfig) -> Listing:
    """Classes in the order of their WordNet ids, or of the pickles' labels."""
    tree = open_tree(config, _WANTED, _recognised)
    if tree.folder_of(*_CSV) is not None:
        return _from_csv(tree, config)
    if pickles := _pickles(tree):
        return _from_pickles(tree, pickles, config)
    return _from_folders(tree, config)


def name_miniimagenet(config: DatasetConfig) -> Sequence[str] | None:
    """The WordNet ids; pickles must be read as a whole."""
    return (
        None if _pickles(open_tree(config, _WANTED, _recognised)) else list_miniimagenet(config).class_names
    )


def _recognised(tree: Tree) -> bool:
    return tree.folder_of(*_CSV) is not None or bool(_pickles(tree)) or bool(class_folders(tree))


def _pickles(tree: Tree) -> list[str]:
    """The pickles, without the second ones of MetaOptNet that repeat the training classes."""
    found = [name for name in tree.names if name.endswith(_PICKLES)]
    return [name for name in found if "train_phase_val" not in name and "train_phase_test" not in name]


def _from_folders(tree: Tree, config: DatasetConfig) -> Listing:
    """Where train/ and test/ share their classes, that is the split; else they are pooled."""
    train, test = split_of(tree, config.test_fraction)
    if not train.keys() & test.keys():
        pooled: Files = defaultdict(list)
        for (_, name), files in class_folders(tree).items():
            pooled[name] += files
        train, test = split_off(pooled, config.test_fraction)
    return by_class(tree, config, train, test)


def _from_csv(tree: Tree, config: DatasetConfig) -> Listing:
    """Rows of file name and class; the images lie flat or in class folders below images/."""
    root = tree.folder_of(*_CSV) or ""
    places = {name.rpartition("/")[2]: name for name in tree.names if is_picture(name)}
    files: Files = defaultdict(list)
    missing = []
    for table in _CSV:
        for row in csv.reader(tree.text(root + table).splitlines()[1:]):
            if len(row) < 2:
                raise ConfigError(
                    "dataset.data_dir", f"{table} has a line {row!r}", "Give lines: file name, class"
                )
            name = row[0].rpartition("/")[2]
            if name in places:
                files[row[1]].append(places[name])
            else:
                missing.append(row[0])
    if missing:
        raise ConfigError(
            "dataset.data_dir",
            f"{len(missing)} images of the CSV files are not there, the first is {missing[0]!r}",
            "Put all images below images/",
        )
    return by_class(tree, config, *split_off(files, config.test_fraction))


def _from_pickles(tree: Tree, pickles: list[str], config: DatasetConfig) -> Listing:
    """Images uint8 [n, 84, 84, 3] with lists of rows by class."""
    arrays: list[NDArray[np.uint8]] = []
    rows: Files = {}
    first = 0
    for name in pickles:
        images, members = _pickled_classes(tree, name)
        for label, positions in members.items():
            rows[label] = [f"{position + first:08d}" for position in positions]
        arrays.append(images)
        first += len(images)
    images = np.concatenate(arrays)
    train, test = split_off(rows, config.test_fraction)
    names = sorted(rows)
    return listing_of(
        names,
        *(_array_part(images, [part[name] for name in names], config.stored_size) for part in (train, test)),
    )


def _pickled_classes(tree: Tree, name: str) -> tuple[NDArray[np.uint8], dict[str, list[int]]]:
    """Images and the rows of each class, from either kind of pickle."""
    stored = unpickled(tree, name)
    if {"image_data", "class_dict"} <= stored.keys():
        images, members = np.asarray(stored["image_data"]), dict(stored["class_dict"])
    elif {"data", "labels"} <= stored.keys():
        images = np.asarray(stored["data"])
        titles = {int(label): str(title) for title, label in dict(stored.get("catname2label", {})).items()}
        members = {}
        for row, label in enumerate(stored["labels"]):
            members.setdefault(titles.get(int(label), f"{int(label):03d}"), []).append(row)
    else:
        known = ", ".join(map(str, stored))
        raise ConfigError("dataset.data_dir", f"{name!r} holds {known}", f"Give {_WANTED}")
    used = [int(row) for rows in members.values() for row in rows]
    if images.dtype != np.uint8 or images.ndim != 4 or (used and max(used) >= len(images)):
        raise ConfigError(
            "dataset.data_dir",
            f"{name!r} has images {images.dtype} {images.shape} and rows up to {max(used, default=0)}",
            "Download or copy it again",
        )
    return images, {str(label): [int(row) for row in rows] for label, rows in members.items()}


def _array_part(images: NDArray[np.uint8], rows: list[list[str]], size: int) -> Part:
    labels = np.repeat(np.arange(len(rows)), [len(members) for members in rows]).astype(np.int64)
    order = np.array([int(row) for members in rows for row in members], dtype=np.int64)
    chosen = array_part(images, np.zeros(len(images), dtype=np.int64), "image", size).take(order)
    return part_of(labels, chosen.names, chosen.read)


MINIIMAGENET = Source("miniimagenet", _WANTED, list_miniimagenet, named=name_miniimagenet)
