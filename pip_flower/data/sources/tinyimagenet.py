"""TinyImageNet-200 in its original layout, zipped or extracted."""

from collections import defaultdict

from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import DatasetConfig
from pip_flower.data.sources.base import Archive, Source
from pip_flower.data.sources.folder import Files
from pip_flower.data.sources.listing import Listing, listing_of
from pip_flower.data.sources.pictures import is_picture, picture_part
from pip_flower.data.sources.trees import Tree, open_tree

_ARCHIVE = "tiny-imagenet-200.zip"
_WANTED = "tiny-imagenet-200.zip, or the directory that it unpacks to (wnids.txt, words.txt, train/, val/)"


def list_tinyimagenet(config: DatasetConfig) -> Listing:
    """wnids.txt gives the order of classes, train/<wnid>/images the training images, val the test images
    (its own test images have no labels); classes without a training folder are left out."""
    tree = open_tree(config, _WANTED, lambda tree: tree.folder_of("wnids.txt") is not None, _ARCHIVE)
    root = tree.folder_of("wnids.txt") or ""
    trained = _by_class(tree, f"{root}train/")
    tested = _validation_images(tree, root)
    wnids = [wnid for wnid in tree.text(f"{root}wnids.txt").split() if wnid in trained]
    names = _words(tree, root)
    return listing_of(
        [names.get(wnid, wnid) for wnid in wnids],
        picture_part(tree, [trained[wnid] for wnid in wnids], config.stored_size),
        picture_part(tree, [tested.get(wnid, []) for wnid in wnids], config.stored_size),
    )


def _words(tree: Tree, root: str) -> dict[str, str]:
    if f"{root}words.txt" not in tree.names:
        return {}
    lines = [line.split("\t", 1) for line in tree.text(f"{root}words.txt").splitlines()]
    return {words[0]: words[1].strip() for words in lines if len(words) == 2}


def _validation_images(tree: Tree, root: str) -> Files:
    """By val_annotations.txt or, where somebody has sorted them already, by class folder."""
    listed = f"{root}val/val_annotations.txt"
    if listed not in tree.names:
        found = _by_class(tree, f"{root}val/")
        if not found:
            raise ConfigError("dataset.data_dir", f"there is no {listed!r}", "Unpack the archive again")
        return found
    files: Files = defaultdict(list)
    for number, line in enumerate(tree.text(listed).splitlines(), start=1):
        columns = line.split("\t")
        if len(columns) < 2:
            raise ConfigError(
                "dataset.data_dir",
                f"line {number} of {listed!r} is not a file and a class: {line!r}",
                "Unpack the archive again",
            )
        files[columns[1]].append(f"{root}val/images/{columns[0]}")
    return files


def _by_class(tree: Tree, prefix: str) -> Files:
    found: Files = defaultdict(list)
    for name in tree.names:
        if name.startswith(prefix) and is_picture(name):
            found[name[len(prefix) :].split("/")[0]].append(name)
    return found


TINYIMAGENET = Source(
    "tinyimagenet",
    _WANTED,
    list_tinyimagenet,
    Archive(
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        _ARCHIVE,
        "90528d7ca1a48142e341f4ef8d21d0de",
    ),
)
