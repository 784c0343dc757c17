"""Own images in one .npz file."""

from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import DatasetConfig
from pip_flower.data.sources.arrays import array_part
from pip_flower.data.sources.base import Source
from pip_flower.data.sources.listing import Listing, listing_of
from pip_flower.data.sources.trees import MissingDataError

_WANTED = "the absolute path of an .npz with x_train, y_train, x_test, y_test"


def list_npz(config: DatasetConfig) -> Listing:
    """An .npz file with x_train, y_train, x_test, y_test and, optionally, class_names."""
    path = Path(config.data_dir).expanduser()
    if not config.data_dir or not path.is_file():
        raise MissingDataError(f"there is no file {config.data_dir!r}", _WANTED)
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
    labels = {part: arrays[f"y_{part}"].astype(np.int64).reshape(-1) for part in ("train", "test")}
    both = np.concatenate([labels["train"], labels["test"]])
    names = arrays.get("class_names", config.class_names or np.arange(both.max(initial=-1) + 1))
    fit = both.min(initial=0) >= 0 and both.max(initial=0) < len(names)
    for part in ("train", "test"):
        _check_images(arrays[f"x_{part}"], path)
        if not fit or len(labels[part]) != len(arrays[f"x_{part}"]):
            raise ConfigError(
                "dataset.data_dir",
                f"the labels in {path.name!r} do not fit its images or class names",
                f"Give one label from 0 to {len(names) - 1} per image",
            )
    train, test = (
        array_part(arrays[f"x_{part}"], labels[part], f"x_{part}", config.stored_size)
        for part in ("train", "test")
    )
    return listing_of(list(map(str, names)), train, test)


def _check_images(images: NDArray[np.uint8], path: Path) -> None:
    channels = images.shape[3] if images.ndim == 4 else 1
    if images.ndim not in (3, 4) or images.dtype != np.uint8 or channels not in (1, 3):
        raise ConfigError(
            "dataset.data_dir",
            f"images in {path.name!r} are {images.dtype} {images.shape}",
            "Give uint8 [n, height, width] or [n, height, width, 3]",
        )


NPZ = Source("npz", _WANTED, list_npz)
