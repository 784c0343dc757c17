"""L2P: one pool of prompts for all tasks; a sample's best few are inserted as tokens before block 0."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from pip_flower.config.schema import Bounds, ConfigError
from pip_flower.fidelity import Paper
from pip_flower.models.backbone import Backbone
from pip_flower.models.prompted_vit import AttachedPrompts, cls_position
from pip_flower.models.prompts.base import PromptedFeatures, PromptStructure, State, uniform


@dataclass(frozen=True)
class L2POptions:
    """Size of the pool (0: a prompt for each task), length of a prompt, how many a sample gets at most,
    selection, matching loss."""

    structure: Literal["l2p"]
    pool: Annotated[int, Bounds(0)]
    length: Annotated[int, Bounds(1)]
    top_k: Annotated[int, Bounds(1)]
    selection: Literal["sample", "batch"]
    matching: Annotated[float, Bounds(0)]

    def check(self) -> None:
        """Refuse to choose more prompts than a pool of a given size has."""
        if 0 < self.pool < self.top_k:
            raise ConfigError(
                "method.prompt.top_k",
                f"{self.top_k} prompts cannot be chosen from a pool of {self.pool}",
                f"Give at most method.prompt.pool = {self.pool}",
            )


class L2P(PromptStructure):
    """`pool.prompt` [pool, length, D] and `pool.key` [pool, D]."""

    def __init__(self, options: L2POptions, backbone: Backbone, fidelity: Paper, tasks: int) -> None:
        super().__init__(backbone, fidelity, options.matching, options.selection)
        self.options = options
        self.pool = options.pool or tasks
        self.top_k = min(options.top_k, self.pool)

    def start_task(self, task: int, state: State, generator: torch.Generator) -> dict[str, Tensor]:  # noqa: ARG002
        """The pool, before the first task; later tasks add nothing."""
        if task > 0:
            return {}
        o, dim = self.options, self.backbone.dim
        return {
            "pool.prompt": uniform((self.pool, o.length, dim), generator),
            "pool.key": uniform((self.pool, dim), generator),
        }

    def trained(self, task: int) -> tuple[str, ...]:  # noqa: ARG002
        """The whole pool, in every task."""
        return ("pool.prompt", "pool.key")

    def used(self, tasks: int) -> tuple[str, ...]:  # noqa: ARG002
        """The whole pool."""
        return ("pool.prompt", "pool.key")

    def needs_query(self, task: int | None) -> bool:  # noqa: ARG002
        """Always: no prompt belongs to a task."""
        return True

    def forward(
        self,
        state: State,
        images: Tensor,
        query: Tensor | None,
        *,
        task: int | None,  # noqa: ARG002
        tasks: int,  # noqa: ARG002
    ) -> PromptedFeatures:
        """The features are the mean of the inserted tokens after the final norm."""
        choice = self.choose(query, state["pool.key"], self.top_k)
        inserted = state["pool.prompt"][choice.slots].flatten(1, 2) + cls_position(self.backbone.vit)
        behind_cls = slice(1, 1 + inserted.shape[1])
        tokens = self.backbone.encode(images, AttachedPrompts(insertions={0: inserted}), behind_cls)
        return PromptedFeatures(tokens.mean(dim=1), choice.similarity)
