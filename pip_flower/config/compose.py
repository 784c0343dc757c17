"""YAML files and overrides to one checked configuration.

Later sources win: conf/base.yaml, then the dataset, federation and method files that the experiment
selects, then the experiment's own keys, then what the fidelity brings with it, then the overrides, then an
explicit seed and data directory.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pip_flower.config.checks import check_config
from pip_flower.config.files import Elsewhere, available, conf_directory, lineage, read, read_group
from pip_flower.config.overrides import parse_overrides
from pip_flower.config.schema import ConfigError, build
from pip_flower.config.sections import Config

_GROUPS = ("dataset", "federation", "method")


class Catalogue(Protocol):
    """What is known above this layer: the methods, those of other packages included, and the data sources."""

    def method_files(self) -> Elsewhere:
        """YAML files of methods outside conf/, by label; None where the options' defaults suffice."""

    def method_options(self, name: str) -> type:
        """The dataclass of a method's options; a ConfigError for an unknown name."""

    def check(self, config: Config) -> None:
        """Raise a ConfigError for names that mean nothing, and for what the method cannot work with."""


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


def compose(selection: Selection, catalogue: Catalogue) -> Config:
    """Compose, check and freeze."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    experiment = read_group("experiment", selection.experiment)
    chosen = dict(experiment.pop("defaults", {}))
    chosen |= {k: v for k in ("method", "dataset") if (v := getattr(selection, k))}
    _merge(values, read(conf_directory() / "base.yaml"), origins, "conf/base.yaml")
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
    overrides = parse_overrides(selection.overrides)
    fidelity = overrides.get("fidelity", values.get("fidelity"))
    if fidelity in available("fidelity"):
        _merge(values, read_group("fidelity", fidelity), origins, f"conf/fidelity/{fidelity}.yaml")
    _merge(values, overrides, origins, "overrides")
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


def _merge_group(
    values: dict[str, Any],
    group: str,
    name: str,
    origins: dict[str, str],
    elsewhere: Elsewhere,
) -> None:
    """A file of a group over those that it builds on."""
    files = lineage(group, name, elsewhere)
    parts: dict[str, str] = {}
    for file in files:
        parts |= file.parts
    for part, chosen in parts.items():
        _merge(values, read_group(part, chosen), origins, f"conf/{part}/{chosen}.yaml")
    for file in files:
        _merge(values, file.content, origins, file.source)
