"""What every prompt structure offers, and selection by query-key similarity."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pip_flower.fidelity import Paper, Selection
from pip_flower.models.backbone import Backbone

State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """Images [B, 3, S, S], their queries [B, D] if the structure trains with them, and targets [B] among the
    classes that compete."""

    images: Tensor
    queries: Tensor | None
    targets: Tensor


class PromptedFeatures(NamedTuple):
    """`features` [B, D] for the head; `similarity`: cosine to the selected keys, summed over them and
    averaged over the batch (a scalar)."""

    features: Tensor
    similarity: Tensor


class Choice(NamedTuple):
    """`slots` [B or 1, k]: which pool entries each sample, or the whole batch, gets; `similarity` as in
    `PromptedFeatures`."""

    slots: Tensor
    similarity: Tensor


class PromptStructure(ABC):
    """Prompts are named arrays in a state; a structure holds none of them itself."""

    # Whether training reads the query at all, be it for the matching loss.
    trains_with_query = True

    def __init__(self, backbone: Backbone, fidelity: Paper, matching: float, selection: Selection) -> None:
        self.backbone = backbone if fidelity.shortcuts else backbone.without_shortcuts()
        self.fidelity = fidelity
        self.matching = matching
        self.selection = fidelity.selection(selection)

    @abstractmethod
    def start_task(self, task: int, state: State, generator: torch.Generator) -> dict[str, Tensor]:
        """The arrays that `task` (0-based) adds to `state`."""

    @abstractmethod
    def trained(self, task: int) -> tuple[str, ...]:
        """Names of the arrays that `task` trains."""

    def context(self, task: int) -> tuple[str, ...]:  # noqa: ARG002
        """Names of the arrays that the features of `task` depend on beside what it trains; they stay as
        earlier tasks left them."""
        return ()

    def read(self, task: int) -> tuple[str, ...]:
        """Names of all arrays that the features of `task` depend on."""
        return (*self.trained(task), *self.context(task))

    @abstractmethod
    def used(self, tasks: int) -> tuple[str, ...]:
        """Names of the arrays that prediction uses after `tasks` tasks."""

    @abstractmethod
    def needs_query(self, task: int | None) -> bool:
        """Whether the features of `task` (None: at inference) depend on the query."""

    @abstractmethod
    def forward(
        self, state: State, images: Tensor, query: Tensor | None, *, task: int | None, tasks: int
    ) -> PromptedFeatures:
        """Images [B, 3, S, S] -> features.

        With `task` the prompts of that task are used where the structure has such, and the query
        [B, D] only enters the similarity (NaN without one); without `task`, prompts are chosen by the
        query among those of the first `tasks` tasks.
        """

    def choose(self, query: Tensor | None, keys: Tensor, count: int) -> Choice:
        """The `count` keys [P, D] of greatest similarity, for each sample or by the batch's vote."""
        if query is None:
            raise ValueError("selection by similarity needs the query")
        similarity = cosine(query, keys)
        slots = similarity.topk(count, dim=1).indices
        if self.selection == "batch":
            slots = self.fidelity.vote(slots, len(keys), count).unsqueeze(0)
        chosen = similarity.gather(1, slots.expand(len(query), -1))
        return Choice(slots, chosen.sum(dim=1).mean())

    def matching_loss(self, similarity: Tensor) -> Tensor:
        """lambda * sum over selected keys of (1 - cos), less the constant."""
        return -self.matching * similarity

    def penalty(self, state: State, task: int) -> Tensor | float:  # noqa: ARG002
        """What the prompts of `task` themselves add to the loss."""
        return 0.0


def uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Fresh prompt or key entries: uniform(-1, 1)."""
    return torch.rand(shape, generator=generator) * 2 - 1


def cosine(query: Tensor, keys: Tensor) -> Tensor:
    """Cosine similarity of query [B, D] and keys [P, D] -> [B, P]."""
    return unit(query) @ unit(keys).T


def unit(vectors: Tensor) -> Tensor:
    """Rows [n, D] scaled to length 1."""
    return F.normalize(vectors, dim=1, eps=1e-6)
