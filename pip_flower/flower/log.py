"""What Flower says during a run, in a file that stays with the run."""

import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def colourless(text: str) -> str:
    """Without the codes that colour a terminal."""
    return _COLOURS.sub("", text)


def say_nothing(text: str) -> None:
    """Nobody listens."""


def say_all(text: str) -> None:
    """For --debug."""
    sys.stderr.write(text)
    sys.stderr.flush()


class FlowerLog:
    """The file `path`, from where it ends now: an earlier part belongs to what the run did before it was
    resumed. What is new is passed on to `tell`."""

    def __init__(self, path: Path, tell: Callable[[str], None] = say_nothing) -> None:
        self.path = path
        self._start = path.stat().st_size if path.is_file() else 0
        self._told = self._start
        self._tell = tell

    @classmethod
    def draft(cls, directory: Path, tell: Callable[[str], None] = say_nothing) -> "FlowerLog":
        """Under a hidden name in `directory`, to be moved into the run directory as soon as there is one."""
        directory.mkdir(parents=True, exist_ok=True)
        handle, path = tempfile.mkstemp(dir=directory, prefix=".flower-", suffix=".log")
        os.fchmod(handle, 0o644)
        os.close(handle)
        return cls(Path(path), tell)

    def move(self, path: Path) -> None:
        """Whoever writes goes on writing to it."""
        if path != self.path:
            self.path = self.path.rename(path)

    def text(self) -> str:
        """All of it so far."""
        return self._since(self._start)

    def tell_news(self) -> None:
        """Pass on what was written since the last time."""
        if news := self._since(self._told):
            self._told += len(news.encode("utf-8", errors="surrogateescape"))
            self._tell(news)

    def _since(self, position: int) -> str:
        with self.path.open("rb") as file:
            file.seek(position)
            return file.read().decode("utf-8", errors="surrogateescape")
