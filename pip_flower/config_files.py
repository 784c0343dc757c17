"""YAML files and overrides to one checked configuration.

Later sources win: conf/base.yaml, then the dataset, federation and method files that the experiment
selects, then the experiment's own keys, then the overrides, then an explicit seed and data directory.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pip_flower.config import Config
from pip_flower.config_checks import PATH_KEYS, check_config
from pip_flower.schema import ConfigError, build

_PACKAGE = Path(__file__).resolve().parent
_GROUPS = ("dataset", "federation", "method")


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


def load_config(selection: Selection, method_options: Callable[[str], type]) -> Config:
    """Compose, check and freeze; `method_options` gives the options dataclass of a method's name."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    experiment = _read_group("experiment", selection.experiment)
    chosen = dict(experiment.pop("defaults", {}))
    chosen |= {k: v for k in ("method", "dataset") if (v := getattr(selection, k))}
    _merge(values, _read("base.yaml"), origins, "conf/base.yaml")
    label = str(chosen.get("method", ""))
    for group in _GROUPS:
        if name := chosen.pop(group, None):
            _merge_group(values, group, name, origins)
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
    values["method"] = {"label": label, **_method(values.get("method"), method_options, origins)}
    config = build(Config, values, origins=origins)
    check_config(config, origins)
    return config


def restore_config(values: Mapping[str, Any], method_options: Callable[[str], type]) -> Config:
    """The configuration whose `as_mapping()` was saved with a run."""
    method = dict(values["method"])
    label = method.pop("label")
    restored = {**values, "method": {"label": label, **_method(method, method_options, {})}}
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


def about(group: str, name: str) -> str:
    """The first comment of a file of a group of conf/."""
    text = (conf_directory() / group / f"{name}.yaml").read_text(encoding="utf-8")
    return text.partition("\n")[0].lstrip("# ")


def _method(values: Any, method_options: Callable[[str], type], origins: dict[str, str]) -> Any:
    if not isinstance(values, Mapping) or not isinstance(values.get("name"), str):
        raise ConfigError("method.name", "is missing", "Select a method", origins.get("method", ""))
    options = {key: value for key, value in values.items() if key != "name"}
    try:
        known = method_options(values["name"])
    except ConfigError as error:
        raise error.traced(origins) from None
    built: object = build(known, options, "method", origins)
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


def _merge_group(values: dict[str, Any], group: str, name: str, origins: dict[str, str]) -> None:
    """A file of a group, over the file of the same group that it names in its `defaults`."""
    content = _read_group(group, name)
    parent = content.pop("defaults", {}).get(group)
    if parent:
        _merge_group(values, group, parent, origins)
    _merge(values, content, origins, f"conf/{group}/{name}.yaml")


def _read_group(group: str, name: str) -> dict[str, Any]:
    if name not in available(group):
        remedy = f"Choose from: {', '.join(available(group))}"
        raise ConfigError(group, f"there is no conf/{group}/{name}.yaml", remedy)
    return _read(f"{group}/{name}.yaml")


def _read(name: str) -> dict[str, Any]:
    path = conf_directory() / name
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"conf/{name}", f"cannot be read: {error}", "Mend the file") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"conf/{name}", "is not a mapping", "Write key: value lines")
    return values
