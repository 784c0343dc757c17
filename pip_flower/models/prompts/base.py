"""What every prompt structure offers, and selection by query-key similarity."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pip_flower.models.backbone import Backbone

State = Mapping[str, Tensor]


class Prompted(NamedTuple):
    """`features` [B, D] for the head; `similarity`: cosine to the selected keys, summed over them and
    averaged over the batch (a scalar)."""

    features: Tensor
    similarity: Tensor


class PromptStructure(ABC):
    """Prompts are named arrays in a state; a structure holds none of them itself."""

    def __init__(self, backbone: Backbone, matching: float) -> None:
        self.backbone = backbone
        self.matching = matching

    @abstractmethod
    def start_task(self, task: int, state: State, generator: torch.Generator) -> dict[str, Tensor]:
        """The arrays that `task` (0-based) adds to `state`."""

    @abstractmethod
    def trained(self, task: int) -> tuple[str, ...]:
        """Names of the arrays that `task` trains; training needs no others."""

    @abstractmethod
    def forward(
        self, state: State, images: Tensor, query: Tensor | None, *, task: int | None, tasks: int
    ) -> Prompted:
        """Images [B, 3, S, S] -> features.

        With `task` the prompts of that task are used where the structure has such; without, each
        sample's are chosen by its query [B, D] among those of the first `tasks` tasks.
        """

    def matching_loss(self, similarity: Tensor) -> Tensor:
        """lambda * sum over selected keys of (1 - cos), less the constant."""
        return -self.matching * similarity


def uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Fresh prompt or key entries: uniform(-1, 1)."""
    return torch.rand(shape, generator=generator) * 2 - 1


def cosine(query: Tensor, keys: Tensor) -> Tensor:
    """Cosine similarity of query [B, D] and keys [P, D] -> [B, P]."""
    return F.normalize(query, dim=1, eps=1e-6) @ F.normalize(keys, dim=1, eps=1e-6).T
