"""A convolutional network that is trained as a whole, as named arrays."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from timm import create_model
from torch import Tensor, nn

from pip_flower.config.schema import ConfigError

_PREFIX = "network."
# Counts batches, which no normalisation with a fixed momentum reads; averaging it means nothing.
_COUNTER = "num_batches_tracked"


def make_network(name: str, stem: str, seed: int, signed: bool = False) -> nn.Module:
    """A timm network without a classifier, initialised from `seed`; with `signed` features, which may be
    negative, the last ReLU is left out.

    The small stem (3 x 3, stride 1, no pooling) is for images of some 32 pixels, which the usual one
    would shrink to nothing.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            network: nn.Module = create_model(name, pretrained=False, num_classes=0)
        except RuntimeError as error:
            raise ConfigError(
                "method.network", f"timm cannot make {name!r}: {error}", "Give a timm ResNet such as resnet18"
            ) from None
        if stem == "small":
            width = _stem(name, network).out_channels
            network.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
            nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
            network.maxpool = nn.Identity()
    if signed:
        _leave_out_last_relu(name, network)
    return network


def feature_width(network: nn.Module) -> int:
    """D, the width of the features before the head."""
    return int(network.num_features)  # type: ignore[arg-type]


def array_names(network: nn.Module, prefix: str = _PREFIX) -> tuple[str, ...]:
    """Names of the parameters and running statistics."""
    return tuple(f"{prefix}{name}" for name in network.state_dict() if not name.endswith(_COUNTER))


def to_arrays(network: nn.Module) -> dict[str, NDArray[np.float32]]:
    """Copies of all parameters and running statistics."""
    return {
        f"{_PREFIX}{name}": value.detach().cpu().numpy().copy()
        for name, value in network.state_dict().items()
        if not name.endswith(_COUNTER)
    }


def load_arrays(
    network: nn.Module, arrays: Mapping[str, Tensor | NDArray[Any]], prefix: str = _PREFIX
) -> None:
    """Copy `arrays` into the network in place."""
    with torch.no_grad():
        for name, value in network.state_dict().items():
            if not name.endswith(_COUNTER):
                value.copy_(torch.as_tensor(arrays[f"{prefix}{name}"]))


def _leave_out_last_relu(name: str, network: nn.Module) -> None:
    """Of the last block: act3 of a bottleneck, act2 of a basic block."""
    stage: Any = getattr(network, "layer4", None)
    activations = [act for act in ("act3", "act2") if stage is not None and hasattr(stage[-1], act)]
    if not activations:
        raise ConfigError(
            "method.network", f"{name!r} has no last ReLU to leave out", "Give a timm ResNet such as resnet18"
        )
    setattr(stage[-1], activations[0], nn.Identity())


def _stem(name: str, network: nn.Module) -> nn.Conv2d:
    stem = getattr(network, "conv1", None)
    if not isinstance(stem, nn.Conv2d) or not hasattr(network, "maxpool"):
        raise ConfigError(
            "method.stem", f"{name!r} has no stem that could be made small", "Give stem: imagenet"
        )
    return stem
