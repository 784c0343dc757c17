"""Decoded images on disk: made once, mapped by every process, so that none holds a copy.

A store is a directory with the images (raw uint8), a table of rows and a description; it appears whole, by
a rename. It is made anew when the source has changed, when files are missing or cut short, and when
an image that is read has another checksum than the table says.
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pip_flower.config.schema import ConfigError
from pip_flower.data.decoding import ROW, checksums, decode_into
from pip_flower.data.notices import say
from pip_flower.data.sources.listing import Listing
from pip_flower.storage.files import locked, write_bytes, write_json

_FORMAT = 1
_log = logging.getLogger(__name__)


class ImageStore:
    """Images uint8 [n, H, W, 3] by row; training images come first."""

    def __init__(
        self,
        directory: Path,
        identity: Mapping[str, Any],
        listed: Callable[[], Listing],
        on_corrupt: str,
    ) -> None:
        """`identity` is everything the content depends on; `listed` finds the source's images."""
        plain = json.loads(json.dumps(identity))
        self._identity = {"format": _FORMAT, **plain}
        # The fingerprint is left out of the name, so that a changed source takes the place of the old.
        named = {key: value for key, value in self._identity.items() if key != "fingerprint"}
        digest = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()
        self.path = directory / digest[:24]
        self._listed = listed
        self._on_corrupt = on_corrupt
        if not self._open():
            self._make()

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, rows: Any) -> NDArray[np.uint8]:
        found = self._read(rows)
        return self._mended(rows) if found is None else found

    @property
    def train(self) -> int:
        """Number of training images."""
        return int(self._description["train"])

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names in label order."""
        return tuple(self._description["class_names"])

    @property
    def digest(self) -> str:
        """Identifies the images, with their labels and their split."""
        content = [self._description[key] for key in ("table", "shape", "train")]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @property
    def skipped(self) -> tuple[str, ...]:
        """What could not be read, and why."""
        return tuple(self._description["skipped"])

    def _read(self, rows: Any) -> NDArray[np.uint8] | None:
        """The images at `rows`, or None where one is not what was written."""
        images = np.asarray(self._images[rows])
        batch = images if images.ndim == 4 else images[None]
        expected = np.atleast_1d(self.table["sum"][rows])
        return images if list(checksums(batch)) == expected.tolist() else None

    def _open(self) -> bool:
        """Map a store that is whole and of this very source."""
        try:
            description = json.loads((self.path / "description.json").read_text(encoding="utf-8"))
            table = (self.path / "rows.bin").read_bytes()
            whole = (
                description["identity"] == self._identity
                and hashlib.sha256(table).hexdigest() == description["table"]
            )
            if not whole:
                return False
            rows = np.frombuffer(table, ROW)
            shape = (len(rows), *description["shape"])
            if (self.path / "images.bin").stat().st_size != int(np.prod(shape)):
                return False
            # Mapping nothing is an error of mmap.
            self._images = (
                np.memmap(self.path / "images.bin", np.uint8, "r", shape=shape)
                if len(rows)
                else np.zeros(shape, np.uint8)
            )
        except (OSError, ValueError, KeyError, TypeError):
            return False
        self.table, self._description = rows, description
        return True

    def _mended(self, rows: Any) -> NDArray[np.uint8]:
        """The images at `rows` from a store that is made anew, unless another process has done so."""
        _log.warning("%s is damaged and is made anew", self.path)
        table = self._description["table"]
        self._make(lambda: self._read(rows) is not None)
        if self._description["table"] != table:
            raise OSError("the images have changed since this process started; start again")
        found = self._read(rows)
        if found is None:
            raise OSError(f"{self.path} was just written and reads back differently: check the disk")
        return found

    def _make(self, good: Callable[[], bool] = lambda: True) -> None:
        """Decode the source, unless another process has done so meanwhile, and what it made is `good`."""
        with _writing(self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with locked(self.path.with_name(f"{self.path.name}.lock"), _say_that_another_decodes):
                if not (self._open() and good()):
                    self._build(self._listed())
                    if not self._open():
                        raise OSError("they read back differently")

    def _build(self, listing: Listing) -> None:
        unfinished = self.path.with_name(f".{self.path.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        try:
            decoded = decode_into(unfinished / "images.bin", listing, self._on_corrupt)
            table = decoded.table().tobytes()
            write_bytes(unfinished / "rows.bin", table)
            description = {
                "identity": self._identity,
                "class_names": list(listing.class_names),
                "shape": list(decoded.shape or (1, 1, 3)),
                "train": decoded.train,
                "skipped": decoded.unreadable,
                "table": hashlib.sha256(table).hexdigest(),
            }
            write_json(unfinished / "description.json", description)
            if self.path.exists():
                # Processes that have mapped the old files keep them until they are done.
                shutil.rmtree(self.path)
            unfinished.rename(self.path)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _say_that_another_decodes() -> None:
    say("waiting for another process that is decoding the images")


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    """Errors of the disk as something a person can act on."""
    try:
        yield
    except PermissionError as error:
        raise ConfigError(
            "runtime.cache_dir",
            f"{str(error.filename or directory)!r} may not be written: {error.strerror}",
            "Give a directory that this user may write to",
        ) from None
    except OSError as error:
        raise ConfigError(
            "runtime.cache_dir",
            f"decoded images cannot be written to {str(directory)!r}: {error.strerror or error}",
            "Free some space, or give another directory",
        ) from None
