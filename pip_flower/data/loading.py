"""A configured data set: found, decoded once, checked."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pip_flower.config.schema import ConfigError, as_mapping
from pip_flower.config.sections import DatasetConfig
from pip_flower.data.samples import ImageData, Samples, StoredImages
from pip_flower.data.sources.base import Source
from pip_flower.data.sources.listing import Listing, Part, keep, labelled
from pip_flower.data.sources.registry import source_named
from pip_flower.data.sources.trees import MissingDataError, walk
from pip_flower.data.store import ImageStore
from pip_flower.data.validation import hold_out
from pip_flower.runtime.process import user_cache_directory

# What decides which images are stored, and how.
_STORED_BY = ("source", "data_dir", "class_names", "stored_size", "test_fraction", "on_corrupt", "keep")


def load_data(config: DatasetConfig, cache: Path | None = None) -> ImageData:
    """Open the configured data set and check it against the configuration."""
    data = open_data(config, cache or user_cache_directory())
    _require_classes(config, len(data.class_names))
    return data


def check_source(config: DatasetConfig) -> None:
    """Refuse data that is not there or not what is configured, as far as can be seen without its images."""
    names = class_names(config)
    if names is not None and not config.class_names:
        _require_classes(config, len(names[: config.keep.classes or None]))


def count_classes(config: DatasetConfig) -> int:
    """How many classes the configured names or the data have; images are not read unless there is no other
    way."""
    names = config.class_names or class_names(config)
    if names is None:
        names = source_named(config.source).listed(config).class_names
    return len(names[: config.keep.classes or None])


def class_names(config: DatasetConfig) -> Sequence[str] | None:
    """What the classes are called, in label order, as the data says; None where only the images tell. Fails
    where there is no such data."""
    source = source_named(config.source)
    with _reading(source, config):
        return source.named(config) if source.named else source.listed(config).class_names


def open_data(config: DatasetConfig, cache: Path) -> ImageData:
    """The images of a source, whatever number of classes is configured; decoded into `cache` if need be."""
    source = source_named(config.source)

    def listed() -> Listing:
        with _reading(source, config):
            found = source.listed(config)
        return keep(labelled(found, config.class_names), config.keep)

    if not source.needs_files:
        listing = listed()
        everything, test = _in_memory(listing.train), _in_memory(listing.test)
        train, validation = hold_out(everything, config.validation_fraction)
        return ImageData(train, validation, test, listing.class_names, digest=_digest(everything, test))
    identity = {key: as_mapping(getattr(config, key)) for key in _STORED_BY}
    identity["fingerprint"] = _fingerprint(source, config)
    store = ImageStore(cache / "data", identity, listed, config.on_corrupt)
    first, second = np.split(np.arange(len(store)), [store.train])
    train, validation = hold_out(_stored(store, first), config.validation_fraction)
    test = _stored(store, second)
    return ImageData(train, validation, test, store.class_names, store.skipped, store.digest)


def _require_classes(config: DatasetConfig, found: int) -> None:
    if found != config.classes:
        raise ConfigError(
            "dataset.classes",
            f"{config.classes} configured, but the data has {found} classes",
            f"Set dataset.classes={found}",
        )


@contextmanager
def _reading(source: Source, config: DatasetConfig) -> Iterator[None]:
    """Errors of the disk as something a person can act on."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            "dataset.data_dir",
            f"{str(error.filename or config.data_dir)!r} cannot be read: {error.strerror or error}",
            f"Give {source.wanted}",
        ) from None


def _digest(*parts: Samples) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.labels.tobytes())
        digest.update(np.ascontiguousarray(part.images[:]).tobytes())
    return digest.hexdigest()


def _in_memory(part: Part) -> Samples:
    return Samples(np.stack([part.read(row) for row in range(len(part))]), part.labels, part.ids)


def _stored(store: ImageStore, rows: NDArray[np.int64]) -> Samples:
    table = store.table[rows]
    return Samples(StoredImages(store, rows), table["label"].astype(np.int64), table["id"].astype(np.int64))


def _fingerprint(source: Source, config: DatasetConfig) -> str:
    """Changes when a file of the source does: names, sizes and times, not contents."""
    path = Path(config.data_dir).expanduser()
    digest = hashlib.sha256()
    try:
        if not config.data_dir or not path.exists():
            got = f"; `pip-flower data prepare {source.name}` gets it" if source.archive else ""
            raise MissingDataError.at(config.data_dir, source.wanted + got)
        files = sorted(walk(path)) if path.is_dir() else [(path.name, path.stat())]
    except PermissionError as error:
        raise ConfigError(
            "dataset.data_dir", f"{error.filename!r} may not be read", "Grant read permission to this user"
        ) from None
    for name, state in files:
        digest.update(f"{name}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
    return digest.hexdigest()
