"""Sharing class prototypes: a client's own, those that it injects, and how the server merges them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pip_flower import prototypes
from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.config.schema import Bounds, ConfigError
from pip_flower.data.batches import own_batches
from pip_flower.data.samples import Samples
from pip_flower.method.exchange import ClientJob
from pip_flower.method.reply_checks import ArraySpec, RejectedError, check_counts
from pip_flower.method.workspace import Workspace
from pip_flower.methods.pip.training import Injection, PromptTrainer
from pip_flower.models.prompts import PromptStructure
from pip_flower.prototypes import Prototypes
from pip_flower.runtime.streams import torch_stream


@dataclass(frozen=True)
class PrototypeOptions:
    """Sharing and injection of class prototypes; copies are the augmented ones beside a class's mean."""

    share: bool
    min_samples: Annotated[int, Bounds(1)]
    augment: Literal["fixed", "balance"]
    copies: Annotated[int, Bounds(0)]
    first_round: Literal["local", "none"]
    min_copies: Annotated[int, Bounds(0)] = 0
    max_copies: Annotated[int, Bounds(0)] = 0
    augment_from: Annotated[int, Bounds(1)] = 1

    def check(self) -> None:
        """Refuse a range of copies that is empty."""
        if 0 < self.max_copies < self.min_copies:
            raise ConfigError(
                "method.prototypes.max_copies",
                f"{self.max_copies} copies at most are fewer than {self.min_copies} at least",
                f"Give method.prototypes.min_copies = {self.min_copies} or more, or 0 for any number",
            )


class PrototypeSharing:
    """Sections 4 to 6 of the method; without `share` nothing is exchanged or injected."""

    def __init__(self, workspace: Workspace, structure: PromptStructure, options: PrototypeOptions) -> None:
        self.workspace, self.structure, self.options = workspace, structure, options
        self.fidelity = structure.fidelity

    def names(self) -> tuple[str, ...]:
        """The arrays that messages carry, in both directions."""
        return prototypes.ARRAY_NAMES if self.options.share else ()

    def start(self) -> NamedArrays:
        """On the server, before the first task: an empty table."""
        return prototypes.empty(self.workspace.backbone.dim).as_arrays() if self.options.share else {}

    def message(self, task: int, arrays: Arrays) -> NamedArrays:
        """On the server: the prototypes of the task's classes only."""
        if not self.options.share:
            return {}
        return Prototypes.from_arrays(arrays).select(self.workspace.tasks.classes[task]).as_arrays()

    def merged(
        self, task: int, updates: Sequence[Arrays], weights: Sequence[float], arrays: Arrays
    ) -> NamedArrays:
        """On the server: each class's Gaussian over those who hold it (Eq. 14-15)."""
        if not self.options.share:
            return {}
        reported = [Prototypes.from_arrays(update) for update in updates]
        known, rule = Prototypes.from_arrays(arrays), self.workspace.config.aggregation
        found = prototypes.robust_merge(reported, weights, known, self.fidelity, rule)
        if not self.fidelity.keeps_unreported:
            known = known.without(self.workspace.tasks.classes[task])
        return prototypes.update(known, found).as_arrays()

    def expected(self) -> dict[str, ArraySpec]:
        """What the server accepts from a client."""
        if not self.options.share:
            return {}
        # Variances of the released code are NaN where a batch holds one sample of a class.
        return prototype_specs(self.workspace.backbone.dim, self.fidelity.name == "paper")

    def inspect(self, task: int, reply: Arrays, samples: int) -> None:
        """Refuse prototypes of other tasks' classes, or of more samples than the client has."""
        if self.options.share:
            inspect_prototypes(reply, self.workspace.tasks.classes[task], samples)

    def known(self, job: ClientJob) -> Prototypes:
        """The global prototypes, as the server sent them."""
        if not self.options.share:
            return prototypes.empty(self.workspace.backbone.dim)
        return Prototypes.from_arrays(job.arrays)

    def sent(self, trainer: PromptTrainer, job: ClientJob) -> NamedArrays:
        """The client's own, as the server gets them."""
        if not self.options.share:
            return {}
        return self.own(trainer, job).at_least(self.options.min_samples).as_arrays()

    def injects_own(self) -> bool:
        """Algorithm 1: with no global prototypes yet, a client injects its own after an epoch."""
        return self.options.share and self.options.first_round == "local" and self.fidelity.may_inject_own

    def own(self, trainer: PromptTrainer, job: ClientJob) -> Prototypes:
        """Statistics of the client's features (section 4)."""
        samples, tables, names = job.samples, [], (job.round, job.partition)
        generator = torch_stream(self.workspace.config.seed, "prototype-views", *names)
        rng = self.workspace.stream("prototype-batches", *names)
        order = self.fidelity.prototype_order(len(samples), self.workspace.pool_size(job.task), rng)
        needs_query = self.structure.needs_query(job.task)
        # The query sees the view that the prompted model sees: the deterministic one's is known.
        known = self.workspace.queries(samples) if needs_query and self._sees_test_views() else None
        for rows in own_batches(order, self._batch_size(), len(samples)):
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
        rng = self.workspace.stream("injection", job.round, job.partition, epoch)
        copies = self._copies(known, job.samples, epoch)
        features, labels = prototypes.augmented(known, copies, rng, self.fidelity)
        targets = self.workspace.tasks.targets(labels, job.task)
        device = self.workspace.device
        return Injection(torch.from_numpy(features).float().to(device), torch.from_numpy(targets).to(device))

    def _view(self, images: NDArray[np.uint8], generator: torch.Generator) -> Tensor:
        if self._sees_test_views():
            return self.workspace.views.test(images)
        return self.workspace.views.train(images, generator)

    def _batch_size(self) -> int:
        config = self.workspace.config
        return self.fidelity.prototype_batch_size(config.training.batch_size, config.evaluation.batch_size)

    def _sees_test_views(self) -> bool:
        return self.fidelity.prototype_view == "test"

    def _copies(self, known: Prototypes, samples: Samples, epoch: int) -> NDArray[np.int64]:
        """How many augmented prototypes each class gets beside its mean."""
        options = self.options
        if epoch + 1 < options.augment_from:
            return np.zeros(len(known), dtype=np.int64)
        if options.augment == "fixed":
            return np.full(len(known), options.copies, dtype=np.int64)
        size = self.workspace.config.training.batch_size
        balanced = prototypes.balanced_copies(known.classes, samples.labels, size)
        return balanced.clip(options.min_copies, options.max_copies or None)


def prototype_specs(dim: int, finite_variance: bool) -> dict[str, ArraySpec]:
    """What a client's table looks like on the wire."""
    whole, real = np.dtype(np.int64), np.dtype(np.float32)
    return {
        # Labels and counts are checked for what they say; their norm means nothing.
        "prototype.classes": ArraySpec((None,), whole, scale=np.inf),
        "prototype.mean": ArraySpec((None, dim), real),
        "prototype.variance": ArraySpec((None, dim), real, finite=finite_variance),
        "prototype.count": ArraySpec((None,), whole, scale=np.inf),
    }


def inspect_prototypes(arrays: Arrays, classes: Iterable[int], samples: int) -> None:
    """Reject a table of a client with `samples` samples of `classes` that cannot be true."""
    table = Prototypes.from_arrays(arrays)
    if len({len(table.classes), len(table.mean), len(table.variance), len(table.count)}) != 1:
        raise RejectedError("its prototypes have columns of different lengths")
    if foreign := set(table.classes.tolist()) - set(classes):
        raise RejectedError(f"it has a prototype of class {min(foreign)}, which the task does not have")
    if np.any(table.classes[1:] <= table.classes[:-1]):
        raise RejectedError("its prototypes are not sorted by class")
    if np.any(table.variance < 0):
        raise RejectedError("prototype.variance is negative")
    if np.any(table.count < 1):
        raise RejectedError("it has a prototype that rests on no sample")
    check_counts("prototype.count", table.count, samples)
