"""DyTox: a transformer that grows by a token and a head with each task, and rehearses exemplars.

A. Douillard, A. Ramé, G. Couairon, M. Cord: DyTox: Transformers for Continual Learning with DYnamic TOken
eXpansion, CVPR 2022.

All tasks share the encoder and one block of task attention, which is run once for each task's token; a task's
classes see its own token only. Earlier tokens and heads are frozen, and no client sends them.

Simplified: plain blocks of self-attention in place of ConViT's gated ones; herding by the mean of an image's
patches; the balanced epochs are a further exchange with all clients at the end of a task; a constant learning
rate. Left open: mixup (DyTox+).
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.config.schema import Bounds
from pip_flower.config.sections import Config
from pip_flower.method.exchange import ClientJob, ClientUpdate
from pip_flower.method.workspace import Workspace
from pip_flower.methods.dytox.transformer import TransformerOptions, TransformerTraining
from pip_flower.methods.dytox.tuning import BalancedTuning, TuningOptions
from pip_flower.methods.networks.method import NetworkMethod
from pip_flower.methods.networks.model import Step
from pip_flower.methods.rehearsal.distillation import softened
from pip_flower.methods.rehearsal.holdings import rehearsal
from pip_flower.methods.rehearsal.memory import MemoryOptions
from pip_flower.methods.rehearsal.teacher import Teacher
from pip_flower.runtime.streams import torch_stream


@dataclass(frozen=True)
class DyToxOptions(TransformerOptions):
    """The memory, the weight of the divergence, and the balanced epochs."""

    memory: MemoryOptions
    divergence: Annotated[float, Bounds(0)]
    tuning: TuningOptions


class DyTox(NetworkMethod):
    """Clients send encoder, block, and the newest token and rows."""

    options: DyToxOptions
    training: TransformerTraining

    @classmethod
    def check(cls, config: Config) -> None:
        """A transformer that can be built."""
        super().check(config)
        config.method.options.check()

    def __init__(self, workspace: Workspace, options: DyToxOptions) -> None:
        super().__init__(workspace, options)
        self.teacher = Teacher(self.training)
        if options.tuning.epochs:
            self.conclusion = BalancedTuning(self.training, options.tuning, options.memory)

    def make_training(self) -> TransformerTraining:
        """A transformer."""
        return TransformerTraining(self.workspace, self.options)

    def start_task(self, task: int, arrays: Arrays) -> NamedArrays:
        """A token and rows for the task and, from the second one on, rows of the divergence."""
        added = super().start_task(task, arrays)
        if task == 0:
            return added
        generator = torch_stream(self.config.seed, "divergence", task)
        classes = len(self.workspace.tasks.classes[task])
        fresh = self.training.divergence.start_task(task, classes + 1, generator)
        return added | {name: value.numpy() for name, value in fresh.items()}

    def end_task(self, task: int, arrays: Arrays) -> NamedArrays:
        """The next task's teacher."""
        return self.teacher.end_task(task, arrays)

    def constant(self, task: int) -> tuple[str, ...]:
        """The teacher."""
        return self.teacher.names(task)

    def received(self, task: int) -> tuple[str, ...]:
        """The model, and the rows of the divergence."""
        return (*super().received(task), *(self.training.divergence.names(task) if task else ()))

    def returned(self, task: int) -> tuple[str, ...]:
        """All that was received but what stays as it is."""
        fixed = self.training.fixed(task)
        return tuple(name for name in self.received(task) if name not in fixed)

    def keeps_memory(self) -> bool:
        """Ids of exemplars."""
        return True

    def fit(self, job: ClientJob) -> ClientUpdate:
        """Train on own samples and exemplars of earlier tasks, then choose exemplars anew."""
        exemplars, learnt, old, samples = rehearsal(self.workspace, self.options.memory, job)
        self.teacher.load(job.task, job.arrays)
        arrays, metrics = self.training.fit(job, samples, len(old), partial(self.objective, task=job.task))
        unit = self.training.unit_features(job.samples)
        memory = exemplars.updated(job.memory, job.samples, unit, None)
        metrics |= {"kept_share": exemplars.share_of(memory, learnt)}
        return ClientUpdate(arrays, len(job.samples), metrics, memory)

    def objective(self, step: Step, task: int) -> Tensor:
        """(1 - a) sigmoid cross-entropy + a distillation + divergence, a the old classes' share of all."""
        head, tasks = self.training.head, self.workspace.tasks
        embeddings = head.embeddings(step.rows, step.features, range(task + 1))
        logits = head.classified(step.rows, embeddings, range(task + 1))
        positions = torch.from_numpy(tasks.positions(step.labels, task + 1)).to(logits.device)
        targets = F.one_hot(positions, logits.shape[1]).float()
        loss = F.binary_cross_entropy_with_logits(logits, targets)
        if task == 0:
            return loss
        old = len(tasks.seen(task))
        share = old / logits.shape[1]
        taught = self.teacher.logits(step.images, range(task))
        apart = self.training.divergence.logits(step.rows, _plain_norm(embeddings[-1]), [task])
        return (
            (1 - share) * loss
            + share * softened(logits[:, :old], taught, 1.0)
            + self.options.divergence * F.cross_entropy(apart, (positions - old + 1).clamp(min=0))
        )


def _plain_norm(embedding: Tensor) -> Tensor:
    return F.layer_norm(embedding, embedding.shape[1:])
