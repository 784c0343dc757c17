"""Methods by name: those of `pip_flower.methods`, and those that other installed packages bring.

A module that holds a method calls `register`. Modules of this project are found in their folder; a package of
somebody else's names its modules as entry points of the group `pip_flower.methods`:

    [project.entry-points."pip_flower.methods"]
    my-method = "my_package.my_method"
"""

import importlib
import importlib.util
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from pip_flower.config.schema import ConfigError
from pip_flower.method.base import Method
from pip_flower.method.workspace import Workspace

GROUP = "pip_flower.methods"
_OURS = "pip-flower"


@dataclass(frozen=True)
class Entry:
    """A registered method, the package that brings it, and the directory of YAML files that configure it."""

    name: str
    title: str
    options: type
    method: type[Method]
    package: str
    files: Path | None = None


@dataclass
class _Source:
    """Where the module that is being imported comes from."""

    package: str = _OURS
    files: Path | None = None


_entries: dict[str, Entry] = {}
_source = _Source()


def register(name: str, *, title: str, options: type, method: type[Method]) -> None:
    """Make a method selectable by the YAML files that have `name` as their method.name."""
    if name in _entries:
        raise ValueError(
            f"method {name!r} is registered twice, by {_entries[name].package} and by {_source.package}"
        )
    _entries[name] = Entry(name, title, options, method, _source.package, _source.files)


def entries() -> dict[str, Entry]:
    """All methods by name, sorted."""
    _load_all()
    return dict(sorted(_entries.items()))


def entry(name: str) -> Entry:
    """The method `name`."""
    known = entries()
    if name not in known:
        raise ConfigError(
            "method.name",
            f"{name!r} is not known",
            f"Choose from: {', '.join(known)}; or install the package that brings it",
        )
    return known[name]


def make_method(workspace: Workspace) -> Method:
    """The method that the configuration selects."""
    chosen = workspace.config.method
    return entry(chosen.name).method(workspace, chosen.options)


@cache
def _load_all() -> None:
    ours = importlib.import_module(GROUP)
    for module in pkgutil.iter_modules(ours.__path__, f"{ours.__name__}."):
        importlib.import_module(module.name)
    for point in sorted(entry_points(group=GROUP)):
        with _loading(point):
            importlib.import_module(point.module)


@contextmanager
def _loading(point: EntryPoint) -> Iterator[None]:
    """What registers itself meanwhile comes from that package."""
    global _source
    package = f"{point.dist.name} {point.dist.version}" if point.dist else point.module
    spec = importlib.util.find_spec(point.module)
    files = Path(spec.origin).parent if spec and spec.origin else None
    before, _source = _source, _Source(package, files)
    try:
        yield
    except Exception as error:
        raise ConfigError(
            "method.name",
            f"the methods of {package} cannot be loaded: {type(error).__name__}: {error}",
            f"Mend or uninstall {package}",
        ) from error
    finally:
        _source = before
