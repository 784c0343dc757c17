"""What can be known before a run is started, which takes Flower the better part of a minute.

The server finds out the same when it loads the data and the backbone, before it asks anybody for anything.
"""

from functools import cached_property

from pip_flower.config.sections import Config
from pip_flower.data.loading import check_source
from pip_flower.method.registry import make_method
from pip_flower.method.workspace import Workspace
from pip_flower.models.backbone import Backbone, outline_backbone
from pip_flower.runtime.process import once_per_process


class _Outline(Workspace):
    """A workspace in which methods can be made, but cannot work."""

    @cached_property
    def backbone(self) -> Backbone:
        """Without its weights."""
        config = self.config
        return once_per_process(
            ("outline", config.backbone), lambda: outline_backbone(config.backbone, config.runtime)
        )


def check_start(config: Config) -> None:
    """Refuse a run on this machine whose data, device, weights or backbone will not do; reads no images."""
    if config.partition.scheme != "local":
        check_source(config.dataset)
    make_method(_Outline(config))
