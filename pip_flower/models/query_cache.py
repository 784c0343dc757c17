"""Queries q(x) on disk, computed once per image and shared by all processes and later runs.

One append-only file per namespace (backbone weights, transform, numerics): a header that spells the
namespace out, then records of a fixed size, each with its own checksum. Readers map the file; writers
append whole records under a lock. A damaged record counts as absent and is appended anew.
"""

import fcntl
import hashlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pip_flower.storage.files import write_bytes

Queries = NDArray[np.float32]
_KEY_BYTES, _SUM_BYTES = 16, 8
_log = logging.getLogger(__name__)


def image_key(image: NDArray[np.uint8]) -> bytes:
    """Identifies an image uint8 [H, W, 3] by its shape and pixels."""
    digest = hashlib.blake2b(str(image.shape).encode(), digest_size=_KEY_BYTES)
    digest.update(np.ascontiguousarray(image).tobytes())
    return digest.digest()


class QueryCache:
    """Queries [D] by image key; falls back to memory when the disk cannot be used."""

    def __init__(self, directory: Path, namespace: str, dim: int) -> None:
        name = hashlib.sha256(namespace.encode()).hexdigest()
        self.path = directory / "queries" / f"{name[:32]}.bin"
        self._header = hashlib.sha256(f"pip-flower queries 1\n{dim}\n{namespace}".encode()).digest()
        self._record = np.dtype(
            [("key", f"V{_KEY_BYTES}"), ("query", "<f4", (dim,)), ("sum", f"V{_SUM_BYTES}")]
        )
        self._map: NDArray[np.void] = np.zeros(0, self._record)
        self._rows: dict[bytes, int] = {}
        self._memory: dict[bytes, Queries] = {}
        self._disk = True

    def missing(self, keys: Sequence[bytes]) -> list[int]:
        """Positions of the keys that nobody has stored yet, each key once."""
        if any(not self._has(key) for key in keys):
            self._refresh()
        first = {key: position for position, key in reversed(list(enumerate(keys)))}
        return sorted(position for key, position in first.items() if not self._has(key))

    def read(self, keys: Sequence[bytes]) -> Queries:
        """The queries [n, D] of keys that are not missing."""
        dim = self._record["query"].shape[0]
        found = np.empty((len(keys), dim), dtype=np.float32)
        for row, key in enumerate(keys):
            found[row] = self._map["query"][self._rows[key]] if key in self._rows else self._memory[key]
        return found

    def add(self, queries: Mapping[bytes, Queries]) -> None:
        """Store new queries; on disk if that works, for this process in any case."""
        self._memory |= queries
        if not self._disk:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._append(queries)
        except OSError as error:
            self._give_up(error)
            return
        self._refresh()
        for key in queries.keys() & self._rows.keys():
            del self._memory[key]

    def _has(self, key: bytes) -> bool:
        return key in self._rows or key in self._memory

    def _refresh(self) -> None:
        """Take in what this or another process has appended since."""
        if not self._disk:
            return
        try:
            if not self.path.is_file():
                return
            with self.path.open("rb") as file:
                if file.read(len(self._header)) != self._header:
                    return
                size = os.fstat(file.fileno()).st_size
                count = (size - len(self._header)) // self._record.itemsize
                known = len(self._map)
                if count <= known:
                    return
                self._map = np.memmap(file, self._record, mode="r", offset=len(self._header), shape=(count,))
        except (OSError, ValueError) as error:
            self._give_up(error)
            return
        for row in range(known, count):
            record = self._map[row]
            if bytes(record["sum"]) == _checksum(bytes(record["key"]), record["query"]):
                self._rows[bytes(record["key"])] = row

    def _append(self, queries: Mapping[bytes, Queries]) -> None:
        records = np.zeros(len(queries), self._record)
        for record, (key, query) in zip(records, queries.items(), strict=True):
            record["key"], record["query"] = np.void(key), query
            record["sum"] = np.void(_checksum(key, record["query"]))
        with self._locked() as handle:
            # A write that fails half-way leaves whole records, which are good, and perhaps a torn one,
            # which the next writer overwrites; cutting the file would pull it from under readers.
            _write_all(handle, records.tobytes(), self._whole_end(handle))

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The file, with its header, for this process alone."""
        while True:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                if not self._is_current(handle):
                    continue
                if os.pread(handle, len(self._header), 0) == self._header:
                    yield handle
                    return
                # Stale or damaged: a new file takes its place, because somebody may have mapped this one.
                write_bytes(self.path, self._header)
                self._map, self._rows = np.zeros(0, self._record), {}
            finally:
                os.close(handle)

    def _is_current(self, handle: int) -> bool:
        """Whether another process has put a new file in the place of this one meanwhile."""
        try:
            return os.path.samestat(os.fstat(handle), self.path.stat())
        except FileNotFoundError:
            return False

    def _whole_end(self, handle: int) -> int:
        """Where the next record goes: behind the last whole one."""
        size = os.fstat(handle).st_size
        return size - (size - len(self._header)) % self._record.itemsize

    def _give_up(self, error: Exception) -> None:
        self._disk = False
        _log.warning("queries are kept in memory only: %s cannot be used (%s)", self.path, error)


def _checksum(key: bytes, query: Queries) -> bytes:
    return hashlib.blake2b(key + query.tobytes(), digest_size=_SUM_BYTES).digest()


def _write_all(handle: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, offset)
        view, offset = view[written:], offset + written
