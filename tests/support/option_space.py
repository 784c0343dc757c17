"""Configurations drawn from the types of the options that methods register, and of the sections that decide
what a run computes."""

import dataclasses
import types
import typing
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from pip_flower.config.compose import Selection
from pip_flower.config.schema import Bounds
from pip_flower.config.sections import Config
from pip_flower.method.configuration import load_config, method_labels

# What every method is combined with. The other sections say where data, backbone and nodes are.
_SECTIONS = ("partition", "population", "aggregation", "training", "evaluation", "wire")
# A rate of 1 makes SGD diverge: that is for a person to judge, and no fault of the configuration.
_LARGEST = {
    "training.learning_rate": 0.05,
    "training.epochs": 2,
    "method.align.learning_rate": 0.1,
    "method.calibration.learning_rate": 0.1,
    "method.rebalance.learning_rate": 0.1,
    "method.tuning.learning_rate": 0.01,
    "method.weight_decay": 0.01,
}
# Numbers that mean something to three clients, of which two take part in a round.
_GIVEN = {"population.initial": (0, 1, 2, 3)}
# What would need other data, or be slow.
_EXCLUDED = {"partition.scheme": ("local",), "method.stem": ("small",)}
# Steps from a number's least value: its next, some, and more than a client of the tiny run holds.
_STEPS = (0, 1, 4, 20)


@dataclasses.dataclass(frozen=True)
class Option:
    """A key of the configuration, and values that its type allows."""

    key: str
    values: tuple[Any, ...]


_OTHERS = (
    Option("fidelity", ("paper", "released")),
    Option("dataset.validation_fraction", (0.0, 0.4)),
    Option("schedule.base_classes", (0, 1, 3)),
    Option("federation.clients_per_round", (1, 3)),
    Option("federation.min_clients", (1, 2)),
)


def options_of(label: str) -> list[Option]:
    """The method's own options as its registered dataclass declares them, and those of the sections."""
    config = load_config(Selection(method=label))
    found = [*_options(config.method.options, "method"), *_OTHERS]
    for section in _SECTIONS:
        found += _options(getattr(config, section), section)
    return found


def _options(values: Any, path: str) -> Iterator[Option]:
    hints = typing.get_type_hints(type(values), include_extras=True)
    for field in dataclasses.fields(values):
        key, value = f"{path}.{field.name}", getattr(values, field.name)
        if dataclasses.is_dataclass(value):
            yield from _options(value, key)
        elif allowed := _allowed(key, hints[field.name]):
            yield Option(key, allowed)


def _allowed(key: str, hint: Any) -> tuple[Any, ...]:
    """Some values of a type; none where the type does not tell any."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is bool:
        return (False, True)
    if origin is typing.Literal:
        return tuple(value for value in arguments if value not in _EXCLUDED.get(key, ()))
    if origin is typing.Annotated and arguments[0] in (int, float):
        return _numbers(key, *arguments)
    if origin is typing.Annotated and typing.get_args(arguments[0]) == (int, ...):
        return ([], [0], [3], [1, 2], [2, 2])
    assert hint in (int, float, str) or isinstance(hint, types.GenericAlias), f"{key}: what is {hint}?"
    return ()


def _numbers(key: str, kind: type, bounds: Bounds) -> tuple[Any, ...]:
    if key in _GIVEN:
        return _GIVEN[key]
    low = bounds.minimum or 0.0
    high = _LARGEST.get(key, bounds.maximum)
    if kind is int:
        return tuple(int(low) + step for step in _STEPS if high is None or low + step <= high)
    least = low + 1e-3 if bounds.exclusive_minimum else low
    most = low + 2.0 if high is None else high
    return (least, (least + most) / 2, most)


@st.composite
def configurations(draw: st.DrawFn) -> tuple[str, str]:
    """A method's label and overrides: some options changed, the others as shipped."""
    label = draw(st.sampled_from(sorted(method_labels())))
    known = options_of(label)
    changed = draw(st.lists(st.sampled_from(known), max_size=8, unique_by=lambda option: option.key))
    words = [f"{option.key}={_yaml(draw(st.sampled_from(option.values)))}" for option in changed]
    return label, " ".join(words)


def _yaml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def trains_network(config: Config) -> bool:
    """Whether the method trains a whole network, which tests choose a small one for."""
    return hasattr(config.method.options, "network")
