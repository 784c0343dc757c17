"""A convolutional network of timm's, trained by SGD with a method's loss."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from pip_flower.config.schema import Bounds, ConfigError
from pip_flower.config.sections import Config
from pip_flower.method.workspace import Workspace
from pip_flower.methods.networks.model import Epoch, ModelOptions, ModelTraining, Rows, Step
from pip_flower.models.heads import Head, LinearHead
from pip_flower.models.network import feature_width, make_network
from pip_flower.models.stages import stage_indices, staged

__all__ = ["Epoch", "NetworkOptions", "NetworkTraining", "Rows", "Step"]


@dataclass(frozen=True)
class NetworkOptions(ModelOptions):
    """The convolutional network and how SGD trains it."""

    network: str
    stem: Literal["small", "imagenet"]
    momentum: Annotated[float, Bounds(0, 0.999)]


class NetworkTraining(ModelTraining):
    """A network of timm's, trained by SGD.

    With `signed` features the last ReLU is left out, with `maps` a step has the maps of the stages.
    """

    options: NetworkOptions

    @staticmethod
    def check(config: Config) -> None:
        """Refuse batches that nothing can be learnt from."""
        if config.training.batch_size < 2:
            raise ConfigError(
                "training.batch_size",
                f"{config.training.batch_size} image has no variance, which batch normalisation needs",
                "Give 2 or more",
            )

    def __init__(
        self,
        workspace: Workspace,
        options: NetworkOptions,
        head: Callable[[int], Head] = LinearHead,
        signed: bool = False,
        maps: bool = False,
    ) -> None:
        self._head, self._signed, self._maps = head, signed, maps
        super().__init__(workspace, options)
        if maps:
            stage_indices(self.network)

    def fingerprint(self) -> str:
        """Network and stem."""
        name = f"{self.options.network} {self.options.stem}"
        return f"{name} signed" if self._signed else name

    def make(self, seed: int) -> nn.Module:
        """As the options say."""
        return make_network(self.options.network, self.options.stem, seed, self._signed)

    def make_head(self) -> Head:
        """As wide as the features."""
        return self._head(feature_width(self.network))

    def look(self, images: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """The maps of the stages, if they are read, and the features."""
        return staged(self.network, images) if self._maps else super().look(images)

    def optimizer(self, parameters: Sequence[Tensor], rate: float) -> torch.optim.Optimizer:
        """SGD."""
        options = self.options
        return torch.optim.SGD(parameters, rate, options.momentum, weight_decay=options.weight_decay)
