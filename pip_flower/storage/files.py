"""Files that are either whole or not there."""

import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_bytes(path: Path, data: bytes) -> None:
    """Write under a temporary name beside `path`, flush to disk, then rename."""
    # mkstemp makes the file private; results are for everybody the directory admits.
    _write(path, data, 0o644)


def write_private(path: Path, data: bytes) -> None:
    """`write_bytes` for secrets: at no moment can anybody but the owner read them."""
    _write(path, data, 0o600)


def _write(path: Path, data: bytes, mode: int) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _flush_directory(path.parent)


def write_text(path: Path, text: str) -> None:
    """`write_bytes` for text."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """`write_bytes` for plain values."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def append_line(path: Path, line: str) -> None:
    """Add a line in one go and flush it to disk: a killed process leaves all of it or nothing."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(handle, f"{line}\n".encode())
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """The file `path`, which is made if need be, is this process's alone; `waiting` is called if it has to
    wait for another. A process that ends gives its locks up, however it ends."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def sweep(directory: Path, name: str = "*") -> None:
    """Remove what killed writers left behind under temporary names; nobody may be writing meanwhile."""
    for litter in directory.glob(f".{name}.*"):
        litter.unlink(missing_ok=True)


def _flush_directory(path: Path) -> None:
    """A rename survives a power cut only once the directory is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
