"""Downloads from a server that breaks off, starts over, lies or refuses."""

import hashlib
import resource
from pathlib import Path

import numpy as np
import pytest

from pip_flower.config.schema import ConfigError
from pip_flower.data.download import fetch
from pip_flower.data.sources.base import Archive
from support.flaky_server import serving

CONTENT = np.random.default_rng(0).bytes(1_000_000)
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pip_flower.data.download._PAUSE", 0)


def test_a_download_that_breaks_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(CONTENT, at_once=300_000) as (server, archive):
        path = fetch(archive, tmp_path / "new")
    assert path.read_bytes() == CONTENT
    assert server.requests == ["", "bytes=300000-", "bytes=600000-", "bytes=900000-"]
    assert "broke after 0.3 MB (it ended early); going on" in capsys.readouterr().err
    assert [p.name for p in path.parent.iterdir()] == ["data.zip"]


def test_what_an_earlier_command_got_is_used(tmp_path: Path) -> None:
    (tmp_path / "data.zip.part").write_bytes(CONTENT[:700_000])
    with serving(CONTENT) as (server, archive):
        assert fetch(archive, tmp_path).read_bytes() == CONTENT
        assert server.requests == ["bytes=700000-"]
        # A file that is there is checked, not downloaded.
        fetch(archive, tmp_path)
        assert len(server.requests) == 1


def test_a_server_without_ranges_sends_everything_again(tmp_path: Path) -> None:
    (tmp_path / "data.zip.part").write_bytes(b"x" * 700_000)
    with serving(CONTENT, knows_ranges=False) as (_, archive):
        assert fetch(archive, tmp_path).read_bytes() == CONTENT


def test_a_part_that_is_whole_already_is_taken(tmp_path: Path) -> None:
    (tmp_path / "data.zip.part").write_bytes(CONTENT)
    with serving(CONTENT) as (_, archive):
        assert fetch(archive, tmp_path).read_bytes() == CONTENT


def test_a_wrong_checksum_is_refused_and_nothing_kept(tmp_path: Path) -> None:
    (tmp_path / "data.zip.part").write_bytes(b"x" * 700_000)
    with serving(CONTENT) as (_, archive), pytest.raises(ConfigError, match=f"checksum .* instead of {MD5}"):
        fetch(archive, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_file_that_a_person_put_there_is_refused_but_kept(tmp_path: Path) -> None:
    (tmp_path / "data.zip").write_bytes(b"mine")
    archive = Archive("http://127.0.0.1:9/data.zip", "data.zip", MD5)
    with pytest.raises(ConfigError, match="is not what its authors published"):
        fetch(archive, tmp_path)
    assert (tmp_path / "data.zip").read_bytes() == b"mine"


@pytest.mark.parametrize(("status", "requests"), [(404, 1), (503, 3)])
def test_a_server_that_refuses_is_named_with_what_to_do(tmp_path: Path, status: int, requests: int) -> None:
    with serving(CONTENT, status=status) as (server, archive):
        with pytest.raises(
            ConfigError, match=f"{archive.url} cannot be downloaded.*put the file at .*data.zip"
        ):
            fetch(archive, tmp_path, attempts=3)
        # What does not exist will not appear; a busy server may recover.
        assert len(server.requests) == requests


def test_no_server_at_all(tmp_path: Path) -> None:
    archive = Archive("http://127.0.0.1:9/data.zip", "data.zip", MD5)
    with pytest.raises(ConfigError, match="cannot be downloaded: .*[Rr]efused"):
        fetch(archive, tmp_path, attempts=2)


def test_a_full_disk_keeps_what_was_got(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with serving(CONTENT) as (_, archive):
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, hard))
        try:
            with pytest.raises(ConfigError, match="data.zip.part' cannot be written: File too large"):
                fetch(archive, tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert fetch(archive, tmp_path).read_bytes() == CONTENT
