"""DualPrompt: general prefixes shared by all tasks, expert prefixes with a key for each task."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pip_flower.models.backbone import Backbone
from pip_flower.models.prompted_vit import Prefix, prompted_tokens
from pip_flower.models.prompts.base import Prompted, PromptStructure, State, cosine, uniform
from pip_flower.schema import ConfigError, bounded


@dataclass(frozen=True)
class DualPromptOptions:
    """Lengths and blocks of both kinds of prefix, and the weight of the matching loss."""

    structure: Literal["dualprompt"]
    general_length: int = bounded(1)
    general_blocks: tuple[int, ...] = bounded(0)
    expert_length: int = bounded(1)
    expert_blocks: tuple[int, ...] = bounded(0)
    matching: float = bounded(0)


class DualPrompt(PromptStructure):
    """`general` [blocks, 2, length, heads, D / heads]; `expert.t` likewise and `key.t` [D] per task."""

    def __init__(self, options: DualPromptOptions, backbone: Backbone) -> None:
        super().__init__(backbone, options.matching)
        self.options = options
        for name in ("general_blocks", "expert_blocks"):
            if max(getattr(options, name), default=0) >= backbone.depth:
                raise ConfigError(
                    f"method.prompt.{name}",
                    f"{list(getattr(options, name))} but the backbone has {backbone.depth} blocks",
                    f"Give blocks from 0 to {backbone.depth - 1}",
                )

    def start_task(self, task: int, state: State, generator: torch.Generator) -> dict[str, Tensor]:
        """A slot for the task: a copy of the previous one with a key of its own."""
        o = self.options
        heads, dim = self.backbone.heads, self.backbone.dim
        added: dict[str, Tensor] = {}
        if task == 0:
            shape = (len(o.general_blocks), 2, o.general_length, heads, dim // heads)
            added["general"] = uniform(shape, generator)
            shape = (len(o.expert_blocks), 2, o.expert_length, heads, dim // heads)
            added["expert.0"] = uniform(shape, generator)
        else:
            added[f"expert.{task}"] = state[f"expert.{task - 1}"].clone()
        added[f"key.{task}"] = uniform((dim,), generator)
        return added

    def trained(self, task: int) -> tuple[str, ...]:
        """The general prefixes and the task's own slot."""
        return ("general", f"expert.{task}", f"key.{task}")

    def forward(
        self, state: State, images: Tensor, query: Tensor | None, *, task: int | None, tasks: int
    ) -> Prompted:
        """Slot `task`, or each sample's slot of greatest similarity."""
        if task is not None:
            expert = state[f"expert.{task}"].unsqueeze(0)
            similarity = self._similarity_to(state[f"key.{task}"], query)
        else:
            if query is None:
                raise ValueError("selection by similarity needs the query")
            keys = torch.stack([state[f"key.{slot}"] for slot in range(tasks)])
            best = cosine(query, keys).max(dim=1)
            similarity = best.values.mean()
            expert = torch.stack([state[f"expert.{slot}"] for slot in range(tasks)])[best.indices]
        prefixes = _prefixes(state["general"].unsqueeze(0), self.options.general_blocks)
        prefixes |= _prefixes(expert, self.options.expert_blocks)
        tokens = prompted_tokens(self.backbone.vit, images, prefixes)
        return Prompted(tokens[:, 0].float(), similarity)

    @staticmethod
    def _similarity_to(key: Tensor, query: Tensor | None) -> Tensor:
        if query is None:
            return key.new_zeros(())
        return cosine(query, key.unsqueeze(0)).mean()


def _prefixes(stored: Tensor, blocks: tuple[int, ...]) -> dict[int, Prefix]:
    """Stored [B or 1, blocks, 2, length, heads, D / heads] -> the prefix of each block."""
    by_head = stored.transpose(3, 4)
    return {block: Prefix(by_head[:, i, 0], by_head[:, i, 1]) for i, block in enumerate(blocks)}
