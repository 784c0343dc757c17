"""The teacher: the global model at the end of the task before, which clients distil from.

It is an array of the server's for each of the model's, under another name, and constant during a task: it
travels once, and clients keep it on disk.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.methods.networks.model import ModelTraining
from pip_flower.models.network import load_arrays
from pip_flower.models.stages import Stages, staged

PREFIX = "teacher."


class Teacher:
    """The model of `training` as it was when the task before ended; nothing before the second task."""

    def __init__(self, training: ModelTraining) -> None:
        self.head = training.head
        self._training = training
        # One per process, beside the network that is trained.
        self.network: nn.Module = training.another("teacher", 0).eval()
        self._rows: dict[str, Tensor] = {}

    def names(self, task: int) -> tuple[str, ...]:
        """What a client that trains `task` needs of it."""
        return () if task == 0 else tuple(f"{PREFIX}{name}" for name in self._training.names(task))

    def end_task(self, task: int, arrays: Arrays) -> NamedArrays:
        """On the server: what has been learnt so far teaches the next task."""
        return {f"{PREFIX}{name}": arrays[name].copy() for name in self._training.names(task + 1)}

    def load(self, task: int, arrays: Arrays) -> None:
        """On a client: be what the server sent."""
        if task > 0:
            load_arrays(self.network, arrays, f"{PREFIX}network.")
        device = self._training.workspace.device
        self._rows = {
            name: torch.as_tensor(arrays[f"{PREFIX}{name}"], device=device)
            for name in self.head.names_of(range(task))
        }

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Features [B, D]."""
        found: Tensor = self.network(images)
        return found

    @torch.no_grad()
    def stages(self, images: Tensor) -> Stages:
        """The maps of the stages, and the features."""
        return staged(self.network, images)

    @torch.no_grad()
    def logits(self, images: Tensor, tasks: Sequence[int]) -> Tensor:
        """Logits [B, classes of `tasks`], which the teacher has learnt."""
        return self.head.logits(self._rows, self.features(images), tasks)
