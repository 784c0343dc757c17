"""The maps that the stages of a convolutional network leave on the way to its features."""

import re
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pip_flower.config.schema import ConfigError

# What timm calls the stages of ResNets, of RegNets, of ResNetV2 and ConvNeXt; the stem is none.
_STAGE = re.compile(r"layer[1-9]|s[1-9]|stages\.[0-9]")


class Stages(NamedTuple):
    """The map after each stage [B, C_i, H_i, W_i], the last one before pooling, and the features [B, D]."""

    maps: tuple[Tensor, ...]
    features: Tensor


def staged(network: nn.Module, images: Tensor) -> Stages:
    """Images [B, 3, H, W] in one pass; the features are `network(images)`."""
    timm_network: Any = network
    last, maps = timm_network.forward_intermediates(images, indices=stage_indices(network))
    return Stages(tuple(maps), timm_network.forward_head(last))


def stage_indices(network: nn.Module) -> list[int]:
    """Which of timm's intermediate maps end a stage; an error if the network has no stages."""
    listed: Any = getattr(network, "feature_info", ())
    modules = [entry["module"] for entry in listed]
    found = [index for index, module in enumerate(modules) if _STAGE.fullmatch(module)]
    # Layers after the last stage would leave the map that is pooled out of the maps.
    if not found or found[-1] != len(modules) - 1 or not hasattr(network, "forward_intermediates"):
        raise ConfigError(
            "method.network",
            f"a {type(network).__name__} has no stages whose maps could be read",
            "Give a timm ResNet such as resnet18",
        )
    return found


def stage_channels(network: nn.Module) -> list[int]:
    """The width of each stage's map."""
    listed: Any = network.feature_info
    return [int(listed[index]["num_chs"]) for index in stage_indices(network)]


def pooled(stage_map: Tensor) -> Tensor:
    """PODNet's descriptor of a map [B, C, H, W]: squared, summed over width and over height, both joined,
    of unit length [B, C * (H + W)]."""
    squared = stage_map.square()
    sums = [squared.sum(dim=3).flatten(1), squared.sum(dim=2).flatten(1)]
    return F.normalize(torch.cat(sums, dim=1), dim=1)
