"""Paths in a configuration."""

from pathlib import Path

from pip_flower.config.schema import ConfigError


def absolute_path(key: str, given: str, origin: str = "") -> Path:
    """`given` as a path that is the same from every directory, or a refusal that names `key`."""
    path = Path(given).expanduser()
    if not path.is_absolute():
        raise ConfigError(
            key,
            f"{given!r} is a relative path, and Flower runs the app in another directory",
            "Give an absolute path",
            origin,
        )
    return path
