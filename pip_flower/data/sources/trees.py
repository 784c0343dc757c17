"""Files of a data set, whether in a directory or still in their archive."""

import tarfile
import zipfile
from abc import ABC, abstractmethod
from pathlib import Path

from pip_flower.schema import ConfigError


class Tree(ABC):
    """Named files; names use forward slashes and are sorted."""

    names: list[str]

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The content of a file."""

    def text(self, name: str) -> str:
        """The content of a text file."""
        return self.read(name).decode("utf-8", errors="replace")

    def folder_of(self, name: str) -> str | None:
        """The folder (ending in "/", or empty) that holds a file of this name, nearest to the root."""
        found = [n.removesuffix(name) for n in self.names if n == name or n.endswith(f"/{name}")]
        return min(found, key=len, default=None)


class Directory(Tree):
    """Files below a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names = sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())

    def read(self, name: str) -> bytes:
        """The content of a file."""
        return (self.root / name).read_bytes()


class ZipArchive(Tree):
    """Files inside a .zip; only what is read is unpacked."""

    def __init__(self, path: Path) -> None:
        self.archive = zipfile.ZipFile(path)
        self.names = sorted(name for name in self.archive.namelist() if not name.endswith("/"))

    def read(self, name: str) -> bytes:
        """The content of a file."""
        return self.archive.read(name)


class TarArchive(Tree):
    """Files inside a .tar or .tar.gz."""

    def __init__(self, path: Path) -> None:
        self.archive = tarfile.open(path)  # noqa: SIM115  (open as long as the tree is)
        self.members = {member.name: member for member in self.archive.getmembers() if member.isfile()}
        self.names = sorted(self.members)

    def read(self, name: str) -> bytes:
        """The content of a file."""
        file = self.archive.extractfile(self.members[name])
        assert file is not None  # members are files
        return file.read()


def open_tree(path: Path) -> Tree:
    """The files below a directory or inside an archive."""
    if path.is_dir():
        return Directory(path)
    try:
        return ZipArchive(path) if zipfile.is_zipfile(path) else TarArchive(path)
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise ConfigError(
            "dataset.data_dir",
            f"{str(path)!r} is not a readable archive: {error}",
            "Download or copy the file again",
        ) from None
