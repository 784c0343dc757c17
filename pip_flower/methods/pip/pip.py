"""PIP: prompts and head averaged by participation and samples, class prototypes shared and injected.

Without prototypes and with equal weights it is the federated baseline of its prompt structure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pip_flower.arrays import Arrays, NamedArrays, pick
from pip_flower.config.sections import Config
from pip_flower.data.batches import batches
from pip_flower.data.samples import Samples
from pip_flower.fidelity import fidelity_named
from pip_flower.method.base import Method
from pip_flower.method.exchange import ClientJob, ClientUpdate, Contribution
from pip_flower.method.merging import Kept, Mean, Merge
from pip_flower.method.reply_checks import ArraySpec
from pip_flower.method.round import Round
from pip_flower.method.workspace import Workspace
from pip_flower.methods.pip.batches import training_batches
from pip_flower.methods.pip.sharing import PrototypeOptions, PrototypeSharing
from pip_flower.methods.pip.training import Penalty, PromptTrainer
from pip_flower.models.heads import LinearHead
from pip_flower.models.prompts import PromptOptions, make_structure
from pip_flower.prototypes import Prototypes
from pip_flower.runtime.streams import torch_stream


@dataclass(frozen=True)
class PIPOptions:
    """The prompts, the prototypes, how clients count, and where the head lives."""

    prompt: PromptOptions
    prototypes: PrototypeOptions
    weighting: Literal["participation-samples", "samples", "uniform"]
    head: Literal["shared", "private"]


class PIP(Method):
    """Trains prompts, keys and the task's head rows; shares class prototypes if so configured.

    Private heads stay on their clients from round to round, so only clients can predict.
    """

    options: PIPOptions
    has_released_code = True

    @classmethod
    def check(cls, config: Config) -> None:
        """Prompts and prototypes that can be."""
        super().check(config)
        config.method.options.prototypes.check()
        config.method.options.prompt.check()

    def __init__(self, workspace: Workspace, options: PIPOptions) -> None:
        super().__init__(workspace, options)
        self.fidelity = fidelity_named(workspace.config.fidelity)
        self.structure = make_structure(
            options.prompt, workspace.backbone, self.fidelity, len(workspace.tasks)
        )
        self.head = LinearHead(workspace.backbone.dim)
        self.sharing = PrototypeSharing(workspace, self.structure, options.prototypes)

    def start_task(self, task: int, arrays: Arrays) -> NamedArrays:
        """New prompts as the structure says, and head rows for the task's classes."""
        state = {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}
        generator = torch_stream(self.config.seed, "start-task", task)
        added = self.structure.start_task(task, state, generator)
        found = {name: value.numpy() for name, value in added.items()}
        if task == 0:
            found |= self.sharing.start()
        if self._sends_head():
            found |= self._fresh_head(task)
        return found

    def start_round(self, task: int, arrays: Arrays) -> NamedArrays:
        """Nothing is reset, except in the released code."""
        return self.fidelity.start_round(task, arrays)

    def samples(self, task: int, partition: int, round_: int) -> Samples:
        """The client's own samples or, in the released code, everybody's of the classes it draws."""
        if self.fidelity.redraws_classes:
            return self.workspace.pooled_samples(task, partition, round_)
        return super().samples(task, partition, round_)

    def trained(self, task: int) -> tuple[str, ...]:
        """The arrays that gradients reach in `task`."""
        return (*self.structure.trained(task), *self.head.names(task))

    def received(self, task: int) -> tuple[str, ...]:
        """What the task trains and, with shared prototypes, the global ones."""
        return self._shared(task) + self.sharing.names()

    def returned(self, task: int) -> tuple[str, ...]:
        """What was trained and, with shared prototypes, the client's own."""
        return self._shared(task) + self.sharing.names()

    def constant(self, task: int) -> tuple[str, ...]:
        """What earlier tasks left and this one reads."""
        return self.structure.context(task)

    def predicting(self, tasks: int) -> tuple[str, ...]:
        """Every prompt, key and shared head row of the tasks seen."""
        return self.structure.used(tasks) + (self.head.names_of(range(tasks)) if self._shares_head() else ())

    def message(self, task: int, arrays: Arrays) -> NamedArrays:
        """What the task trains, and the prototypes of the task's classes only."""
        return super().message(task, arrays) | self.sharing.message(task, arrays)

    def weight(self, contribution: Contribution) -> float:
        """That of section 6, the samples alone, or the same for everybody."""
        if self.options.weighting == "uniform":
            return 1.0
        if self.options.weighting == "samples":
            return super().weight(contribution)
        return self.fidelity.client_weight(contribution.participations, contribution.update.samples)

    def merging(self, round_: Round) -> Mapping[str, Merge]:
        """Prompts, keys and head by weighted mean (Eq. 12-13)."""
        head = Mean() if self.fidelity.averages_head(round_.ends_task) else Kept()
        rows = self.head.names(round_.task)
        return {name: head if name in rows else Mean() for name in self._shared(round_.task)}

    def merge(self, round_: Round, contributions: Sequence[Contribution], arrays: Arrays) -> NamedArrays:
        """The model, and each class's Gaussian."""
        updates = [contribution.update.arrays for contribution in contributions]
        weights = [self.weight(contribution) for contribution in contributions]
        model = super().merge(round_, contributions, arrays)
        return model | self.sharing.merged(round_.task, updates, weights, arrays)

    def predicts_on_clients(self) -> bool:
        """Nobody else has the private heads."""
        return not self._shares_head()

    def own_arrays(self, tasks: int, memory: Arrays) -> NamedArrays:
        """The private head; rows of tasks that this client never trained are as they start."""
        if self._shares_head():
            return {}
        fresh = {name: value for task in range(tasks) for name, value in self._fresh_head(task).items()}
        return {name: np.asarray(memory.get(name, value)) for name, value in fresh.items()}

    def keeps_memory(self) -> bool:
        """A private head, or what the fidelity says."""
        return self.fidelity.keeps_head or not self._shares_head()

    def expected(self, task: int, arrays: Arrays, samples: int) -> dict[str, ArraySpec]:
        """Prototypes have as many rows as the client holds classes."""
        return super().expected(task, arrays, samples) | self.sharing.expected()

    def inspect(self, task: int, reply: Arrays, samples: int) -> None:
        """Gaussians of the task's classes only, resting on no more samples than the client has."""
        self.sharing.inspect(task, reply, samples)

    def fit(self, job: ClientJob) -> ClientUpdate:
        """Local epochs with injected prototypes, then the client's own prototypes."""
        epochs, losses = self.config.training.epochs, []
        trainer, known = self._begin(job)
        for epoch in range(epochs):
            injection = self.sharing.injection(known, job, epoch)
            given = training_batches(self.workspace, self.structure, job, epoch)
            losses.append(trainer.epoch(given, injection))
            more = epoch + 1 < epochs
            if more and not len(known) and self.sharing.injects_own():
                known = self.sharing.own(trainer, job)
        arrays: NamedArrays = {name: value.detach().cpu().numpy() for name, value in trainer.state.items()}
        memory = self._memory(trainer, arrays, job)
        arrays = pick(arrays, self._shared(job.task)) | self.sharing.sent(trainer, job)
        metrics = {"first_epoch_loss": losses[0], "last_epoch_loss": losses[-1]}
        return ClientUpdate(arrays, len(job.samples), metrics, memory)

    def penalty(self, job: ClientJob) -> Penalty | None:  # noqa: ARG002
        """What a client adds to the loss beside PIP's own terms."""
        return None

    @torch.inference_mode()
    def scores(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:
        """Logits of the candidates, prompts chosen by the samples' queries; classes that no task has
        brought yet have the rows that they will start with."""
        candidates, head = self._candidate_tasks(tasks), dict(arrays)
        for task in range(tasks, candidates):
            fresh = self._fresh_head(task).items()
            head |= {name: torch.from_numpy(value).to(self.workspace.device) for name, value in fresh}
        return self.head.logits(head, self.features(arrays, samples, tasks), range(candidates))

    @torch.inference_mode()
    def features(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:
        """What the head sees at test time [n, D]."""
        queries = self.workspace.queries(samples) if self.structure.needs_query(None) else None
        found = []
        for rows in batches(np.arange(len(samples)), self.config.evaluation.batch_size):
            images = self.workspace.views.test(samples.images[rows])
            chosen_by = None if queries is None else queries[rows]
            prompted = self.structure.forward(arrays, images, chosen_by, task=None, tasks=tasks)
            found.append(prompted.features)
        return torch.cat(found)

    def candidates(self, tasks: int) -> tuple[int, ...]:
        """The classes seen or, in the released code, all of the data set."""
        return self.workspace.tasks.seen(self._candidate_tasks(tasks))

    def _candidate_tasks(self, tasks: int) -> int:
        return len(self.workspace.tasks) if self.fidelity.candidates == "all" else tasks

    def _begin(self, job: ClientJob) -> tuple[PromptTrainer, Prototypes]:
        """What a client trains, and the prototypes that it knows then."""
        return self._trainer(job), self.sharing.known(job)

    def _trainer(self, job: ClientJob) -> PromptTrainer:
        """A trainer on copies of what the server sent, or of what this client kept instead."""
        private, device = self.own_arrays(job.task + 1, job.memory), self.workspace.device
        start = pick({**private, **job.arrays, **job.memory}, self.trained(job.task))
        state = {k: torch.tensor(value, device=device, requires_grad=True) for k, value in start.items()}
        sizes = [len(classes) for classes in self.workspace.tasks.classes]
        others = sum(sizes[: job.task]), sum(sizes[job.task + 1 :])
        context = {k: torch.tensor(job.arrays[k], device=device) for k in self.constant(job.task)}
        given = (self.config.training, others, context, self.penalty(job))
        trainer = PromptTrainer(self.structure, state, job.task, *given)
        if self.fidelity.keeps_optimizer(job.task):
            trainer.restore_optimizer(job.memory)
        return trainer

    def _memory(self, trainer: PromptTrainer, arrays: Arrays, job: ClientJob) -> Arrays:
        """What this client keeps: a private head, and what the fidelity says."""
        memory: NamedArrays = {}
        if not self._shares_head():
            memory |= {k: np.asarray(v) for k, v in job.memory.items() if k.startswith("head.")}
        if self.fidelity.keeps_head or not self._shares_head():
            memory |= pick(arrays, self.head.names(job.task))
        if self.fidelity.keeps_optimizer(job.task):
            memory |= trainer.optimizer_arrays()
        return memory

    def _shares_head(self) -> bool:
        return self.options.head == "shared"

    def _sends_head(self) -> bool:
        """Whether messages carry the task's head rows."""
        return self._shares_head()

    def _shared(self, task: int) -> tuple[str, ...]:
        """What a task trains, less what stays on the client."""
        return self.trained(task) if self._sends_head() else self.structure.trained(task)

    def _fresh_head(self, task: int) -> NamedArrays:
        generator = torch_stream(self.config.seed, "start-head", task)
        return self.workspace.fresh_head(self.head, task, generator)
