"""Plain mappings to frozen dataclasses, with errors a person can act on.

A field's type says what is allowed: ``int``, ``float``, ``bool``, ``str``, ``Literal[...]``,
``tuple[X, ...]``, ``tuple[X, Y]``, a nested dataclass, or a union of dataclasses told apart by a
``Literal`` of one value. ``Annotated[..., Bounds(...)]`` adds limits to a number.
"""

import contextlib
import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
Origins = Mapping[str, str]


class ConfigError(ValueError):
    """A configuration value that cannot be used: names the key, the value, its source and a remedy."""

    def __init__(self, key: str, problem: str, remedy: str, origin: str = "") -> None:
        self.key, self.problem, self.remedy, self.origin = key, problem, remedy, origin
        where = f" (set in {origin})" if origin else ""
        super().__init__(f"{key}{where}: {problem}. {remedy}")

    def traced(self, origins: "Origins") -> "ConfigError":
        """The same, telling which source set the key."""
        origin = self.origin or origin_of(self.key, origins)
        return ConfigError(self.key, self.problem, self.remedy, origin)


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Limits of a number, or of every number of a tuple: ``Annotated[int, Bounds(1)]``."""

    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: bool = False


def build(cls: type[T], values: Any, path: str = "", origins: Origins | None = None) -> T:
    """Check `values` against the dataclass `cls` and make it; `path` is the key of the whole mapping."""
    return typing.cast(T, _dataclass(cls, values, path, origins or {}))


def origin_of(key: str, origins: Origins) -> str:
    """The source that set `key`, or the nearest key above it."""
    while key:
        if key in origins:
            return origins[key]
        key = key.rpartition(".")[0]
    return origins.get("", "")


def as_mapping(value: Any) -> Any:
    """A dataclass as plain YAML-able values; the inverse of `build`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: as_mapping(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [as_mapping(item) for item in value]
    return value


def _dataclass(cls: Any, values: Any, path: str, origins: Origins) -> Any:
    if not isinstance(values, Mapping):
        _fail(path, f"expected a section with keys, got {values!r}", f"Give {_keys(cls)}", origins)
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for name in values:
        if name not in fields:
            key = _join(path, name)
            close = difflib.get_close_matches(str(name), fields, n=1)
            remedy = f"Did you mean {_join(path, close[0])}?" if close else f"Known: {_keys(cls)}"
            _fail(key, f"unknown key with value {values[name]!r}", remedy, origins)
    built: dict[str, Any] = {}
    for name, field in fields.items():
        key = _join(path, name)
        if name in values:
            built[name] = _value(hints[name], values[name], key, origins)
        elif field.default is dataclasses.MISSING:
            _fail(key, "is missing", "Every key needs a value; conf/base.yaml lists them", origins)
    try:
        return cls(**built)
    except ConfigError as error:
        # From __post_init__: values that do not go together.
        raise error.traced(origins) from None


def _value(hint: Any, value: Any, key: str, origins: Origins) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin is typing.Annotated:
        checked = _value(arguments[0], value, key, origins)
        for bounds in arguments[1:]:
            _check_limits(key, checked, bounds, origins)
        return checked
    if dataclasses.is_dataclass(hint):
        return _dataclass(hint, value, key, origins)
    if origin is typing.Literal:
        if value not in arguments or isinstance(value, bool) != isinstance(arguments[0], bool):
            choices = ", ".join(map(str, arguments))
            _fail(key, f"{value!r} is not one of the choices", f"Choose from: {choices}", origins)
        return value
    if origin in (types.UnionType, typing.Union):
        return _dataclass(_pick(arguments, value, key, origins), value, key, origins)
    if origin is tuple:
        return _tuple(arguments, value, key, origins)
    return _scalar(hint, value, key, origins)


def _pick(choices: Sequence[Any], value: Any, key: str, origins: Origins) -> Any:
    """The member of a union of dataclasses whose tag, a Literal of one value, is the one given."""
    known: dict[Any, Any] = {}
    tag = ""
    for choice in choices:
        for name, hint in typing.get_type_hints(choice).items():
            if typing.get_origin(hint) is typing.Literal and len(typing.get_args(hint)) == 1:
                tag = name
                known[typing.get_args(hint)[0]] = choice
    given = value.get(tag) if isinstance(value, Mapping) else None
    if given not in known:
        names = ", ".join(map(str, known))
        _fail(
            _join(key, tag),
            f"{given!r} is not one of the choices",
            f"Choose from: {names}",
            origins,
        )
    return known[given]


def _tuple(arguments: Sequence[Any], value: Any, key: str, origins: Origins) -> tuple[Any, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        _fail(key, f"{value!r} is not a list", "Give a list such as [0, 1]", origins)
    hints = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else list(arguments)
    if len(value) != len(hints):
        _fail(key, f"{value!r} has {len(value)} entries", f"Give exactly {len(hints)}", origins)
    pairs = zip(hints, value, strict=True)
    return tuple(_value(hint, item, f"{key}.{i}", origins) for i, (hint, item) in enumerate(pairs))


def _scalar(hint: type, value: Any, key: str, origins: Origins) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if hint is float and isinstance(value, str):
        # YAML 1.1 reads 1e-3 (no dot) as a string; a person means a number.
        with contextlib.suppress(ValueError):
            value = float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        kinds = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        _fail(key, f"{value!r} is not {kinds[hint]}", f"Give {kinds[hint]}", origins)
    if isinstance(value, float) and not math.isfinite(value):
        _fail(key, f"{value!r} is not finite", "Give an ordinary number", origins)
    return value


def _check_limits(key: str, value: Any, bounds: Bounds, origins: Origins) -> None:
    low, high, exclusive = bounds.minimum, bounds.maximum, bounds.exclusive_minimum
    for item in value if isinstance(value, tuple) else (value,):
        if low is not None and (item < low or (exclusive and item == low)):
            limit = f"above {low}" if exclusive else f"{low} or more"
            _fail(key, f"{value!r} is too small", f"Give {limit}", origins)
        if high is not None and item > high:
            _fail(key, f"{value!r} is too large", f"Give {high} or less", origins)


def _keys(cls: Any) -> str:
    return ", ".join(field.name for field in dataclasses.fields(cls))


def _join(path: str, name: Any) -> str:
    return f"{path}.{name}" if path else str(name)


def _fail(key: str, problem: str, remedy: str, origins: Origins) -> typing.NoReturn:
    raise ConfigError(key, problem, remedy, origin_of(key, origins))
