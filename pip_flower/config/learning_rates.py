"""Whose learning rate it is: a method's own, or the one that an experiment has for that method.

An optimiser belongs to its method, so an experiment cannot set one learning rate for all: it names methods
(`learning_rates: {pip-dualprompt: 0.005}`), and what it says of one holds for the methods that build on it.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pip_flower.config.files import File
from pip_flower.config.schema import ConfigError

SECTION = "learning_rates"
_OWN = "learning_rate"


def refuse_common_rate(experiment: Mapping[str, Any], source: str) -> None:
    """An experiment's one rate would replace those of every method's own optimiser."""
    if _OWN in _training(experiment):
        raise ConfigError(
            f"training.{_OWN}",
            "is a method's own, and an experiment is for all methods",
            f"Give it for each method that it was chosen for, as {SECTION}.<method>",
            source,
        )


def named_rate(rates: Any, files: Sequence[File]) -> str:
    """Which entry of `rates` holds for a method of these files, the first ancestor first: that of the nearest
    file; none (empty) if a nearer file has a learning rate of its own."""
    if not isinstance(rates, Mapping):
        raise ConfigError(SECTION, f"{rates!r} is not a mapping", "Give learning rates by name of method")
    for file in files[::-1]:
        if file.name in rates:
            return file.name
        if _OWN in _training(file.content):
            break
    return ""


def check_names(rates: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse rates of methods that there are not."""
    if unknown := set(map(str, rates)) - set(known):
        key = f"{SECTION}.{min(unknown)}"
        raise ConfigError(key, "is not the name of a method", f"Choose from: {', '.join(sorted(known))}")


def _training(values: Mapping[str, Any]) -> Mapping[str, Any]:
    section = values.get("training")
    return section if isinstance(section, Mapping) else {}
