"""YAML files and overrides to one checked configuration.

Later sources win: conf/base.yaml, then the dataset, federation and method files that the experiment
selects, then the experiment's own keys, then the overrides, then an explicit seed and data directory.

A file may build on another of its group (`defaults: {method: pip-dualprompt}`), and a method on a prompt
structure (`defaults: {prompt: l2p}`), where the last one named replaces those of the files it builds on.
"""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import yaml

from pip_flower.config.checks import PATH_KEYS, check_config
from pip_flower.config.schema import ConfigError, build
from pip_flower.config.sections import Config

_PACKAGE = Path(__file__).resolve().parents[1]
_GROUPS = ("dataset", "federation", "method")
# Groups that files of other groups build on.
_PARTS = ("prompt",)


class Catalogue(Protocol):
    """What is known above this layer: the methods, those of other packages included, and the data sources."""

    def method_files(self) -> Mapping[str, Path | None]:
        """YAML files of methods outside conf/, by label; None where the options' defaults suffice."""

    def method_options(self, name: str) -> type:
        """The dataclass of a method's options; a ConfigError for an unknown name."""

    def check(self, config: Config) -> None:
        """Raise a ConfigError for names that mean nothing."""


@dataclass(frozen=True)
class Selection:
    """What Flower's run config or the command line chose; empty means "as the files say"."""

    experiment: str = "digits"
    method: str = ""
    dataset: str = ""
    overrides: str = ""
    data_dir: str = ""
    seed: int = -1

    @classmethod
    def from_run_config(cls, values: Mapping[str, Any]) -> "Selection":
        """Read Flower's scalars (keys with hyphens)."""
        return cls(
            experiment=str(values.get("experiment") or cls.experiment),
            method=str(values.get("method", "")),
            dataset=str(values.get("dataset", "")),
            overrides=str(values.get("overrides", "")),
            data_dir=str(values.get("data-dir", "")),
            seed=int(values.get("seed", -1)),
        )


def conf_directory() -> Path:
    """conf/ beside the package (checkout, Flower bundle) or inside it (installed wheel)."""
    beside = _PACKAGE.parent / "conf"
    return beside if (beside / "base.yaml").is_file() else _PACKAGE / "app" / "conf"


def compose(selection: Selection, catalogue: Catalogue) -> Config:
    """Compose, check and freeze."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    experiment = _read_group("experiment", selection.experiment)
    chosen = dict(experiment.pop("defaults", {}))
    chosen |= {k: v for k in ("method", "dataset") if (v := getattr(selection, k))}
    _merge(values, _read(conf_directory() / "base.yaml"), origins, "conf/base.yaml")
    label = str(chosen.get("method", ""))
    elsewhere = catalogue.method_files() if label and label not in available("method") else {}
    for group in _GROUPS:
        if name := chosen.pop(group, None):
            _merge_group(values, group, str(name), origins, elsewhere)
    source = f"conf/experiment/{selection.experiment}.yaml"
    if chosen:
        key = f"defaults.{next(iter(chosen))}"
        raise ConfigError(key, "is not a group", f"Groups: {', '.join(_GROUPS)}", source)
    _merge(values, experiment, origins, source)
    _merge(values, parse_overrides(selection.overrides), origins, "overrides")
    values["experiment"] = selection.experiment
    if selection.seed >= 0:
        _merge(values, {"seed": selection.seed}, origins, "run config")
    if selection.data_dir:
        _merge(values, {"dataset": {"data_dir": selection.data_dir}}, origins, "run config")
    try:
        values["method"] = {"label": label, **_method(values.get("method"), catalogue, origins)}
        config = build(Config, values, origins=origins)
        check_config(config, origins)
        catalogue.check(config)
    except ConfigError as error:
        raise error.traced(origins) from None
    return config


def restore(values: Mapping[str, Any], catalogue: Catalogue) -> Config:
    """The configuration whose `as_mapping()` was saved with a run."""
    method = dict(values["method"])
    label = method.pop("label")
    restored = {**values, "method": {"label": label, **_method(method, catalogue, {})}}
    config: Config = build(Config, restored)
    return config


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


def available(group: str) -> list[str]:
    """Names of the files of a group of conf/."""
    return sorted(path.stem for path in (conf_directory() / group).glob("*.yaml"))


def method_labels(catalogue: Catalogue) -> dict[str, str]:
    """What `method` can be: files of conf/method and of other packages, each with its first comment."""
    ours = {label: conf_directory() / "method" / f"{label}.yaml" for label in available("method")}
    found = {**catalogue.method_files(), **ours}
    return {label: "" if path is None else _first_comment(path) for label, path in sorted(found.items())}


def _first_comment(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


def _method(values: Any, catalogue: Catalogue, origins: dict[str, str]) -> Any:
    if not isinstance(values, Mapping) or not isinstance(values.get("name"), str):
        raise ConfigError("method.name", "is missing", "Select a method", origins.get("method", ""))
    options = {key: value for key, value in values.items() if key != "name"}
    built: object = build(catalogue.method_options(values["name"]), options, "method", origins)
    return {"name": values["name"], "options": built}


def _merge(
    into: dict[str, Any],
    new: Mapping[str, Any],
    origins: dict[str, str],
    source: str,
    path: str = "",
) -> None:
    for name, value in new.items():
        key = f"{path}.{name}" if path else str(name)
        if isinstance(value, Mapping) and isinstance(into.get(name), dict):
            _merge(into[name], value, origins, source, key)
            continue
        into[name] = _copy(value)
        origins |= dict.fromkeys(_paths(key, value), source)


def _paths(key: str, value: Any) -> Iterator[str]:
    yield key
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _paths(f"{key}.{name}", inner)


def _copy(value: Any) -> Any:
    return {k: _copy(v) for k, v in value.items()} if isinstance(value, Mapping) else value


class _File(NamedTuple):
    """A file of a group, and the files of other groups that it builds on."""

    source: str
    content: dict[str, Any]
    parts: dict[str, str]


def _merge_group(
    values: dict[str, Any],
    group: str,
    name: str,
    origins: dict[str, str],
    elsewhere: Mapping[str, Path | None],
) -> None:
    """A file of a group over those that it builds on."""
    files = _lineage(group, name, elsewhere)
    parts: dict[str, str] = {}
    for file in files:
        parts |= file.parts
    for part, chosen in parts.items():
        _merge(values, _read_group(part, chosen), origins, f"conf/{part}/{chosen}.yaml")
    for file in files:
        _merge(values, file.content, origins, file.source)


def _lineage(group: str, name: str, elsewhere: Mapping[str, Path | None]) -> list[_File]:
    """The file and those of its group that it builds on, the first ancestor first."""
    files: list[_File] = []
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
        files.append(_File(source, content, parts))
        name = parent
    return files[::-1]


def _find(group: str, name: str, elsewhere: Mapping[str, Path | None]) -> tuple[str, dict[str, Any]]:
    """Where a file is, and what it says."""
    if name in elsewhere and name not in available(group):
        path = elsewhere[name]
        if path is None:
            return f"the package of {name}", {group: {"name": name}}
        return str(path), _read(path)
    return f"conf/{group}/{name}.yaml", _read_group(group, name, elsewhere)


def _read_group(group: str, name: str, elsewhere: Mapping[str, Path | None] | None = None) -> dict[str, Any]:
    if name not in available(group):
        known = sorted({*available(group), *(elsewhere or {})})
        raise ConfigError(group, f"there is no conf/{group}/{name}.yaml", f"Choose from: {', '.join(known)}")
    return _read(conf_directory() / group / f"{name}.yaml")


def _read(path: Path) -> dict[str, Any]:
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
