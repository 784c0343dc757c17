"""A convolutional network of timm's, trained by SGD with a method's loss."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from pip_flower.config.schema import Bounds, ConfigError
from pip_flower.config.sections import Config
from pip_flower.methods.networks.model import ModelOptions, ModelTraining, Step
from pip_flower.models.heads import Head, LinearHead
from pip_flower.models.network import feature_width, make_network

__all__ = ["NetworkOptions", "NetworkTraining", "Step"]


@dataclass(frozen=True)
class NetworkOptions(ModelOptions):
    """The convolutional network and how SGD trains it."""

    network: str
    stem: Literal["small", "imagenet"]
    momentum: Annotated[float, Bounds(0, 0.999)]


class NetworkTraining(ModelTraining):
    """A network of timm's with a linear head, trained by SGD."""

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

    def fingerprint(self) -> str:
        """Network and stem."""
        return f"{self.options.network} {self.options.stem}"

    def make(self, seed: int) -> nn.Module:
        """As the options say."""
        return make_network(self.options.network, self.options.stem, seed)

    def make_head(self) -> Head:
        """As wide as the features."""
        return LinearHead(feature_width(self.network))

    def optimizer(self, parameters: Sequence[Tensor], rate: float) -> torch.optim.Optimizer:
        """SGD."""
        options = self.options
        return torch.optim.SGD(parameters, rate, options.momentum, weight_decay=options.weight_decay)
