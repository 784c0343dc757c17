"""Own images: a directory (or archive) of class folders, with or without a train/test split."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping

from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import DatasetConfig
from pip_flower.data.sources.base import Source
from pip_flower.data.sources.listing import Listing, listing_of
from pip_flower.data.sources.pictures import is_picture, picture_part
from pip_flower.data.sources.trees import Tree, open_tree

_TRAIN, _TEST = ("train", "training"), ("test", "testing", "val", "valid", "validation")
_WANTED = "a directory of class folders, or one that has them under train/ and again under test/ (or val/)"
Files = dict[str, list[str]]


def list_folder(config: DatasetConfig) -> Listing:
    """Classes are the folders' names, sorted."""
    tree = open_tree(config, _WANTED, lambda tree: bool(class_folders(tree)))
    if not config.class_names:
        _refuse_empty(tree)
    train, test = split_of(tree, config.test_fraction)
    return by_class(tree, config, train, test)


def by_class(
    tree: Tree, config: DatasetConfig, train: Files, test: Files, names: Mapping[str, str] | None = None
) -> Listing:
    """Image files by folder as a listing; `names` gives folders a better name."""
    folders = sorted({*train, *test})
    return listing_of(
        [(names or {}).get(folder, folder) for folder in folders],
        picture_part(tree, [train.get(folder, []) for folder in folders], config.stored_size),
        picture_part(tree, [test.get(folder, []) for folder in folders], config.stored_size),
    )


def split_of(tree: Tree, test_fraction: float) -> tuple[Files, Files]:
    """Training and test files by class: as the folders say, else a fixed fraction of each class."""
    folders = class_folders(tree)
    parents = {parent.rpartition("/")[2]: parent for parent, _ in folders}
    trained = next((parents[name] for name in _TRAIN if name in parents), None)
    tested = next((parents[name] for name in _TEST if name in parents), None)
    if trained is not None and tested is not None:
        return _below(folders, trained), _below(folders, tested)
    merged: Files = defaultdict(list)
    for (_, name), files in folders.items():
        merged[name] += files
    return split_off(merged, test_fraction)


def split_off(files: Files, fraction: float) -> tuple[Files, Files]:
    """Part of each class's files for testing. It depends on each file's own name, so that further images
    move few of those that are there, and never on the seed of a run."""
    train: Files = {}
    test: Files = {}
    for name, members in files.items():
        count = min(len(members) - 1, max(1, round(fraction * len(members))))
        ranked = sorted(members, key=lambda file: hashlib.sha256(file.rpartition("/")[2].encode()).digest())
        chosen = set(ranked[: max(0, count)])
        train[name] = [file for file in members if file not in chosen]
        test[name] = [file for file in members if file in chosen]
    return train, test


def class_folders(tree: Tree) -> dict[tuple[str, str], list[str]]:
    """Images by (parent folder, class folder)."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in tree.names:
        folder = name.rpartition("/")[0]
        if folder and is_picture(name):
            found[folder.rpartition("/")[0], folder.rpartition("/")[2]].append(name)
    return found


def _refuse_empty(tree: Tree) -> None:
    """A folder beside class folders that has no image was meant to be a class."""
    classes = class_folders(tree)
    parents = {parent for parent, _ in classes}
    folders = {name.rpartition("/")[0] for name in tree.names} | set(tree.empty)
    beside = {folder for folder in folders - {""} if folder.rpartition("/")[0] in parents}
    empty = sorted(beside - parents - {"/".join(filter(None, pair)) for pair in classes})
    if empty:
        raise ConfigError(
            "dataset.data_dir",
            f"class folders without a single image: {', '.join(map(repr, empty[:5]))}",
            "Put images there, or move these folders elsewhere",
        )


def _below(folders: dict[tuple[str, str], list[str]], parent: str) -> Files:
    return {name: files for (above, name), files in folders.items() if above == parent}


FOLDER = Source("folder", _WANTED, list_folder)
