"""From what a person selected to a checked configuration: the YAML files, and what methods and data add."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pip_flower.config import compose, files
from pip_flower.config.compose import Selection
from pip_flower.config.sections import Config
from pip_flower.data.sources.registry import source_named
from pip_flower.method import registry


class _Catalogue:
    """What the YAML files cannot know by themselves."""

    def method_files(self) -> dict[str, Path | None]:
        """The files beside methods of other packages, by label; None for a method that has none and is
        configured by the defaults of its options."""
        found: dict[str, Path | None] = {}
        for entry in registry.entries().values():
            if entry.files is not None:
                beside = {path.stem: path for path in sorted(entry.files.glob("*.yaml"))}
                found[entry.name] = None
                found |= beside
        return found

    def method_options(self, name: str) -> type:
        """The dataclass of a method's options."""
        return registry.entry(name).options

    def check(self, config: Config) -> None:
        """Refuse what no registry knows, and what the method cannot work with."""
        source_named(config.dataset.source)
        registry.entry(config.method.name).method.check(config)


_CATALOGUE = _Catalogue()


def load_config(selection: Selection) -> Config:
    """Compose, check and freeze."""
    return compose.compose(selection, _CATALOGUE)


def restore_config(values: Mapping[str, Any]) -> Config:
    """The configuration whose `as_mapping()` was saved with a run."""
    return compose.restore(values, _CATALOGUE)


def method_labels() -> dict[str, str]:
    """What `method` can be, each with a line about it."""
    return files.method_labels(_CATALOGUE.method_files()) | {
        entry.name: entry.title for entry in registry.entries().values() if entry.files is not None
    }
