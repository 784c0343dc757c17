"""Prompt-tuned ViT clients: what PIP and its federated prompt baselines have in common."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pip_flower import prototypes
from pip_flower.data.samples import Samples
from pip_flower.fidelity import fidelity_named
from pip_flower.local_training import Batch, Injection, PromptTrainer
from pip_flower.methods.base import Arrays, ClientJob, ClientUpdate, Method, pick
from pip_flower.models import classifier
from pip_flower.models.prompts import PromptOptions, make_structure
from pip_flower.prototypes import Prototypes
from pip_flower.runtime import stream, torch_stream
from pip_flower.schema import Bounds
from pip_flower.validation import ArraySpec
from pip_flower.workbench import Workbench, batches


@dataclass(frozen=True)
class PrototypeOptions:
    """Sharing and injection of class prototypes."""

    share: bool
    min_samples: Annotated[int, Bounds(1)]
    augment: Literal["fixed", "balance"]
    copies: Annotated[int, Bounds(0)]
    first_round: Literal["local", "none"]


@dataclass(frozen=True)
class PromptedOptions:
    """Options of every prompt method."""

    prompt: PromptOptions
    prototypes: PrototypeOptions
    weighting: Literal["participation-samples", "uniform"]
    head: Literal["shared", "private"]


class PromptedMethod(Method):
    """Trains prompts, keys and the task's head rows; shares class prototypes if so configured.

    Private heads stay on their clients from round to round, so only clients can predict.
    """

    options: PromptedOptions

    def __init__(self, bench: Workbench, options: PromptedOptions) -> None:
        super().__init__(bench, options)
        self.fidelity = fidelity_named(bench.config.fidelity)
        self.structure = make_structure(options.prompt, bench.backbone, self.fidelity)

    def start_task(self, task: int, arrays: Arrays) -> dict[str, NDArray[Any]]:
        """New prompts as the structure says, and head rows for the task's classes."""
        state = {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}
        generator = torch_stream(self.bench.config.seed, "start-task", task)
        added = self.structure.start_task(task, state, generator)
        if self._shares_head():
            added |= self._fresh_head(task)
        return {name: value.numpy() for name, value in added.items()}

    def samples(self, task: int, partition: int, round_: int) -> Samples:
        """The client's own samples or, in the released code, everybody's of the classes it draws."""
        if self.fidelity.redraws_classes:
            return self.bench.pooled_samples(task, partition, round_)
        return super().samples(task, partition, round_)

    def trained(self, task: int) -> tuple[str, ...]:
        """The arrays that gradients reach in `task`."""
        return (*self.structure.trained(task), *classifier.row_names(task))

    def averaged(self, task: int, *, with_head: bool) -> tuple[str, ...]:
        """The arrays that the server averages after a round of `task`."""
        return self._shared(task) if with_head else self.structure.trained(task)

    def received(self, task: int) -> tuple[str, ...]:
        """What the task trains and, with shared prototypes, the global ones."""
        return self._shared(task) + self._prototype_names()

    def returned(self, task: int) -> tuple[str, ...]:
        """What was trained and, with shared prototypes, the client's own."""
        return self._shared(task) + self._prototype_names()

    def predicting(self, tasks: int) -> tuple[str, ...]:
        """Every prompt, key and shared head row of the tasks seen."""
        return self.structure.used(tasks) + (_head_names(tasks) if self._shares_head() else ())

    def predicts_on_clients(self) -> bool:
        """Nobody else has the private heads."""
        return not self._shares_head()

    def own_arrays(self, tasks: int, memory: Arrays) -> dict[str, NDArray[Any]]:
        """The private head; rows of tasks that this client never trained are as they start."""
        if self._shares_head():
            return {}
        fresh = {k: v.numpy() for task in range(tasks) for k, v in self._fresh_head(task).items()}
        return {name: np.asarray(memory.get(name, fresh[name])) for name in _head_names(tasks)}

    def keeps_memory(self) -> bool:
        """A private head, or what the fidelity says."""
        return self.fidelity.keeps_head or not self._shares_head()

    def expected(self, task: int, arrays: Arrays, samples: int) -> dict[str, ArraySpec]:
        """Prototypes have as many rows as the client holds classes."""
        specs = super().expected(task, arrays, samples)
        if self.options.prototypes.share:
            # Variances of the released code are NaN where a batch holds one sample of a class.
            specs |= prototypes.specs(self.bench.backbone.dim, self.fidelity.name == "paper")
        return specs

    def inspect(self, task: int, answer: Arrays, samples: int) -> None:
        """Gaussians of the task's classes only, resting on no more samples than the client has."""
        if self.options.prototypes.share:
            prototypes.inspect(answer, self.bench.tasks.classes[task], samples)

    def fit(self, job: ClientJob) -> ClientUpdate:
        """Local epochs with injected prototypes, then the client's own prototypes."""
        config = self.bench.config
        trainer = self._trainer(job)
        known = self._received_prototypes(job)
        losses = []
        for epoch in range(config.training.epochs):
            injection = self._injection(known, job, epoch)
            losses.append(trainer.epoch(self._batches(job, epoch), injection))
            more = epoch + 1 < config.training.epochs
            if more and not len(known) and self._injects_own():
                known = self._own_prototypes(trainer, job)
        arrays: dict[str, NDArray[Any]] = {
            name: value.detach().cpu().numpy() for name, value in trainer.state.items()
        }
        memory = self._memory(trainer, arrays, job)
        arrays = {name: value for name, value in arrays.items() if name in self._shared(job.task)}
        if self.options.prototypes.share:
            own = self._own_prototypes(trainer, job)
            arrays |= own.at_least(self.options.prototypes.min_samples).as_arrays()
        metrics = {"first_epoch_loss": losses[0], "last_epoch_loss": losses[-1]}
        return ClientUpdate(arrays, len(job.samples), metrics, memory)

    @torch.inference_mode()
    def scores(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:
        """Logits of the candidates, prompts chosen by the samples' queries; classes that no task has
        brought yet have the rows that they will start with."""
        candidates = self._candidate_tasks(tasks)
        fresh = {k: v for task in range(tasks, candidates) for k, v in self._fresh_head(task).items()}
        head = {**arrays, **{name: value.to(self.bench.device) for name, value in fresh.items()}}
        return classifier.logits(head, self.features(arrays, samples, tasks), range(candidates))

    @torch.inference_mode()
    def features(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:
        """What the head sees at test time [n, D]."""
        queries = self.bench.queries(samples)
        found = []
        for rows in batches(np.arange(len(samples)), self.bench.config.evaluation.batch_size):
            images = self.bench.views.test(samples.images[rows])
            prompted = self.structure.forward(arrays, images, queries[rows], task=None, tasks=tasks)
            found.append(prompted.features)
        return torch.cat(found)

    def candidates(self, tasks: int) -> tuple[int, ...]:
        """The classes seen or, in the released code, all of the data set."""
        return self.bench.tasks.seen(self._candidate_tasks(tasks))

    def _candidate_tasks(self, tasks: int) -> int:
        return len(self.bench.tasks) if self.fidelity.candidates == "all" else tasks

    def _trainer(self, job: ClientJob) -> PromptTrainer:
        """A trainer on copies of what the server sent, or of what this client kept instead."""
        names = self.trained(job.task)
        private = self.own_arrays(job.task + 1, job.memory)
        start = pick({**private, **job.arrays, **job.memory}, names)
        state = {
            name: torch.tensor(value, device=self.bench.device, requires_grad=True)
            for name, value in start.items()
        }
        sizes = [len(classes) for classes in self.bench.tasks.classes]
        others = (sum(sizes[: job.task]), sum(sizes[job.task + 1 :]))
        trainer = PromptTrainer(self.structure, state, job.task, self.bench.config.training, others)
        if self.fidelity.keeps_optimizer(job.task):
            trainer.restore_optimizer(job.memory)
        return trainer

    def _memory(self, trainer: PromptTrainer, arrays: Arrays, job: ClientJob) -> Arrays:
        """What this client keeps: a private head, and what the fidelity says."""
        memory: dict[str, NDArray[Any]] = {}
        if not self._shares_head():
            memory |= {k: np.asarray(v) for k, v in job.memory.items() if k.startswith("head.")}
        if self.fidelity.keeps_head or not self._shares_head():
            memory |= pick(arrays, classifier.row_names(job.task))
        if self.fidelity.keeps_optimizer(job.task):
            memory |= trainer.optimizer_arrays()
        return memory

    def _shares_head(self) -> bool:
        return self.options.head == "shared"

    def _shared(self, task: int) -> tuple[str, ...]:
        """What a task trains, less what stays on the client."""
        return self.trained(task) if self._shares_head() else self.structure.trained(task)

    def _prototype_names(self) -> tuple[str, ...]:
        return prototypes.ARRAY_NAMES if self.options.prototypes.share else ()

    def _received_prototypes(self, job: ClientJob) -> Prototypes:
        if not self.options.prototypes.share:
            return prototypes.empty(self.bench.backbone.dim)
        return Prototypes.from_arrays(job.arrays)

    def _injects_own(self) -> bool:
        """Algorithm 1: with no global prototypes yet, a client injects its own after an epoch."""
        options = self.options.prototypes
        return options.share and options.first_round == "local" and self.fidelity.may_inject_own

    def _own_prototypes(self, trainer: PromptTrainer, job: ClientJob) -> Prototypes:
        """Statistics of the client's features (section 4)."""
        samples, tables = job.samples, []
        generator = torch_stream(self.bench.config.seed, "prototype-views", job.round, job.partition)
        needs_query = self.structure.needs_query(job.task)
        # The query sees the view that the prompted model sees: the deterministic one's is known.
        known = self.bench.queries(samples) if needs_query and self._tests_prototypes() else None
        for rows in batches(np.arange(len(samples)), self.bench.config.evaluation.batch_size):
            images = self._prototype_view(samples.images[rows], generator)
            queries = None
            if needs_query:
                queries = self.structure.backbone.query(images) if known is None else known[rows]
            features = trainer.features(images, queries)
            table = prototypes.summarise(features.cpu().numpy(), samples.labels[rows], self.fidelity)
            tables.append(table)
        return prototypes.pool(tables)

    def _prototype_view(self, images: NDArray[np.uint8], generator: torch.Generator) -> Tensor:
        if self._tests_prototypes():
            return self.bench.views.test(images)
        return self.bench.views.train(images, generator)

    def _tests_prototypes(self) -> bool:
        return self.fidelity.prototype_view == "test"

    def _fresh_head(self, task: int) -> dict[str, Tensor]:
        generator = torch_stream(self.bench.config.seed, "start-head", task)
        classes = len(self.bench.tasks.classes[task])
        return classifier.start_task(task, classes, self.bench.backbone.dim, generator)

    def _batches(self, job: ClientJob, epoch: int) -> Iterator[Batch]:
        seed, size = self.bench.config.seed, self.bench.config.training.batch_size
        stream_names = (job.round, job.partition, epoch)
        order = stream(seed, "batches", *stream_names).permutation(len(job.samples))
        generator = torch_stream(seed, "views", *stream_names)
        augmented = self.fidelity.query(self.bench.config.training.query) == "augmented"
        known = None if augmented else self.bench.queries(job.samples)
        targets = torch.from_numpy(self.bench.tasks.targets(job.samples.labels, job.task))
        for rows in batches(order, size):
            images = self.bench.views.train(job.samples.images[rows], generator)
            queries = self.structure.backbone.query(images) if known is None else known[rows]
            yield Batch(images, queries, targets[rows].to(self.bench.device))

    def _injection(self, known: Prototypes, job: ClientJob, epoch: int) -> Injection | None:
        """Prototypes to append to every batch of the epoch; beta is drawn anew in each."""
        if not len(known):
            return None
        rng = stream(self.bench.config.seed, "injection", job.round, job.partition, epoch)
        copies = self._copies(known, job.samples)
        features, labels = prototypes.augmented(known, copies, rng, self.fidelity)
        targets = self.bench.tasks.targets(labels, job.task)
        device = self.bench.device
        return Injection(torch.from_numpy(features).float().to(device), torch.from_numpy(targets).to(device))

    def _copies(self, known: Prototypes, samples: Samples) -> NDArray[np.int64]:
        """How many augmented prototypes each class gets beside its mean."""
        options = self.options.prototypes
        if options.augment == "fixed":
            return np.full(len(known), options.copies, dtype=np.int64)
        return prototypes.balanced_copies(
            known.classes, samples.labels, self.bench.config.training.batch_size
        )


def _head_names(tasks: int) -> tuple[str, ...]:
    return tuple(name for task in range(tasks) for name in classifier.row_names(task))
