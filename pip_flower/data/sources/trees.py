"""Files of a data set, whether in a directory or still in their archive."""

import os
import tarfile
import threading
import weakref
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import DatasetConfig

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
# A compressed tar is read from the front for every file; more than a few would take for ever.
_COMPRESSED_FILES = 50


class MissingDataError(ConfigError):
    """There is no data set where it should be."""

    def __init__(self, problem: str, wanted: str) -> None:
        super().__init__("dataset.data_dir", problem, f"Give {wanted}")

    @classmethod
    def at(cls, data_dir: str, wanted: str) -> "MissingDataError":
        """Nothing is there at all."""
        return cls(f"there is no {data_dir!r}" if data_dir else "is not set", wanted)


class Tree(ABC):
    """Named files; names use forward slashes and are sorted."""

    names: list[str]
    empty: list[str]  # folders in which there is no file

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The content of a file."""

    def text(self, name: str) -> str:
        """The content of a text file."""
        return self.read(name).decode("utf-8", errors="replace")

    def folder_of(self, *names: str) -> str | None:
        """The folder (ending in "/", or empty) nearest to the root that holds files of all these names."""
        known = set(self.names)
        last = names[-1]
        folders = [n.removesuffix(last) for n in self.names if n == last or n.endswith(f"/{last}")]
        whole = [folder for folder in folders if all(folder + name in known for name in names)]
        return min(whole, key=len, default=None)


class Directory(Tree):
    """Files below a directory; hidden ones are not data."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names = sorted(name for name, _ in walk(root))
        self.empty = sorted(
            Path(folder).relative_to(root).as_posix()
            for folder, folders, files in os.walk(root, followlinks=True)
            if not folders and not any(map(_is_data, files))
        )

    def read(self, name: str) -> bytes:
        """The content of a file."""
        return (self.root / name).read_bytes()


class ZipArchive(Tree):
    """Files inside a .zip; only what is read is unpacked."""

    def __init__(self, path: Path) -> None:
        self.archive = zipfile.ZipFile(path)
        weakref.finalize(self, self.archive.close)
        listed = self.archive.namelist()
        self.names = sorted(filter(_is_data, listed))
        self.empty = _without_files([name.rstrip("/") for name in listed if name.endswith("/")], self.names)

    def read(self, name: str) -> bytes:
        """The content of a file."""
        return self.archive.read(name)


class TarArchive(Tree):
    """Files inside a .tar, or a few inside a compressed one."""

    def __init__(self, path: Path) -> None:
        self.archive = tarfile.open(path)  # noqa: SIM115  (open as long as the tree is)
        weakref.finalize(self, self.archive.close)
        members = {m.name.removeprefix("./"): m for m in self.archive.getmembers() if m.isfile()}
        self.members = {name: member for name, member in members.items() if _is_data(name)}
        self.names = sorted(self.members)
        folders = [m.name.removeprefix("./") for m in self.archive.getmembers() if m.isdir()]
        self.empty = _without_files(folders, self.names)
        # Readers in several threads share one position in the file.
        self.lock = threading.Lock()
        if len(self.names) > _COMPRESSED_FILES and path.suffix != ".tar":
            raise ConfigError(
                "dataset.data_dir",
                f"{path.name!r} holds {len(self.names)} files in one compressed stream",
                "Unpack it, and give the directory",
            )

    def read(self, name: str) -> bytes:
        """The content of a file."""
        with self.lock:
            file = self.archive.extractfile(self.members[name])
            assert file is not None  # members are files
            return file.read()


def open_tree(
    config: DatasetConfig, wanted: str, recognised: Callable[[Tree], bool], archive: str = ""
) -> Tree:
    """The files of `dataset.data_dir`: an archive, a directory, or a directory that holds one archive or,
    among others, the one of the name that its authors gave it (`archive`)."""
    path = Path(config.data_dir).expanduser()
    if not config.data_dir or not path.exists():
        raise MissingDataError.at(config.data_dir, wanted)
    tree = _tree(path)
    archives = [n for n in tree.names if n.endswith(ARCHIVES) and "/" not in n] if path.is_dir() else []
    if not recognised(tree) and (len(archives) == 1 or archive in archives):
        tree = _tree(path / (archive if archive in archives else archives[0]))
    if not recognised(tree):
        several = f", but several archives ({', '.join(archives)})" if len(archives) > 1 else ""
        raise MissingDataError(f"{str(path)!r} holds no such data set{several}", wanted)
    return tree


def walk(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Names and states of the files below `root` that may be data."""

    def fail(error: OSError) -> None:
        raise error

    for folder, folders, files in os.walk(root, onerror=fail, followlinks=True):
        folders[:] = sorted(name for name in folders if _is_data(name))
        inside = Path(folder).relative_to(root)
        for name in filter(_is_data, files):
            yield (inside / name).as_posix(), os.stat(os.path.join(folder, name))


def _tree(path: Path) -> Tree:
    try:
        if path.is_dir():
            return Directory(path)
        return ZipArchive(path) if path.suffix == ".zip" or zipfile.is_zipfile(path) else TarArchive(path)
    except PermissionError as error:
        raise ConfigError(
            "dataset.data_dir", f"{error.filename!r} may not be read", "Grant read permission to this user"
        ) from None
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise ConfigError(
            "dataset.data_dir",
            f"{str(path)!r} is not a readable archive: {str(error).splitlines()[0]}",
            "Download or copy the file again",
        ) from None


def _without_files(folders: list[str], names: list[str]) -> list[str]:
    direct = {PurePosixPath(name.rpartition("/")[0]) for name in names}
    used = {str(above) for folder in direct for above in (folder, *folder.parents)}
    return sorted(set(folders) - used - {""})


def _is_data(name: str) -> bool:
    """Neither a directory's entry nor what file managers leave behind."""
    last = name.rpartition("/")[2]
    return bool(last) and not last.startswith(".") and "__MACOSX" not in name
