"""What every head offers."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

State = Mapping[str, Tensor]


class Head(ABC):
    """Logits from features of width `width`; the names of its arrays begin with `prefix`."""

    def __init__(self, width: int, prefix: str = "head") -> None:
        self.width = width
        self.prefix = prefix

    @abstractmethod
    def names(self, task: int) -> tuple[str, ...]:
        """The arrays of one task's classes."""

    def names_of(self, tasks: Iterable[int]) -> tuple[str, ...]:
        """The arrays of several tasks' classes, task by task."""
        return tuple(name for task in tasks for name in self.names(task))

    @abstractmethod
    def start_task(self, task: int, classes: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Fresh arrays for the `classes` classes that a task brings."""

    @abstractmethod
    def logits(self, state: State, features: Tensor, tasks: Sequence[int]) -> Tensor:
        """Features [B, D] -> logits [B, classes of `tasks`], in the order of `tasks`."""
