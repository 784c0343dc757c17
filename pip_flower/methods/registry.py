"""Methods by name. A file in this package registers itself; nothing else lists them."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pip_flower import methods
from pip_flower.methods.base import Method
from pip_flower.schema import ConfigError
from pip_flower.strategies.base import TaskStrategy
from pip_flower.workbench import Workbench

# A strategy is made from the method it serves; each takes its own kind of method.
MakeStrategy = Callable[[Any], TaskStrategy]


@dataclass(frozen=True)
class Entry:
    """A registered method: its options, its client side, and the strategy that serves it."""

    name: str
    title: str
    options: type
    method: type[Method]
    strategy: MakeStrategy


_entries: dict[str, Entry] = {}


def register(name: str, *, title: str, options: type, method: type[Method], strategy: MakeStrategy) -> None:
    """Make a method selectable as `method=name`; conf/method/<name>.yaml gives its options."""
    if name in _entries:
        raise ValueError(f"method {name!r} is registered twice")
    _entries[name] = Entry(name, title, options, method, strategy)


def entries() -> dict[str, Entry]:
    """All methods by name, sorted."""
    for module in pkgutil.iter_modules(methods.__path__, f"{methods.__name__}."):
        importlib.import_module(module.name)
    return dict(sorted(_entries.items()))


def entry(name: str) -> Entry:
    """The method `name`."""
    known = entries()
    if name not in known:
        raise ConfigError("method.name", f"{name!r} is not known", f"Choose from: {', '.join(known)}")
    return known[name]


def options_type(name: str) -> type:
    """The dataclass of a method's options."""
    return entry(name).options


def make_method(bench: Workbench) -> Method:
    """The method that the configuration selects."""
    chosen = bench.config.method
    return entry(chosen.name).method(bench, chosen.options)


def make_strategy(method: Method) -> TaskStrategy:
    """The strategy that serves the method the configuration selects."""
    return entry(method.bench.config.method.name).strategy(method)
