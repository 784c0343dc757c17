"""DualPrompt: general prefixes shared by all tasks, expert prefixes with a key for each task."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from pip_flower.config.schema import Bounds
from pip_flower.fidelity import Paper
from pip_flower.models.backbone import Backbone
from pip_flower.models.prompted_vit import AttachedPrompts
from pip_flower.models.prompts.base import Choice, PromptedFeatures, PromptStructure, State, cosine, uniform
from pip_flower.models.prompts.prefixes import by_block, check_depth, check_distinct, prefix_shape


@dataclass(frozen=True)
class DualPromptOptions:
    """Lengths and blocks of both kinds of prefix, selection, and the weight of the matching loss."""

    structure: Literal["dualprompt"]
    general_length: Annotated[int, Bounds(1)]
    general_blocks: Annotated[tuple[int, ...], Bounds(0)]
    expert_length: Annotated[int, Bounds(1)]
    expert_blocks: Annotated[tuple[int, ...], Bounds(0)]
    selection: Literal["sample", "batch"]
    matching: Annotated[float, Bounds(0)]

    def check(self) -> None:
        """Refuse a second prefix for a block."""
        check_distinct({"general_blocks": self.general_blocks, "expert_blocks": self.expert_blocks})


class DualPrompt(PromptStructure):
    """`general` [blocks, 2, length, heads, D / heads]; `expert.s` likewise and `key.s` [D] per slot.

    Slot t belongs to task t. The pool grows with the tasks, or has a fixed size from the start, in
    which case tasks beyond it own no slot and choose among all.
    """

    def __init__(self, options: DualPromptOptions, backbone: Backbone, fidelity: Paper) -> None:
        super().__init__(backbone, fidelity, options.matching, options.selection)
        self.options = options
        chosen = {"general_blocks": options.general_blocks, "expert_blocks": options.expert_blocks}
        check_depth(chosen, backbone.depth)

    def start_task(self, task: int, state: State, generator: torch.Generator) -> dict[str, Tensor]:
        """A slot for the task: a copy of the previous one with a key of its own."""
        o, pool = self.options, self.fidelity.pool
        if task == 0:
            added = {
                "general": uniform(prefix_shape(self.backbone, o.general_blocks, o.general_length), generator)
            }
            for slot in range(pool or 1):
                added |= self._fresh_slot(slot, generator)
            return added
        if pool is not None:
            return {}
        fresh = self._fresh_slot(task, generator)
        return fresh | {f"expert.{task}": state[f"expert.{task - 1}"].clone()}

    def trained(self, task: int) -> tuple[str, ...]:
        """The general prefixes and the task's own slot; all slots where it has none."""
        return ("general", *self._names([task] if self._owns_slot(task) else self._slots(task + 1)))

    def used(self, tasks: int) -> tuple[str, ...]:
        """The general prefixes and every slot there is."""
        return ("general", *self._names(self._slots(tasks)))

    def needs_query(self, task: int | None) -> bool:
        """Not in a task that owns a slot."""
        return task is None or not self._owns_slot(task)

    def forward(
        self, state: State, images: Tensor, query: Tensor | None, *, task: int | None, tasks: int
    ) -> PromptedFeatures:
        """Slot `task`, or the slot of greatest similarity."""
        choice, expert = self.experts(state, len(images), query, task=task, tasks=tasks)
        prefixes = by_block(state["general"].unsqueeze(0), self.options.general_blocks)
        prefixes |= by_block(expert, self.options.expert_blocks)
        features = self.backbone.encode(images, AttachedPrompts(prefixes)).squeeze(1)
        return PromptedFeatures(features, choice.similarity)

    def experts(
        self, state: State, batch: int, query: Tensor | None, *, task: int | None, tasks: int
    ) -> tuple[Choice, Tensor]:
        """The choice of slots, and the expert prefixes as the samples get them:
        [B or 1, blocks, 2, length, heads, D / heads]."""
        if task is not None and self._owns_slot(task):
            choice = self._own_slot(state, task, query)
            chosen = state[f"expert.{task}"].unsqueeze(0)
        else:
            slots = self._slots(tasks)
            keys = torch.stack([state[f"key.{slot}"] for slot in slots])
            choice = self.choose(query, keys, 1)
            pool = torch.stack([state[f"expert.{slot}"] for slot in slots])
            chosen = pool[choice.slots.squeeze(1)]
        return choice, self.fidelity.expert_layout(chosen, batch)

    def _own_slot(self, state: State, task: int, query: Tensor | None) -> Choice:
        key = state[f"key.{task}"]
        slots = torch.full((1, 1), task, device=key.device)
        if query is None:
            return Choice(slots, torch.full((), torch.nan, device=key.device))
        return Choice(slots, cosine(query, key.unsqueeze(0)).mean())

    def _owns_slot(self, task: int) -> bool:
        return self.fidelity.pool is None or task < self.fidelity.pool

    def _slots(self, tasks: int) -> range:
        return range(tasks if self.fidelity.pool is None else self.fidelity.pool)

    @staticmethod
    def _names(slots: range | list[int]) -> tuple[str, ...]:
        return tuple(name for slot in slots for name in (f"expert.{slot}", f"key.{slot}"))

    def _fresh_slot(self, slot: int, generator: torch.Generator) -> dict[str, Tensor]:
        shape = prefix_shape(self.backbone, self.options.expert_blocks, self.options.expert_length)
        return {
            f"expert.{slot}": uniform(shape, generator),
            f"key.{slot}": uniform((self.backbone.dim,), generator),
        }
