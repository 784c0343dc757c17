"""Methods by name: those of `pip_flower.methods`, and those that other installed packages bring.

A module that holds a method calls `register`. Modules of this project are found in their folder; a package of
somebody else's names its modules as entry points of the group `pip_flower.methods`:

    [project.entry-points."pip_flower.methods"]
    my-method = "my_package.my_method"
"""

import importlib
import pkgutil
import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from pip_flower.config.schema import ConfigError
from pip_flower.method.base import Method
from pip_flower.method.workspace import Workspace

GROUP = "pip_flower.methods"
_OURS = "pip-flower"


@dataclass(frozen=True)
class Entry:
    """A registered method, the package that brings it, and the directory of YAML files that configure it.

    `keeps` is what a client keeps between tasks that derives from its images, `sends` is what leaves it
    beside model and counts; empty if there is nothing of the kind.
    """

    name: str
    title: str
    options: type
    method: type[Method]
    package: str
    files: Path | None = None
    keeps: str = ""
    sends: str = ""


_entries: dict[str, Entry] = {}


def register(
    name: str, *, title: str, options: type, method: type[Method], keeps: str = "", sends: str = ""
) -> None:
    """Make a method selectable by the YAML files that have `name` as their method.name.

    A reader who weighs privacy is told what a client `keeps` between tasks that derives from its images
    ("exemplar images"), and what it `sends` beside model, prompts, head and counts ("class feature sums").
    """
    # The module that calls, as `namedtuple` finds it: whoever else may have imported it.
    module = sys._getframe(1).f_globals
    package = _package_of(module["__name__"])
    if name in _entries:
        raise ValueError(f"method {name!r} is registered twice, by {_entries[name].package} and by {package}")
    files = None if package == _OURS else Path(module["__file__"]).parent
    _entries[name] = Entry(name, title, options, method, package, files, keeps, sends)


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
        try:
            importlib.import_module(point.module)
        except Exception as error:
            package = _package_of(point.module)
            raise ConfigError(
                "method.name",
                f"the methods of {package} cannot be loaded: {type(error).__name__}: {error}",
                f"Mend or uninstall {package}",
            ) from error


def _package_of(module: str) -> str:
    """Name and version of the package whose entry points name the module, or another one beside it."""
    ours, _, _ = GROUP.partition(".")
    top, _, _ = module.partition(".")
    if top == ours:
        return _OURS
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.module != module):
        if point.module.partition(".")[0] == top and point.dist:
            return f"{point.dist.name} {point.dist.version}"
    return module
