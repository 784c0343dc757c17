"""The sources by name."""

from pip_flower.config.schema import ConfigError
from pip_flower.data.sources.base import Source
from pip_flower.data.sources.cifar100 import CIFAR100
from pip_flower.data.sources.digits import DIGITS
from pip_flower.data.sources.folder import FOLDER
from pip_flower.data.sources.imagenet_r import IMAGENET_R
from pip_flower.data.sources.miniimagenet import MINIIMAGENET
from pip_flower.data.sources.npz import NPZ
from pip_flower.data.sources.tinyimagenet import TINYIMAGENET

_SOURCES = {
    source.name: source for source in (CIFAR100, DIGITS, FOLDER, IMAGENET_R, MINIIMAGENET, NPZ, TINYIMAGENET)
}


def source_named(name: str) -> Source:
    """The source that `dataset.source` names."""
    if name not in _SOURCES:
        known = ", ".join(sorted(_SOURCES))
        raise ConfigError("dataset.source", f"{name!r} is not known", f"Choose from: {known}")
    return _SOURCES[name]
