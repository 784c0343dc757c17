"""Prefixes of attention blocks: how they are stored, and which blocks may have one."""

from collections.abc import Mapping

from torch import Tensor

from pip_flower.config.schema import ConfigError
from pip_flower.models.backbone import Backbone
from pip_flower.models.prompted_vit import Prefix


def prefix_shape(backbone: Backbone, blocks: tuple[int, ...], length: int) -> tuple[int, ...]:
    """[blocks, 2, length, heads, D / heads]: keys and values for each block."""
    return (len(blocks), 2, length, backbone.heads, backbone.dim // backbone.heads)


def by_block(stored: Tensor, blocks: tuple[int, ...]) -> dict[int, Prefix]:
    """Stored [B or 1, blocks, 2, length, heads, D / heads] -> the prefix of each block."""
    by_head = stored.transpose(3, 4)
    return {block: Prefix(by_head[:, i, 0], by_head[:, i, 1]) for i, block in enumerate(blocks)}


def check_distinct(chosen: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse blocks that have two prefixes; `chosen` has them by option."""
    taken: set[int] = set()
    for name, blocks in chosen.items():
        if len(taken | set(blocks)) < len(taken) + len(blocks):
            raise ConfigError(
                f"method.prompt.{name}",
                f"{list(blocks)} gives a block a second prefix",
                f"Name every block once, in {' or in '.join(chosen)}",
            )
        taken |= set(blocks)


def check_depth(chosen: Mapping[str, tuple[int, ...]], depth: int) -> None:
    """Refuse blocks that the backbone does not have."""
    for name, blocks in chosen.items():
        if max(blocks, default=0) >= depth:
            raise ConfigError(
                f"method.prompt.{name}",
                f"{list(blocks)} but the backbone has {depth} blocks",
                f"Give blocks from 0 to {depth - 1}",
            )
