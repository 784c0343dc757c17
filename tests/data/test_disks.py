"""Disks that are full or closed to this user."""

import os
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pip_flower.config.compose import Selection
from pip_flower.config.schema import ConfigError
from pip_flower.data.loading import load_data
from pip_flower.data.samples import ImageData
from pip_flower.method.configuration import load_config
from support import miniatures
from support.miniatures import WNIDS, write_files


def read(path: Path) -> ImageData:
    chosen = load_config(
        Selection(dataset="folder", overrides="dataset.classes=10 backbone.name=embedded")
    ).dataset
    return load_data(replace(chosen, data_dir=str(path), classes=3, stored_size=0), path.parent / "cache")


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    path = write_files(tmp_path / "own", miniatures.class_folders(count=30))
    with file_size_limit(8_000), pytest.raises(ConfigError, match="cannot be written to .*Free some space"):
        read(path)
    left = list((tmp_path / "cache" / "data").iterdir())
    assert [p.suffix for p in left] == [".lock"]
    assert len(read(path).train) == 72


def test_too_small_a_disk_is_noticed_before_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Small:
        f_bavail, f_frsize = 2, 4096

    path = write_files(tmp_path / "own", miniatures.class_folders(count=30))
    monkeypatch.setattr(os, "statvfs", lambda _: Small)
    with pytest.raises(ConfigError, match="the decoded images need 0 MB, and .* has 0 MB left"):
        read(path)


def test_forbidden_directories_are_named() -> None:
    # pytest's own directories are closed to others.
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        path = write_files(root / "own", miniatures.class_folders())
        root.chmod(0o555)
        with as_somebody_else(), pytest.raises(ConfigError, match="cache_dir: .*may not be written"):
            read(path)
        root.chmod(0o755)
        (path / WNIDS[0]).chmod(0)
        with as_somebody_else(), pytest.raises(ConfigError, match=f"data_dir: .*{WNIDS[0]}' may not be read"):
            read(path)
        (path / WNIDS[0]).chmod(0o755)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Writes beyond `size` fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def as_somebody_else() -> Iterator[None]:
    """Root may read and write everything, so that it must step down for this."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
