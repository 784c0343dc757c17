"""YAML files and overrides to one checked configuration.

Later sources win: conf/base.yaml, then the dataset, federation and method files that the experiment
selects, then the experiment's own keys, then what the fidelity brings with it, then the overrides, then an
explicit seed and data directory. For learning rates see `learning_rates.py`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from pip_flower.config.checks import check_config, check_paths
from pip_flower.config.files import Elsewhere, File, available, conf_directory, lineage, read, read_group
from pip_flower.config.learning_rates import SECTION, check_names, named_rate, refuse_common_rate
from pip_flower.config.overrides import parse_overrides
from pip_flower.config.schema import ConfigError, Origins, build
from pip_flower.config.sections import Config, DatasetConfig, flat

_GROUPS = ("dataset", "federation", "method")
BASE = "conf/base.yaml"
_FIDELITY = "conf/fidelity/"
# The experiments of those who name none: with the embedded data, and with any other.
_EMBEDDED, _OWN = "digits", "own"
# Sources of which every user has others.
_OWN_IMAGES = ("folder", "npz")
_ARCHIVE = re.compile(r"\.(npz|zip|tgz|tar(\.\w+)?)$")


class Catalogue(Protocol):
    """What is known above this layer: the methods, those of other packages included, and the data sources."""

    def method_files(self) -> Elsewhere:
        """YAML files of methods outside conf/, by label; None where the options' defaults suffice."""

    def method_options(self, name: str) -> type:
        """The dataclass of a method's options; a ConfigError for an unknown name."""

    def classes(self, dataset: DatasetConfig) -> int:
        """How many classes the data has."""

    def check(self, config: Config, origins: Origins) -> None:
        """Raise a ConfigError for names that mean nothing, and for data that a backbone cannot work with."""

    def check_method(self, config: Config) -> None:
        """Raise a ConfigError for what the method cannot work with."""


@dataclass(frozen=True)
class Selection:
    """What Flower's run config or the command line chose; empty means "as the files say"."""

    experiment: str = ""
    method: str = ""
    dataset: str = ""
    overrides: str = ""
    data_dir: str = ""
    seed: int = -1

    @classmethod
    def from_run_config(cls, values: Mapping[str, Any]) -> "Selection":
        """Read Flower's scalars (keys with hyphens)."""
        return cls(
            experiment=str(values.get("experiment", "")),
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
    overrides = parse_overrides(selection.overrides)
    name = _experiment(selection, overrides)
    experiment = read_group("experiment", name)
    chosen = dict(experiment.pop("defaults", {}))
    other_data = selection.dataset not in ("", chosen.get("dataset"))
    chosen |= {k: v for k in ("method", "dataset") if (v := getattr(selection, k))}
    _merge(values, read(conf_directory() / "base.yaml"), origins, BASE)
    label = str(chosen.get("method", ""))
    elsewhere = catalogue.method_files() if label and label not in available("method") else {}
    files: dict[str, list[File]] = {}
    for group in _GROUPS:
        if file := chosen.pop(group, None):
            files[group] = _merge_group(values, group, str(file), origins, elsewhere)
    source = f"conf/experiment/{name}.yaml"
    if chosen:
        key = f"defaults.{next(iter(chosen))}"
        raise ConfigError(key, "is not a group", f"Groups: {', '.join(_GROUPS)}", source)
    refuse_common_rate(experiment, source)
    _merge(values, experiment, origins, source)
    fidelity = overrides.get("fidelity", values.get("fidelity"))
    if fidelity in available("fidelity"):
        _merge(values, read_group("fidelity", fidelity), origins, f"{_FIDELITY}{fidelity}.yaml")
    _merge(values, overrides, origins, "overrides")
    values["experiment"] = name
    if selection.seed >= 0:
        _merge(values, {"seed": selection.seed}, origins, "run config")
    if selection.data_dir:
        _merge(values, {"dataset": {"data_dir": selection.data_dir}}, origins, "run config")
    with _traced(origins):
        _choose_learning_rate(values, files.get("method", []), origins, catalogue)
        values["method"] = {"label": label, **_method(values.get("method"), catalogue, origins)}
        config: Config = build(Config, values, origins=origins)
        check_paths(config, origins)
        catalogue.check(config, origins)
    if other_data or origins["dataset.source"] == "overrides":
        config = replace(config, experiment=_data_name(config.dataset))
    # Not traced: what is wrong with the data was set in no file.
    config = _counted(config, catalogue)
    with _traced(origins):
        check_config(config, origins)
        catalogue.check_method(config)
    return config


@contextmanager
def _traced(origins: Origins) -> Iterator[None]:
    """Errors tell which source set the key."""
    try:
        yield
    except ConfigError as error:
        raise error.traced(origins) from None


def _experiment(selection: Selection, overrides: Mapping[str, Any]) -> str:
    """The experiment asked for; without one, that of the embedded data, or that for any other data."""
    if selection.experiment:
        return selection.experiment
    source = selection.dataset or dict(flat(overrides)).get("dataset.source", _EMBEDDED)
    return _EMBEDDED if source == _EMBEDDED else _OWN


def _data_name(dataset: DatasetConfig) -> str:
    """What runs on other data than their experiment's are called: the data set, or the name of own images."""
    if dataset.source not in _OWN_IMAGES or not dataset.data_dir:
        return dataset.source
    stem = _ARCHIVE.sub("", Path(dataset.data_dir).name)
    return re.sub(r"[^\w.-]+", "-", stem).strip("-.") or dataset.source


def _counted(config: Config, catalogue: Catalogue) -> Config:
    """With the number of classes that the data has, where none is configured."""
    if config.dataset.classes:
        return config
    return replace(config, dataset=replace(config.dataset, classes=catalogue.classes(config.dataset)))


def restore(values: Mapping[str, Any], catalogue: Catalogue) -> Config:
    """The configuration whose `as_mapping()` was saved with a run."""
    method = dict(values["method"])
    label = method.pop("label")
    restored = {**values, "method": {"label": label, **_method(method, catalogue, {})}}
    config: Config = build(Config, restored)
    return config


def _choose_learning_rate(
    values: dict[str, Any], files: Sequence[File], origins: dict[str, str], catalogue: Catalogue
) -> None:
    """The rate that the experiment has for the method becomes that of training, unless the fidelity or
    overrides give one."""
    rates = values.pop(SECTION)
    label = named_rate(rates, files)
    if not set(rates) <= set(available("method")):
        check_names(rates, {*available("method"), *catalogue.method_files()})
    given = origins["training.learning_rate"].startswith((_FIDELITY, "overrides"))
    if label and not given and isinstance(values["training"], dict):
        rate = {"training": {"learning_rate": rates[label]}}
        _merge(values, rate, origins, origins[f"{SECTION}.{label}"])


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
) -> list[File]:
    """A file of a group over those that it builds on; all of them, the first ancestor first."""
    files = lineage(group, name, elsewhere)
    parts: dict[str, str] = {}
    for file in files:
        parts |= file.parts
    for part, chosen in parts.items():
        _merge(values, read_group(part, chosen), origins, f"conf/{part}/{chosen}.yaml")
    for file in files:
        _merge(values, file.content, origins, file.source)
    return files
