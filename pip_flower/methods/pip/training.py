"""A client's training step for prompt methods: masked cross-entropy over real and injected features."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from pip_flower.config.sections import TrainingConfig
from pip_flower.method.descent import descend
from pip_flower.models.heads import LinearHead
from pip_flower.models.prompts import Batch, PromptStructure, State
from pip_flower.runtime.devices import adam

Penalty = Callable[[State], Tensor]


@dataclass(frozen=True)
class Injection:
    """Prototype features [P, D] and their targets [P], appended to a batch right before the head."""

    features: Tensor
    targets: Tensor


class Loss(NamedTuple):
    """The terms of the objective (scalars)."""

    cross_entropy: Tensor
    matching: Tensor
    penalty: Tensor | float

    @property
    def total(self) -> Tensor:
        """What is minimised."""
        return self.cross_entropy + self.matching + self.penalty


class PromptTrainer:
    """Adam on `state`, the leaf tensors that one client trains in one round of `task`; `others` are the
    numbers of classes that earlier and later tasks bring, `context` what earlier tasks left to be read.
    `penalty` is what a method adds to the loss, given both."""

    def __init__(
        self,
        structure: PromptStructure,
        state: dict[str, Tensor],
        task: int,
        training: TrainingConfig,
        others: tuple[int, int],
        context: State | None = None,
        penalty: Penalty | None = None,
    ) -> None:
        self.structure = structure
        self.head = LinearHead(structure.backbone.dim)
        self.state = state
        self.task = task
        self.training = training
        self.others = others
        self.context = context or {}
        self._penalty = penalty
        device = next(iter(state.values())).device
        self.optimizer = adam(state.values(), training.learning_rate, device)

    def epoch(self, batches: Iterable[Batch], injection: Injection | None) -> float:
        """One pass over `batches`; the mean of their losses."""
        return descend(
            batches,
            lambda batch: self.loss(batch, injection).total,
            list(self.state.values()),
            self.optimizer,
            self.training.clip_norm,
        )

    def update(self) -> Tensor:
        """Clip the gradients and let Adam use them; their norm before clipping."""
        norm = torch.nn.utils.clip_grad_norm_(list(self.state.values()), self.training.clip_norm)
        self.optimizer.step()
        return norm

    def loss(self, batch: Batch, injection: Injection | None) -> Loss:
        """CE over real and injected features, plus lambda * (1 - cos) to the selected keys, and penalties."""
        prompts = {**self.context, **self.state}
        features, similarity = self.structure.forward(
            prompts, batch.images, batch.queries, task=self.task, tasks=self.task + 1
        )
        targets = batch.targets
        if injection is not None:
            features = torch.cat([features, injection.features])
            targets = torch.cat([targets, injection.targets])
        head = self.head.rows(self.state, self.task)
        error = self.structure.fidelity.cross_entropy(features, head, targets, self.others)
        penalty = self.structure.penalty(prompts, self.task)
        if self._penalty is not None:
            penalty = penalty + self._penalty(prompts)
        return Loss(error, self.structure.matching_loss(similarity), penalty)

    def optimizer_arrays(self) -> dict[str, NDArray[Any]]:
        """Adam's step count and moments under `adam.<array>.<what>`, to go on with in another round."""
        arrays: dict[str, NDArray[Any]] = {}
        for name, leaf in self.state.items():
            for what, value in self.optimizer.state[leaf].items():
                arrays[f"adam.{name}.{what}"] = value.detach().cpu().numpy()
        return arrays

    def restore_optimizer(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from `optimizer_arrays()`; those of arrays that are not trained here are ignored."""
        for name, leaf in self.state.items():
            for what in ("step", "exp_avg", "exp_avg_sq"):
                if (key := f"adam.{name}.{what}") in arrays:
                    self.optimizer.state[leaf][what] = torch.tensor(arrays[key], device=leaf.device)

    @torch.inference_mode()
    def features(self, images: Tensor, queries: Tensor | None) -> Tensor:
        """f_p(x) with the prompts of this task [B, D]; queries only where the structure needs them."""
        prompts = {**self.context, **self.state}
        return self.structure.forward(prompts, images, queries, task=self.task, tasks=self.task + 1).features
