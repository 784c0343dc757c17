"""The YAML files of conf/ and of other packages' methods, and what each builds on.

A file may build on another of its group (`defaults: {method: pip-dualprompt}`), and a method on a prompt
structure (`defaults: {prompt: l2p}`), where the last one named replaces those of the files it builds on.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from pip_flower.config.schema import ConfigError

_PACKAGE = Path(__file__).resolve().parents[1]
# Groups that files of other groups build on.
_PARTS = ("prompt",)
# Files of methods outside conf/, by label; None where the options' defaults suffice.
Elsewhere = Mapping[str, Path | None]


def conf_directory() -> Path:
    """conf/ beside the package (checkout, Flower bundle) or inside it (installed wheel)."""
    beside = _PACKAGE.parent / "conf"
    return beside if (beside / "base.yaml").is_file() else _PACKAGE / "app" / "conf"


def available(group: str) -> list[str]:
    """Names of the files of a group of conf/."""
    return sorted(path.stem for path in (conf_directory() / group).glob("*.yaml"))


def method_labels(elsewhere: Elsewhere) -> dict[str, str]:
    """What `method` can be: files of conf/method and of other packages, each with its first comment."""
    ours = {label: conf_directory() / "method" / f"{label}.yaml" for label in available("method")}
    found = {**elsewhere, **ours}
    return {label: "" if path is None else _first_comment(path) for label, path in sorted(found.items())}


def _first_comment(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


class File(NamedTuple):
    """A file of a group, and the files of other groups that it builds on."""

    name: str
    source: str
    content: dict[str, Any]
    parts: dict[str, str]


def lineage(group: str, name: str, elsewhere: Elsewhere) -> list[File]:
    """The file and those of its group that it builds on, the first ancestor first."""
    files: list[File] = []
    seen: list[str] = []
    while name:
        if name in seen:
            chain = " -> ".join([*seen, name])
            raise ConfigError(f"defaults.{group}", f"goes round in circles: {chain}", "Break the circle")
        seen.append(name)
        source, content = _find(group, name, elsewhere if group == "method" else {})
        parts = dict(content.pop("defaults", {}))
        parent = str(parts.pop(group, ""))
        if unknown := set(parts) - set(_PARTS):
            known = ", ".join((group, *_PARTS))
            raise ConfigError(f"defaults.{min(unknown)}", "is not a group", f"Groups: {known}", source)
        files.append(File(name, source, content, parts))
        name = parent
    return files[::-1]


def _find(group: str, name: str, elsewhere: Elsewhere) -> tuple[str, dict[str, Any]]:
    """Where a file is, and what it says."""
    if name in elsewhere and name not in available(group):
        path = elsewhere[name]
        if path is None:
            return f"the package of {name}", {group: {"name": name}}
        return str(path), read(path)
    return f"conf/{group}/{name}.yaml", read_group(group, name, elsewhere)


def read_group(group: str, name: str, elsewhere: Elsewhere | None = None) -> dict[str, Any]:
    if name not in available(group):
        known = sorted({*available(group), *(elsewhere or {})})
        raise ConfigError(group, f"there is no conf/{group}/{name}.yaml", f"Choose from: {', '.join(known)}")
    return read(conf_directory() / group / f"{name}.yaml")


def read(path: Path) -> dict[str, Any]:
    shown = f"conf/{path.relative_to(conf_directory())}" if conf_directory() in path.parents else str(path)
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(shown, f"cannot be read: {error}", "Mend the file") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(shown, "is not a mapping", "Write key: value lines")
    return values
