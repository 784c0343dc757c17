"""A client's training step for prompt methods: masked cross-entropy over real and injected features."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pip_flower.config import RuntimeConfig, TrainingConfig
from pip_flower.models import classifier
from pip_flower.models.prompts import PromptStructure
from pip_flower.runtime import autocast


@dataclass(frozen=True)
class Batch:
    """Images [B, 3, S, S], their queries [B, D], and targets [B] among the task's classes."""

    images: Tensor
    queries: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Injection:
    """Prototype features [P, D] and their targets [P], appended to a batch right before the head."""

    features: Tensor
    targets: Tensor


class PromptTrainer:
    """Adam on `state`, the leaf tensors that one client trains in one round of `task`."""

    def __init__(
        self,
        structure: PromptStructure,
        state: dict[str, Tensor],
        task: int,
        training: TrainingConfig,
        runtime: RuntimeConfig,
    ) -> None:
        self.structure = structure
        self.state = state
        self.task = task
        self.training = training
        self.runtime = runtime
        self.optimizer = torch.optim.Adam(state.values(), lr=training.learning_rate)

    def epoch(self, batches: Iterable[Batch], injection: Injection | None) -> float:
        """One pass over `batches`; the mean of their losses."""
        losses = [self.step(batch, injection) for batch in batches]
        # One synchronisation with the device per epoch, not per step.
        return float(torch.stack(losses).mean())

    def step(self, batch: Batch, injection: Injection | None) -> Tensor:
        """One optimizer step; the loss before it."""
        loss = self.loss(batch, injection)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(self.state.values()), self.training.clip_norm)
        self.optimizer.step()
        return loss.detach()

    def loss(self, batch: Batch, injection: Injection | None) -> Tensor:
        """CE over real and injected features, plus lambda * (1 - cos) to the selected keys."""
        with autocast(self.runtime, batch.images.device):
            features, similarity = self.structure.forward(
                self.state, batch.images, batch.queries, task=self.task, tasks=self.task + 1
            )
        targets = batch.targets
        if injection is not None:
            features = torch.cat([features, injection.features])
            targets = torch.cat([targets, injection.targets])
        outputs = classifier.logits(self.state, features, [self.task])
        return F.cross_entropy(outputs, targets) + self.structure.matching_loss(similarity)

    @torch.inference_mode()
    def features(self, images: Tensor, queries: Tensor) -> Tensor:
        """f_p(x) with the prompts of this task [B, D]."""
        with autocast(self.runtime, images.device):
            return self.structure.forward(
                self.state, images, queries, task=self.task, tasks=self.task + 1
            ).features
