"""Where images come from: one function per source, all returning the same arrays."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from pip_flower.config import DatasetConfig
from pip_flower.runtime import stream
from pip_flower.schema import ConfigError


@dataclass(frozen=True)
class Samples:
    """Images uint8 [n, H, W, 3], labels int64 [n], and ids int64 [n] unique within the data set."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    ids: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: NDArray[np.int64]) -> "Samples":
        """The samples at `rows`, in that order."""
        return Samples(self.images[rows], self.labels[rows], self.ids[rows])


@dataclass(frozen=True)
class ImageData:
    """A data set with its official split into training and test samples."""

    train: Samples
    test: Samples
    class_names: tuple[str, ...]


def load_data(config: DatasetConfig) -> ImageData:
    """Read the configured source and check it against the configuration."""
    if config.source not in _SOURCES:
        raise ConfigError(
            "dataset.source",
            f"{config.source!r} is not known",
            f"Choose from: {', '.join(sorted(_SOURCES))}",
        )
    data = _SOURCES[config.source](config)
    found = len(data.class_names)
    if found != config.classes:
        raise ConfigError(
            "dataset.classes",
            f"{config.classes} configured, but the data has {found} classes",
            f"Set dataset.classes={found}",
        )
    return data


def _digits(config: DatasetConfig) -> ImageData:  # noqa: ARG001
    """1,797 scans of handwritten digits that ship inside scikit-learn; every fifth of a class tests."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    grey = np.round(bunch.images * (255 / 16)).astype(np.uint8)
    images = np.repeat(grey[..., None], 3, axis=3)
    labels = bunch.target.astype(np.int64)
    # The split is part of the data set: it does not change with the seed of a run.
    order = stream(0, "digits", "split").permutation(len(labels))
    rank = np.empty(len(labels), dtype=np.int64)
    for label in range(10):
        members = order[labels[order] == label]
        rank[members] = np.arange(len(members))
    names = tuple(str(label) for label in range(10))
    return _assembled(images, labels, test=rank % 5 == 0, class_names=names)


def _npz(config: DatasetConfig) -> ImageData:
    """An .npz file with x_train, y_train, x_test, y_test and, optionally, class_names."""
    path = Path(config.data_dir).expanduser()
    if not config.data_dir or not path.is_file():
        raise ConfigError(
            "dataset.data_dir",
            f"there is no file {config.data_dir!r}",
            "Give the absolute path of an .npz with x_train, y_train, x_test, y_test",
        )
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise ConfigError(
            "dataset.data_dir", f"{str(path)!r} cannot be read: {error}", "Write the file again"
        ) from None
    for name in ("x_train", "y_train", "x_test", "y_test"):
        if name not in arrays:
            known = ", ".join(sorted(arrays))
            raise ConfigError("dataset.data_dir", f"{path.name!r} has no array {name!r}", f"It has: {known}")
    images = np.concatenate([_as_rgb(arrays["x_train"], path), _as_rgb(arrays["x_test"], path)])
    labels = np.concatenate([arrays["y_train"], arrays["y_test"]]).astype(np.int64).reshape(-1)
    names = arrays.get("class_names", np.arange(labels.max(initial=-1) + 1))
    if len(labels) != len(images) or labels.min(initial=0) < 0 or labels.max() >= len(names):
        raise ConfigError(
            "dataset.data_dir",
            f"the labels in {path.name!r} do not fit its images or class names",
            f"Give one label from 0 to {len(names) - 1} per image",
        )
    test = np.arange(len(labels)) >= len(arrays["y_train"])
    return _assembled(images, labels, test=test, class_names=tuple(map(str, names)))


def _as_rgb(images: NDArray[np.uint8], path: Path) -> NDArray[np.uint8]:
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or images.dtype != np.uint8 or images.shape[3] not in (1, 3):
        raise ConfigError(
            "dataset.data_dir",
            f"images in {path.name!r} are {images.dtype} {images.shape}",
            "Give uint8 [n, height, width] or [n, height, width, 3]",
        )
    return np.repeat(images, 3, axis=3) if images.shape[3] == 1 else images


def _assembled(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    test: NDArray[np.bool_],
    class_names: tuple[str, ...],
) -> ImageData:
    everything = Samples(images, labels, np.arange(len(labels), dtype=np.int64))
    train = everything.take(np.flatnonzero(~test))
    return ImageData(train, everything.take(np.flatnonzero(test)), class_names)


_SOURCES: dict[str, Callable[[DatasetConfig], ImageData]] = {"digits": _digits, "npz": _npz}
