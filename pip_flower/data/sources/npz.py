"""Own images in one .npz file."""

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import DatasetConfig
from pip_flower.data.sources.arrays import array_part
from pip_flower.data.sources.base import Source
from pip_flower.data.sources.listing import Listing, listing_of
from pip_flower.data.sources.trees import MissingDataError

_WANTED = "the absolute path of an .npz with x_train, y_train, x_test, y_test"
_PARTS = ("train", "test")
Arrays = Mapping[str, NDArray[Any]]


def list_npz(config: DatasetConfig) -> Listing:
    """An .npz file with x_train, y_train, x_test, y_test and, optionally, class_names."""
    with _opened(config) as stored:
        images = {part: stored[f"x_{part}"] for part in _PARTS}
        labels = {part: _labels(stored, part) for part in _PARTS}
        names = _names(stored, config)
    path = Path(config.data_dir)
    both = np.concatenate([labels[part] for part in _PARTS])
    fit = both.min(initial=0) >= 0 and both.max(initial=0) < len(names)
    for part in _PARTS:
        _check_images(images[part], path)
        if not fit or len(labels[part]) != len(images[part]):
            raise ConfigError(
                "dataset.data_dir",
                f"the labels in {path.name!r} do not fit its images or class names",
                f"Give one label from 0 to {len(names) - 1} per image",
            )
    train, test = (array_part(images[part], labels[part], f"x_{part}", config.stored_size) for part in _PARTS)
    return listing_of(names, train, test)


def name_npz(config: DatasetConfig) -> Sequence[str]:
    """The class names or labels; the images stay unread."""
    with _opened(config) as stored:
        return _names(stored, config)


@contextmanager
def _opened(config: DatasetConfig) -> Iterator[Arrays]:
    """The arrays of the file, each read when it is asked for."""
    path = Path(config.data_dir).expanduser()
    if not config.data_dir or not path.is_file():
        raise MissingDataError(f"there is no file {config.data_dir!r}", _WANTED)
    try:
        # NumPy takes a file of any other kind for a pickle.
        if not zipfile.is_zipfile(path):
            raise ValueError("it is no .npz file, or only a part of one")
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            _require_arrays(stored, path)
            yield stored
    except ConfigError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(
            "dataset.data_dir", f"{str(path)!r} cannot be read: {error}", f"Give {_WANTED}"
        ) from None


def _require_arrays(stored: Arrays, path: Path) -> None:
    for name in (f"{kind}_{part}" for part in _PARTS for kind in "xy"):
        if name not in stored:
            known = ", ".join(sorted(stored))
            raise ConfigError("dataset.data_dir", f"{path.name!r} has no array {name!r}", f"It has: {known}")


def _labels(stored: Arrays, part: str) -> NDArray[np.int64]:
    return stored[f"y_{part}"].astype(np.int64).reshape(-1)


def _names(stored: Arrays, config: DatasetConfig) -> list[str]:
    if "class_names" in stored:
        return list(map(str, stored["class_names"]))
    if config.class_names:
        return list(config.class_names)
    highest = max(_labels(stored, part).max(initial=-1) for part in _PARTS)
    return [str(label) for label in range(highest + 1)]


def _check_images(images: NDArray[np.uint8], path: Path) -> None:
    channels = images.shape[3] if images.ndim == 4 else 1
    if images.ndim not in (3, 4) or images.dtype != np.uint8 or channels not in (1, 3):
        raise ConfigError(
            "dataset.data_dir",
            f"images in {path.name!r} are {images.dtype} {images.shape}",
            "Give uint8 [n, height, width] or [n, height, width, 3]",
        )


NPZ = Source("npz", _WANTED, list_npz, named=name_npz)
