"""Directories that results are to go to."""

import os
from pathlib import Path

from pip_flower.config.schema import ConfigError


def require_writable(key: str, directory: Path) -> None:
    """Refuse a directory that can be neither made nor written to; `key` is what it was given by. Nothing is
    made yet."""
    try:
        existing = next(path for path in (directory, *directory.parents) if path.exists())
    except OSError as error:
        raise ConfigError(key, f"{str(directory)!r}: {error.strerror}", "Give another place") from None
    if not existing.is_dir():
        raise ConfigError(key, f"{str(existing)!r} is not a directory", "Give another place")
    if not os.access(existing, os.W_OK | os.X_OK):
        problem = f"{str(existing)!r} may not be written to"
        raise ConfigError(key, problem, "Give another place, or change its permissions")
