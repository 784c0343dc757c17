"""One prompt for all tasks and images: prefixes that keep learning; no pool, keys or queries."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from pip_flower.config.schema import Bounds
from pip_flower.fidelity import Paper
from pip_flower.models.backbone import Backbone
from pip_flower.models.prompted_vit import AttachedPrompts
from pip_flower.models.prompts.base import PromptedFeatures, PromptStructure, State, uniform
from pip_flower.models.prompts.prefixes import by_block, check_depth, check_distinct, prefix_shape

PROMPT = "prompt"


@dataclass(frozen=True)
class SinglePromptOptions:
    """Length and blocks of the prefixes."""

    structure: Literal["single"]
    length: Annotated[int, Bounds(1)]
    blocks: Annotated[tuple[int, ...], Bounds(0)]

    def check(self) -> None:
        """Refuse a second prefix for a block."""
        check_distinct({"blocks": self.blocks})


class SinglePrompt(PromptStructure):
    """`prompt` [blocks, 2, length, heads, D / heads]."""

    trains_with_query = False

    def __init__(self, options: SinglePromptOptions, backbone: Backbone, fidelity: Paper) -> None:
        super().__init__(backbone, fidelity, matching=0.0, selection="sample")
        self.options = options
        check_depth({"blocks": options.blocks}, backbone.depth)

    def start_task(self, task: int, state: State, generator: torch.Generator) -> dict[str, Tensor]:  # noqa: ARG002
        """The prompt, before the first task; later tasks go on with it."""
        if task > 0:
            return {}
        return {
            PROMPT: uniform(prefix_shape(self.backbone, self.options.blocks, self.options.length), generator)
        }

    def trained(self, task: int) -> tuple[str, ...]:  # noqa: ARG002
        """The prompt, in every task."""
        return (PROMPT,)

    def used(self, tasks: int) -> tuple[str, ...]:  # noqa: ARG002
        """The prompt."""
        return (PROMPT,)

    def needs_query(self, task: int | None) -> bool:  # noqa: ARG002
        """Never."""
        return False

    def forward(
        self,
        state: State,
        images: Tensor,
        query: Tensor | None,  # noqa: ARG002
        *,
        task: int | None,  # noqa: ARG002
        tasks: int,  # noqa: ARG002
    ) -> PromptedFeatures:
        """CLS with the prompt attached."""
        prefixes = by_block(state[PROMPT].unsqueeze(0), self.options.blocks)
        features = self.backbone.encode(images, AttachedPrompts(prefixes)).squeeze(1)
        return PromptedFeatures(features, torch.zeros((), device=features.device))
