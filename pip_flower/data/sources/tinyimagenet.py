"""TinyImageNet-200 in its original layout, zipped or extracted."""

from collections import defaultdict
from pathlib import Path

import numpy as np

from pip_flower.config import DatasetConfig
from pip_flower.data.sources.listing import Listing, Part, listing_of, part_of
from pip_flower.data.sources.pictures import decode
from pip_flower.data.sources.trees import Tree, open_tree
from pip_flower.schema import ConfigError


def list_tinyimagenet(config: DatasetConfig) -> Listing:
    """wnids.txt gives the order of classes, train/<wnid>/images the training images, val the test images;
    classes without a training folder are left out."""
    path = Path(config.data_dir).expanduser()
    if not config.data_dir or not path.exists():
        raise ConfigError(
            "dataset.data_dir",
            f"there is no {config.data_dir!r}",
            "Give tiny-imagenet-200.zip, or the directory that it unpacks to",
        )
    tree = open_tree(path)
    root = tree.folder_of("wnids.txt")
    if root is None:
        raise ConfigError(
            "dataset.data_dir",
            f"{str(path)!r} has no wnids.txt",
            "Give tiny-imagenet-200.zip, or the directory that it unpacks to",
        )
    trained = _training_images(tree, root)
    wnids = [wnid for wnid in tree.text(f"{root}wnids.txt").split() if wnid in trained]
    tested = _validation_images(tree, root)
    words = dict(line.split("\t", 1) for line in tree.text(f"{root}words.txt").splitlines() if "\t" in line)
    return listing_of(
        [words.get(wnid, wnid).strip() for wnid in wnids],
        _part(tree, [trained[wnid] for wnid in wnids]),
        _part(tree, [tested[wnid] for wnid in wnids]),
    )


def _training_images(tree: Tree, root: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    prefix = f"{root}train/"
    for name in tree.names:
        if name.startswith(prefix) and name.endswith(".JPEG"):
            found[name[len(prefix) :].split("/")[0]].append(name)
    return found


def _validation_images(tree: Tree, root: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for line in tree.text(f"{root}val/val_annotations.txt").splitlines():
        name, wnid = line.split("\t")[:2]
        found[wnid].append(f"{root}val/images/{name}")
    return found


def _part(tree: Tree, files: list[list[str]]) -> Part:
    """Images by class."""
    names = [name for members in files for name in members]
    labels = np.repeat(np.arange(len(files)), [len(members) for members in files]).astype(np.int64)
    return part_of(labels, names, lambda row: decode(tree.read(names[row])))
