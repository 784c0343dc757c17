"""A listing decoded into files: images one after the other, and a table of their rows."""

import os
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from PIL import UnidentifiedImageError

from pip_flower.config.schema import ConfigError
from pip_flower.data.notices import progress, say
from pip_flower.data.sources.listing import Image, Listing, Part

ROW = np.dtype([("label", "<i8"), ("id", "<i8"), ("sum", "<u4")])
_UNREADABLE = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    zlib.error,
    BadZipFile,
    Pillow.DecompressionBombError,
)
_AT_ONCE = 256
_NAMED = 20


@dataclass
class Decoded:
    """What has been decoded: the rows written (training images first), and what could not be read."""

    shape: tuple[int, ...] = ()
    train: int = 0
    rows: list[tuple[int, int, int]] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def table(self) -> NDArray[np.void]:
        """Label, id and checksum of each image."""
        return np.array(self.rows, dtype=ROW)


def decode_into(path: Path, listing: Listing, on_corrupt: str) -> Decoded:
    """Write all images to `path`, raw; unreadable ones are named, and refused or left out."""
    decoded = Decoded()
    total = len(listing.train) + len(listing.test)
    with path.open("wb") as file, progress("decoding images", total) as advance:
        for part in (listing.train, listing.test):
            for row, image in enumerate(_images(part)):
                _add(decoded, file, part, row, image, total)
                if on_corrupt == "refuse" and len(decoded.unreadable) >= _NAMED:
                    _refuse(decoded)
                advance(len(decoded.rows) + len(decoded.unreadable))
            if part is listing.train:
                decoded.train = len(decoded.rows)
        file.flush()
        os.fsync(file.fileno())
    if decoded.unreadable and on_corrupt == "refuse":
        _refuse(decoded)
    for problem in decoded.unreadable:
        say(f"skipped {problem}")
    return decoded


def _images(part: Part) -> Iterator[Image | Exception]:
    """Every image of a part, in order; a few at a time are decoded ahead, outside the interpreter lock."""
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        for first in range(0, len(part), _AT_ONCE):
            rows = range(first, min(first + _AT_ONCE, len(part)))
            yield from pool.map(partial(_read, part), rows)


def _read(part: Part, row: int) -> Image | Exception:
    try:
        return part.read(row)
    except _UNREADABLE as error:
        return error


def _add(
    decoded: Decoded, file: BinaryIO, part: Part, row: int, image: Image | Exception, total: int
) -> None:
    name = part.names[row]
    if isinstance(image, Exception):
        decoded.unreadable.append(f"{name}: {_reason(image)}")
        return
    if not decoded.shape:
        decoded.shape = image.shape
        _require_space(Path(file.name).parent, total * image.size)
    if image.shape != decoded.shape:
        (height, width), (h, w) = image.shape[:2], decoded.shape[:2]
        raise ConfigError(
            "dataset.stored_size",
            f"images differ in size: {name!r} is {width} x {height}, those before it {w} x {h}",
            "Give the side in pixels that all are brought to, such as 256",
        )
    raw = np.ascontiguousarray(image).tobytes()
    file.write(raw)
    decoded.rows.append((int(part.labels[row]), int(part.ids[row]), zlib.crc32(raw)))


def _refuse(decoded: Decoded) -> None:
    count = len(decoded.unreadable)
    listed = "; ".join(decoded.unreadable[:_NAMED])
    images = f"{count} or more images" if count >= _NAMED else f"{count} image{'s' * (count > 1)}"
    raise ConfigError(
        "dataset.on_corrupt",
        f"{images} cannot be read: {listed}",
        "Mend or remove them, or set dataset.on_corrupt=skip to go on without them",
    )


def _require_space(directory: Path, needed: int) -> None:
    state = os.statvfs(directory)
    free = state.f_bavail * state.f_frsize
    if needed > free:
        raise ConfigError(
            "runtime.cache_dir",
            f"the decoded images need {needed / 1e6:,.0f} MB, and {str(directory.parent)!r} has "
            f"{free / 1e6:,.0f} MB left",
            "Free some space, give a directory on a larger disk, or use a part (dataset.keep)",
        )


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    if isinstance(error, FileNotFoundError):
        return "not there"
    return " ".join(str(error).split()) or type(error).__name__


def checksums(images: NDArray[np.uint8]) -> Iterator[int]:
    """The checksum of each image [n, H, W, 3], as the table has it."""
    return (zlib.crc32(np.ascontiguousarray(image).data) for image in images)
