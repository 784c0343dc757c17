"""Prompt-tuned ViT clients: what PIP and its federated prompt baselines have in common."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pip_flower.data.samples import Samples
from pip_flower.fidelity import fidelity_named
from pip_flower.methods.pip.training import Batch, PromptTrainer
from pip_flower.arrays import Arrays, pick
from pip_flower.method.base import ClientJob, ClientUpdate, Method
from pip_flower.methods.pip.exchange import PrototypeExchange, PrototypeOptions
from pip_flower.models import classifier
from pip_flower.models.prompts import PromptOptions, make_structure
from pip_flower.runtime.streams import stream, torch_stream
from pip_flower.method.reply_checks import ArraySpec
from pip_flower.method.workspace import Workspace
from pip_flower.data.batches import batches


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

    def __init__(self, bench: Workspace, options: PromptedOptions) -> None:
        super().__init__(bench, options)
        self.fidelity = fidelity_named(bench.config.fidelity)
        self.structure = make_structure(options.prompt, bench.backbone, self.fidelity)
        self.exchange = PrototypeExchange(bench, self.structure, options.prototypes)

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
        return self._shared(task) + self.exchange.names()

    def returned(self, task: int) -> tuple[str, ...]:
        """What was trained and, with shared prototypes, the client's own."""
        return self._shared(task) + self.exchange.names()

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
        return super().expected(task, arrays, samples) | self.exchange.expected()

    def inspect(self, task: int, answer: Arrays, samples: int) -> None:
        """Gaussians of the task's classes only, resting on no more samples than the client has."""
        self.exchange.inspect(task, answer, samples)

    def fit(self, job: ClientJob) -> ClientUpdate:
        """Local epochs with injected prototypes, then the client's own prototypes."""
        config = self.bench.config
        trainer = self._trainer(job)
        known = self.exchange.received(job)
        losses = []
        for epoch in range(config.training.epochs):
            injection = self.exchange.injection(known, job, epoch)
            losses.append(trainer.epoch(self._batches(job, epoch), injection))
            more = epoch + 1 < config.training.epochs
            if more and not len(known) and self.exchange.injects_own():
                known = self.exchange.own(trainer, job)
        arrays: dict[str, NDArray[Any]] = {
            name: value.detach().cpu().numpy() for name, value in trainer.state.items()
        }
        memory = self._memory(trainer, arrays, job)
        arrays = pick(arrays, self._shared(job.task)) | self.exchange.sent(trainer, job)
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


def _head_names(tasks: int) -> tuple[str, ...]:
    return tuple(name for task in range(tasks) for name in classifier.row_names(task))
