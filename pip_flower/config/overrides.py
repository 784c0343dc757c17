"""`a.b=1 c.d=x`: keys of the configuration on a command line."""

import shlex
from pathlib import Path
from typing import Any

import yaml

from pip_flower.config.checks import PATH_KEYS
from pip_flower.config.schema import ConfigError


def parse_overrides(text: str) -> dict[str, Any]:
    """``"a.b=1 c.d=x"`` to nested mappings; values are YAML."""
    nested: dict[str, Any] = {}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError("overrides", f"{text!r}: {error}", "Close the quote") from None
    for word in words:
        key, equals, raw = word.partition("=")
        if not equals or not all(key.split(".")):
            raise ConfigError("overrides", f"{word!r} is not key=value", 'Write "a.b=1 c.d=x"')
        try:
            value = yaml.safe_load(raw) if raw else ""
        except yaml.YAMLError:
            raise ConfigError(key, f"{raw!r} is not valid YAML", "Quote it", "overrides") from None
        *sections, last = key.split(".")
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise ConfigError(key, f"{section!r} is a value", "Give one of the two", "overrides")
        place[last] = value
    return nested


def absolute_paths(overrides: str, base: Path) -> str:
    """Overrides whose paths no longer depend on the working directory; the rest as it was."""
    words = []
    for word in shlex.split(overrides):
        key, equals, value = word.partition("=")
        if key in PATH_KEYS and value:
            value = str((base / Path(value).expanduser()).resolve())
        words.append(shlex.quote(f"{key}{equals}{value}"))
    return " ".join(words)
