"""What a process keeps for as long as it lives, and where it keeps what outlives it."""

import os
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeVar, cast

from pip_flower.config.paths import absolute_path
from pip_flower.config.sections import RuntimeConfig

T = TypeVar("T")
_cache: dict[Hashable, Any] = {}


def once_per_process(key: Hashable, make: Callable[[], T]) -> T:
    """`make()` the first time this process asks for `key`, the same object afterwards."""
    if key not in _cache:
        _cache[key] = make()
    return cast(T, _cache[key])


def cache_directory(config: RuntimeConfig) -> Path:
    """Where things that can be computed again are kept: `runtime.cache_dir`, else PIP_FLOWER_CACHE, else
    pip-flower in the user's cache directory."""
    if config.cache_dir:
        return absolute_path("runtime.cache_dir", config.cache_dir)
    return user_cache_directory()


def user_cache_directory() -> Path:
    """Where things that can be computed again are kept unless configured otherwise."""
    given = os.environ.get("PIP_FLOWER_CACHE", "")
    if given:
        return absolute_path("PIP_FLOWER_CACHE", given)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pip-flower"


def state_directory(config: RuntimeConfig) -> Path:
    """Where a client keeps what must outlive a round: `runtime.state_dir`, else PIP_FLOWER_STATE, else
    pip-flower in the user's state directory."""
    if config.state_dir:
        return absolute_path("runtime.state_dir", config.state_dir)
    given = os.environ.get("PIP_FLOWER_STATE", "")
    if given:
        return absolute_path("PIP_FLOWER_STATE", given)
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "pip-flower"


def alive(process: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
