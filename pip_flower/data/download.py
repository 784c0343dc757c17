"""Downloads that show how far they are, go on where they broke off, and are checked at the end."""

import hashlib
import http.client
import time
import urllib.error
import urllib.request
from pathlib import Path

from pip_flower.config.schema import ConfigError
from pip_flower.data.notices import progress, say
from pip_flower.data.sources.base import Archive

_CHUNK = 1 << 18
_TIMEOUT = 30.0
_PAUSE = 2.0


def fetch(archive: Archive, directory: Path, attempts: int = 5) -> Path:
    """The archive in `directory`, downloaded unless it is there already; its checksum is right."""
    path = directory / archive.name
    if path.is_file():
        _verify(path, archive)
        return path
    part = path.with_name(f"{path.name}.part")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _download(archive, part, attempts)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise ConfigError(
            "dataset.data_dir",
            f"{archive.url} cannot be downloaded: {_reason(error)}",
            f"Run the command again to go on, or put the file at {path}",
        ) from None
    except OSError as error:
        raise ConfigError(
            "dataset.data_dir",
            f"{str(part)!r} cannot be written: {error.strerror or error}",
            "Free some space or give another directory, and run the command again to go on",
        ) from None
    _verify(part, archive)
    part.rename(path)
    return path


def _download(archive: Archive, part: Path, attempts: int) -> None:
    """Fill `part`; a connection that breaks is taken up again, as long as every attempt brings something."""
    failures = 0
    while True:
        had = _size(part)
        try:
            if _continue(archive, part):
                return
            error: Exception = http.client.IncompleteRead(b"")
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as broken:
            if isinstance(broken, urllib.error.HTTPError) and broken.code < 500:
                raise
            error = broken
        failures = 0 if _size(part) > had else failures + 1
        if failures >= attempts:
            raise error
        say(f"the connection broke after {_size(part) / 1e6:,.1f} MB ({_reason(error)}); going on from there")
        time.sleep(_PAUSE)


def _continue(archive: Archive, part: Path) -> bool:
    """Append what is missing; True when the server has sent all of it."""
    had = _size(part)
    headers = {"User-Agent": "pip-flower", **({"Range": f"bytes={had}-"} if had else {})}
    request = urllib.request.Request(archive.url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and had:
            # Nothing is missing, or what is there belongs to another file; the checksum tells.
            return True
        raise
    with response:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            had = 0  # the server sends everything again
        total = had + int(response.headers.get("Content-Length") or 0)
        with (
            part.open("ab" if had else "wb") as file,
            progress(archive.name, total, in_bytes=True) as advance,
        ):
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                had += len(chunk)
                advance(had)
    return had >= total


def _verify(path: Path, archive: Archive) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found == archive.md5:
        return
    if path.name != archive.name:
        path.unlink()
    raise ConfigError(
        "dataset.data_dir",
        f"{str(path)!r} is not what its authors published: checksum {found} instead of {archive.md5}",
        "Remove it and download it again",
    )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _reason(error: Exception) -> str:
    if isinstance(error, http.client.IncompleteRead):
        return "it ended early"
    return str(getattr(error, "reason", "") or error) or type(error).__name__
