"""The sources by name, and how a data set is loaded from one."""

from collections.abc import Callable

import numpy as np

from pip_flower.config import DatasetConfig
from pip_flower.data.samples import ImageData, Samples
from pip_flower.data.sources.cifar100 import list_cifar100
from pip_flower.data.sources.digits import list_digits
from pip_flower.data.sources.listing import Listing, Part, keep
from pip_flower.data.sources.npz import list_npz
from pip_flower.data.sources.tinyimagenet import list_tinyimagenet
from pip_flower.schema import ConfigError

SOURCES: dict[str, Callable[[DatasetConfig], Listing]] = {
    "cifar100": list_cifar100,
    "digits": list_digits,
    "npz": list_npz,
    "tinyimagenet": list_tinyimagenet,
}


def load_data(config: DatasetConfig) -> ImageData:
    """Read the configured source and check it against the configuration."""
    if config.source not in SOURCES:
        raise ConfigError(
            "dataset.source",
            f"{config.source!r} is not known",
            f"Choose from: {', '.join(sorted(SOURCES))}",
        )
    listing = keep(SOURCES[config.source](config), config.keep)
    found = len(listing.class_names)
    if found != config.classes:
        raise ConfigError(
            "dataset.classes",
            f"{config.classes} configured, but the data has {found} classes",
            f"Set dataset.classes={found}",
        )
    return ImageData(_decoded(listing.train), _decoded(listing.test), listing.class_names)


def _decoded(part: Part) -> Samples:
    return Samples(np.stack([part.read(row) for row in range(len(part))]), part.labels, part.ids)
