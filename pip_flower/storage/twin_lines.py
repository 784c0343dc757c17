"""Lines that are appended to two files, so that the end which one of them loses is in the other.

A checkpoint notes how far the lines went and the checksum of all of them; it need not hold them.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from pip_flower.storage.checksummed import TornFileError
from pip_flower.storage.files import append_line, write_bytes


@dataclass(frozen=True)
class LinesPosition:
    """How many bytes of lines there are, and their SHA-256."""

    bytes: int = 0
    sha256: str = hashlib.sha256().hexdigest()


class TwinLines:
    """The same lines in `first` and `second`; both end with the last line that was appended."""

    def __init__(self, first: Path, second: Path) -> None:
        self.first, self.second = first, second
        second.parent.mkdir(exist_ok=True)
        self._bytes = 0
        self._digest = hashlib.sha256()

    @property
    def position(self) -> LinesPosition:
        """Where the next line goes."""
        return LinesPosition(self._bytes, self._digest.hexdigest())

    def append(self, line: str) -> None:
        """Add a line to both files and flush it to disk."""
        for path in (self.first, self.second):
            append_line(path, line)
        data = f"{line}\n".encode()
        self._bytes += len(data)
        self._digest.update(data)

    def go_back(self, position: LinesPosition) -> list[str]:
        """Hold what was held then, nothing more and nothing less; the lines. `TornFileError` if both files
        have lost some of it."""
        found = {path: path.read_bytes() if path.is_file() else b"" for path in (self.first, self.second)}
        heads = (data[: position.bytes] for data in found.values())
        whole = next((head for head in heads if hashlib.sha256(head).hexdigest() == position.sha256), None)
        if whole is None:
            raise TornFileError(f"{self.first} and its copy are cut short or altered")
        for path, data in found.items():
            if data != whole or not path.is_file():
                write_bytes(path, whole)
        self._bytes, self._digest = len(whole), hashlib.sha256(whole)
        return whole.decode().splitlines()
