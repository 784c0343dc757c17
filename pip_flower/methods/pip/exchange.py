"""A client's side of sharing class prototypes: its own, those that it receives, those that it injects."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pip_flower import prototypes
from pip_flower.data.samples import Samples
from pip_flower.methods.pip.training import Injection, PromptTrainer
from pip_flower.arrays import Arrays
from pip_flower.method.base import ClientJob
from pip_flower.models.prompts import PromptStructure
from pip_flower.prototypes import Prototypes
from pip_flower.runtime.streams import stream, torch_stream
from pip_flower.config.schema import Bounds
from pip_flower.method.reply_checks import ArraySpec
from pip_flower.method.workspace import Workspace
from pip_flower.data.batches import batches


@dataclass(frozen=True)
class PrototypeOptions:
    """Sharing and injection of class prototypes."""

    share: bool
    min_samples: Annotated[int, Bounds(1)]
    augment: Literal["fixed", "balance"]
    copies: Annotated[int, Bounds(0)]
    first_round: Literal["local", "none"]


class PrototypeExchange:
    """Sections 4 and 5 of the method, on the client; without `share` nothing is exchanged or injected."""

    def __init__(self, bench: Workspace, structure: PromptStructure, options: PrototypeOptions) -> None:
        self.bench, self.structure, self.options = bench, structure, options
        self.fidelity = structure.fidelity

    def names(self) -> tuple[str, ...]:
        """The arrays that messages carry, in both directions."""
        return prototypes.ARRAY_NAMES if self.options.share else ()

    def expected(self) -> dict[str, ArraySpec]:
        """What the server accepts from a client."""
        if not self.options.share:
            return {}
        # Variances of the released code are NaN where a batch holds one sample of a class.
        return prototypes.specs(self.bench.backbone.dim, self.fidelity.name == "paper")

    def inspect(self, task: int, answer: Arrays, samples: int) -> None:
        """Refuse prototypes of other tasks' classes, or of more samples than the client has."""
        if self.options.share:
            prototypes.inspect(answer, self.bench.tasks.classes[task], samples)

    def received(self, job: ClientJob) -> Prototypes:
        """The global prototypes, as the server sent them."""
        if not self.options.share:
            return prototypes.empty(self.bench.backbone.dim)
        return Prototypes.from_arrays(job.arrays)

    def sent(self, trainer: PromptTrainer, job: ClientJob) -> dict[str, NDArray[Any]]:
        """The client's own, as the server gets them."""
        if not self.options.share:
            return {}
        return self.own(trainer, job).at_least(self.options.min_samples).as_arrays()

    def injects_own(self) -> bool:
        """Algorithm 1: with no global prototypes yet, a client injects its own after an epoch."""
        return self.options.share and self.options.first_round == "local" and self.fidelity.may_inject_own

    def own(self, trainer: PromptTrainer, job: ClientJob) -> Prototypes:
        """Statistics of the client's features (section 4)."""
        samples, tables = job.samples, []
        generator = torch_stream(self.bench.config.seed, "prototype-views", job.round, job.partition)
        needs_query = self.structure.needs_query(job.task)
        # The query sees the view that the prompted model sees: the deterministic one's is known.
        known = self.bench.queries(samples) if needs_query and self._sees_test_views() else None
        for rows in batches(np.arange(len(samples)), self.bench.config.evaluation.batch_size):
            images = self._view(samples.images[rows], generator)
            queries = None
            if needs_query:
                queries = self.structure.backbone.query(images) if known is None else known[rows]
            features = trainer.features(images, queries)
            table = prototypes.summarise(features.cpu().numpy(), samples.labels[rows], self.fidelity)
            tables.append(table)
        return prototypes.pool(tables)

    def injection(self, known: Prototypes, job: ClientJob, epoch: int) -> Injection | None:
        """Prototypes to append to every batch of the epoch; beta is drawn anew in each."""
        if not len(known):
            return None
        rng = stream(self.bench.config.seed, "injection", job.round, job.partition, epoch)
        copies = self._copies(known, job.samples)
        features, labels = prototypes.augmented(known, copies, rng, self.fidelity)
        targets = self.bench.tasks.targets(labels, job.task)
        device = self.bench.device
        return Injection(torch.from_numpy(features).float().to(device), torch.from_numpy(targets).to(device))

    def _view(self, images: NDArray[np.uint8], generator: torch.Generator) -> Tensor:
        if self._sees_test_views():
            return self.bench.views.test(images)
        return self.bench.views.train(images, generator)

    def _sees_test_views(self) -> bool:
        return self.fidelity.prototype_view == "test"

    def _copies(self, known: Prototypes, samples: Samples) -> NDArray[np.int64]:
        """How many augmented prototypes each class gets beside its mean."""
        if self.options.augment == "fixed":
            return np.full(len(known), self.options.copies, dtype=np.int64)
        size = self.bench.config.training.batch_size
        return prototypes.balanced_copies(known.classes, samples.labels, size)
