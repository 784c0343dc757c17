"""Prompt-tuned ViT clients: what PIP and its federated prompt baselines have in common."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pip_flower import prototypes
from pip_flower.data.sources import Samples
from pip_flower.local_training import Batch, Injection, PromptTrainer
from pip_flower.methods.base import Arrays, ClientJob, ClientUpdate, Method
from pip_flower.models import classifier
from pip_flower.models.prompts import PromptOptions, make_structure
from pip_flower.prototypes import Prototypes
from pip_flower.runtime import autocast, stream, torch_stream
from pip_flower.schema import bounded
from pip_flower.workbench import Workbench, batches


@dataclass(frozen=True)
class PrototypeOptions:
    """Sharing and injection of class prototypes."""

    share: bool
    min_samples: int = bounded(1)
    augment: Literal["fixed", "balance"]
    copies: int = bounded(0)
    first_round: Literal["local", "none"]


@dataclass(frozen=True)
class PromptedOptions:
    """Options of every prompt method."""

    prompt: PromptOptions
    prototypes: PrototypeOptions
    weighting: Literal["participation-samples", "uniform"]


class PromptedMethod(Method):
    """Trains prompts, keys and the task's head rows; shares class prototypes if so configured."""

    options: PromptedOptions

    def __init__(self, bench: Workbench, options: PromptedOptions) -> None:
        super().__init__(bench, options)
        self.structure = make_structure(options.prompt, bench.backbone)

    def start_task(self, task: int, arrays: Arrays) -> dict[str, NDArray[np.generic]]:
        """New prompts as the structure says, and head rows for the task's classes."""
        state = {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}
        generator = torch_stream(self.bench.config.seed, "start-task", task)
        added = self.structure.start_task(task, state, generator)
        classes = len(self.bench.tasks.classes[task])
        added |= classifier.start_task(task, classes, self.bench.backbone.dim, generator)
        return {name: value.numpy() for name, value in added.items()}

    def trained(self, task: int) -> tuple[str, ...]:
        """The arrays that gradients reach in `task`."""
        return (*self.structure.trained(task), *classifier.row_names(task))

    def received(self, task: int) -> tuple[str, ...]:
        """What the task trains and, with shared prototypes, the global ones."""
        return self.trained(task) + self._prototype_names()

    def returned(self, task: int) -> tuple[str, ...]:
        """What was trained and, with shared prototypes, the client's own."""
        return self.trained(task) + self._prototype_names()

    def predicting(self, tasks: int) -> tuple[str, ...]:
        """Every prompt, key and head row of the tasks seen."""
        names = (name for task in range(tasks) for name in self.trained(task))
        return tuple(dict.fromkeys(names))

    def fit(self, job: ClientJob) -> ClientUpdate:
        """Local epochs with injected prototypes, then the client's own prototypes."""
        config, device = self.bench.config, self.bench.device
        state = {
            name: torch.tensor(job.arrays[name], device=device, requires_grad=True)
            for name in self.trained(job.task)
        }
        trainer = PromptTrainer(self.structure, state, job.task, config.training, config.runtime)
        known = self._received_prototypes(job)
        losses = []
        for epoch in range(config.training.epochs):
            injection = self._injection(known, job, epoch)
            losses.append(trainer.epoch(self._batches(job, epoch), injection))
            more = epoch + 1 < config.training.epochs
            if more and not len(known) and self._injects_own():
                known = self._own_prototypes(trainer, job)
        arrays = {name: value.detach().cpu().numpy() for name, value in state.items()}
        if self.options.prototypes.share:
            own = self._own_prototypes(trainer, job)
            arrays |= own.at_least(self.options.prototypes.min_samples).as_arrays()
        metrics = {"first_epoch_loss": losses[0], "last_epoch_loss": losses[-1]}
        return ClientUpdate(arrays, len(job.samples), metrics)

    @torch.inference_mode()
    def scores(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:
        """Logits of all classes seen, prompts chosen by each sample's query."""
        config = self.bench.config
        queries = self.bench.queries(samples)
        found = []
        for rows in batches(np.arange(len(samples)), config.evaluation.batch_size):
            images = self.bench.views.test(samples.images[rows])
            with autocast(config.runtime, self.bench.device):
                features, _ = self.structure.forward(
                    arrays, images, queries[rows], task=None, tasks=tasks
                )
            found.append(classifier.logits(arrays, features, range(tasks)))
        return torch.cat(found)

    def _prototype_names(self) -> tuple[str, ...]:
        return prototypes.ARRAY_NAMES if self.options.prototypes.share else ()

    def _received_prototypes(self, job: ClientJob) -> Prototypes:
        if not self.options.prototypes.share:
            return prototypes.empty(self.bench.backbone.dim)
        return Prototypes.from_arrays(job.arrays)

    def _injects_own(self) -> bool:
        """Algorithm 1: with no global prototypes yet, a client injects its own after an epoch."""
        return self.options.prototypes.share and self.options.prototypes.first_round == "local"

    def _own_prototypes(self, trainer: PromptTrainer, job: ClientJob) -> Prototypes:
        """Statistics of the client's features, from the deterministic view of its samples."""
        table = prototypes.empty(self.bench.backbone.dim)
        queries = self.bench.queries(job.samples)
        for rows in batches(np.arange(len(job.samples)), self.bench.config.evaluation.batch_size):
            images = self.bench.views.test(job.samples.images[rows])
            features = trainer.features(images, queries[rows]).cpu().numpy()
            table = prototypes.merge([table, prototypes.summarise(features, job.samples.labels[rows])])
        return table

    def _batches(self, job: ClientJob, epoch: int) -> Iterator[Batch]:
        seed, size = self.bench.config.seed, self.bench.config.training.batch_size
        stream_names = (job.round, job.partition, epoch)
        order = stream(seed, "batches", *stream_names).permutation(len(job.samples))
        generator = torch_stream(seed, "views", *stream_names)
        queries = self.bench.queries(job.samples)
        targets = torch.from_numpy(self.bench.tasks.targets(job.samples.labels, job.task))
        for rows in batches(order, size):
            yield Batch(
                images=self.bench.views.train(job.samples.images[rows], generator),
                queries=queries[rows],
                targets=targets[rows].to(self.bench.device),
            )

    def _injection(self, known: Prototypes, job: ClientJob, epoch: int) -> Injection | None:
        """Prototypes to append to every batch of the epoch; beta is drawn anew in each."""
        if not len(known):
            return None
        rng = stream(self.bench.config.seed, "injection", job.round, job.partition, epoch)
        features, labels = prototypes.augmented(known, self._copies(known, job.samples), rng)
        targets = self.bench.tasks.targets(labels, job.task)
        device = self.bench.device
        return Injection(
            torch.from_numpy(features).float().to(device), torch.from_numpy(targets).to(device)
        )

    def _copies(self, known: Prototypes, samples: Samples) -> NDArray[np.int64]:
        """How many augmented prototypes each class gets beside its mean."""
        options = self.options.prototypes
        if options.augment == "fixed":
            return np.full(len(known), options.copies, dtype=np.int64)
        return balanced_copies(known.classes, samples.labels, self.bench.config.training.batch_size)


def balanced_copies(
    classes: NDArray[np.int64], labels: NDArray[np.int64], batch_size: int
) -> NDArray[np.int64]:
    """m for each of `classes` so that, with its mean, it appears in a batch as often as the classes the
    client holds do on average."""
    in_batch = min(batch_size, len(labels)) * np.array([(labels == c).mean() for c in classes])
    target = min(batch_size, len(labels)) / len(np.unique(labels))
    copies = np.round(target - in_batch - 1).clip(min=0)
    return np.asarray(copies, dtype=np.int64)
