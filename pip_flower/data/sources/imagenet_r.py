"""ImageNet-R: renditions of 200 ImageNet classes; images of all sizes, no official split."""

import re

from pip_flower.config.sections import DatasetConfig
from pip_flower.data.sources.base import Archive, Source
from pip_flower.data.sources.folder import Files, by_class, class_folders, split_of
from pip_flower.data.sources.listing import Listing
from pip_flower.data.sources.trees import Tree, open_tree

_ARCHIVE = "imagenet-r.tar"
_WANTED = "imagenet-r.tar, or the directory that it unpacks to (imagenet-r/n01443537/..., README.txt)"
_WNID = re.compile(r"n\d{8}")


def list_imagenet_r(config: DatasetConfig) -> Listing:
    """Class folders named by WordNet id, split by dataset.test_fraction (or into train/ and test/, as some
    continual-learning code leaves them); README.txt names the classes."""
    tree = open_tree(
        config, _WANTED, lambda tree: any(_WNID.fullmatch(c) for _, c in class_folders(tree)), _ARCHIVE
    )
    train, test = split_of(tree, config.test_fraction)
    return by_class(tree, config, _wnids(train), _wnids(test), _class_names(tree))


def _wnids(files: Files) -> Files:
    return {name: members for name, members in files.items() if _WNID.fullmatch(name)}


def _class_names(tree: Tree) -> dict[str, str]:
    root = tree.folder_of("README.txt")
    if root is None:
        return {}
    lines = [line.split(maxsplit=1) for line in tree.text(f"{root}README.txt").splitlines()]
    return {words[0]: words[1] for words in lines if len(words) == 2 and _WNID.fullmatch(words[0])}


IMAGENET_R = Source(
    "imagenet-r",
    _WANTED,
    list_imagenet_r,
    Archive(
        "https://people.eecs.berkeley.edu/~hendrycks/imagenet-r.tar",
        _ARCHIVE,
        "a61312130a589d0ca1a8fca1f2bd3337",
    ),
)
