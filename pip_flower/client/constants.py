"""What the server sends once per task, kept on disk for all clients of a run on this machine."""

import re
from pathlib import Path

from pip_flower.arrays import Arrays
from pip_flower.storage.checksummed import TornFileError, read_checksummed, write_checksummed
from pip_flower.storage.files import locked, sweep

# That of the present task, and that of the one before: a server may go back to its last checkpoint.
_KEPT = 2
_DIGEST = re.compile(r"[0-9a-f]{64}")


class ConstantArrays:
    """`<root>/<run>/constant/<digest>.arrays`; the digest, which the server tells, is of the contents."""

    def __init__(self, root: Path, run: str) -> None:
        self.directory = root / run / "constant"

    def load(self, digest: str) -> Arrays | None:
        """The arrays of that digest; None where they are not there, or not whole."""
        try:
            return read_checksummed(self._path(digest)).arrays
        except (FileNotFoundError, TornFileError):
            return None

    def save(self, digest: str, arrays: Arrays) -> None:
        """Keep arrays; what was kept longest is dropped."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Clients of one machine get the same at the same time.
        with locked(self.directory / ".lock"):
            sweep(self.directory, "*.arrays")
            if self.load(digest) is None:
                write_checksummed(self._path(digest), arrays, {})
            newest_first = sorted(self.directory.glob("*.arrays"), key=_written, reverse=True)
            for path in newest_first[_KEPT:]:
                path.unlink()

    def _path(self, digest: str) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise ValueError(f"{digest!r} is not a digest")
        return self.directory / f"{digest}.arrays"


def _written(path: Path) -> int:
    return path.stat().st_mtime_ns
