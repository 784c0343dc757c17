"""From what a person selected to a checked configuration: the YAML files, and what methods and data add."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pip_flower.config import compose, files
from pip_flower.config.compose import Selection
from pip_flower.config.schema import ConfigError, Origins
from pip_flower.config.sections import Config, DatasetConfig
from pip_flower.data.loading import count_classes
from pip_flower.data.sources.registry import source_named
from pip_flower.data.sources.trees import MissingDataError
from pip_flower.method import registry
from pip_flower.models import embedded
from pip_flower.runtime.process import once_per_process


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

    def classes(self, dataset: DatasetConfig) -> int:
        """Counted once per process, as the data is opened once."""
        try:
            return once_per_process(("classes", dataset), lambda: count_classes(dataset))
        except MissingDataError as error:
            problem = f"{error.problem}, so that its classes cannot be counted"
            raise ConfigError(error.key, problem, f"{error.remedy}; or set dataset.classes") from None

    def check(self, config: Config, origins: Origins) -> None:
        """Refuse what no registry knows, and photographs through a ViT that knows only glyphs."""
        source_named(config.dataset.source)
        if registry.entry(config.method.name).method.uses_backbone:
            _check_backbone(config, origins)

    def check_method(self, config: Config) -> None:
        """As the method itself says."""
        registry.entry(config.method.name).method.check(config)


def _check_backbone(config: Config, origins: Origins) -> None:
    """The embedded ViT for other data than digits must be somebody's choice, not what nobody changed."""
    chosen = origins.get("backbone.name") != compose.BASE or config.backbone.weights
    if chosen or config.backbone.name != embedded.NAME or config.dataset.source == embedded.DATA:
        return
    raise ConfigError(
        "backbone.name",
        f"the embedded ViT knows drawn glyphs only, not the images of dataset.source={config.dataset.source}",
        "Name a timm ViT whose weights timm downloads (backbone.name=deit_tiny_patch16_224 "
        "backbone.pretrained=true) or a file holds (backbone.name=deit_tiny_patch16_224 "
        "backbone.weights=/path/to/deit_tiny.safetensors). To use the embedded one all the same, say so: "
        "backbone.name=embedded",
    )


_CATALOGUE = _Catalogue()


def load_config(selection: Selection) -> Config:
    """Compose, check and freeze."""
    return compose.compose(selection, _CATALOGUE)


def restore_config(values: Mapping[str, Any]) -> Config:
    """The configuration whose `as_mapping()` was saved with a run."""
    return compose.restore(values, _CATALOGUE)


def method_entry(label: str) -> registry.Entry:
    """The registered method that a label configures."""
    files_ = files.lineage("method", label, _CATALOGUE.method_files())
    names = [file.content["method"]["name"] for file in files_ if "name" in file.content.get("method", {})]
    return registry.entry(names[-1])


def method_labels() -> dict[str, str]:
    """What `method` can be, each with a line about it."""
    return files.method_labels(_CATALOGUE.method_files()) | {
        entry.name: entry.title for entry in registry.entries().values() if entry.files is not None
    }
