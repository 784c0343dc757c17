"""iCaRL: rehearsal from a local memory of exemplars, distillation, optional nearest-mean classifier.

Exemplars never leave their client. It keeps their ids; the images are its own samples.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.data.samples import Samples
from pip_flower.method.exchange import ClientJob, ClientUpdate
from pip_flower.method.merging import Merge, Sum
from pip_flower.method.registry import register
from pip_flower.method.reply_checks import ArraySpec, RejectedError, check_counts
from pip_flower.method.round import Round
from pip_flower.method.workspace import Workspace
from pip_flower.methods.networks.method import NetworkMethod
from pip_flower.methods.networks.training import NetworkOptions, Step
from pip_flower.methods.rehearsal.distillation import sigmoid_distillation
from pip_flower.methods.rehearsal.holdings import rehearsal
from pip_flower.methods.rehearsal.memory import ExemplarMemory, MemoryOptions
from pip_flower.methods.rehearsal.teacher import Teacher
from pip_flower.models.network import load_arrays

MEANS = ("mean.sum", "mean.count")


@dataclass(frozen=True)
class ICaRLOptions(NetworkOptions):
    """How many exemplars a client keeps, and how classes are told apart."""

    memory: MemoryOptions
    classifier: Literal["linear", "nearest-mean"]


class ICaRL(NetworkMethod):
    """Beside the model, clients send sums of unit features of their exemplars (`mean.sum` [classes seen, D],
    `mean.count`), if the nearest-mean classifier is used."""

    options: ICaRLOptions

    def __init__(self, workspace: Workspace, options: ICaRLOptions) -> None:
        super().__init__(workspace, options)
        self.teacher = Teacher(self.training)
        self._means = MEANS if options.classifier == "nearest-mean" else ()

    def end_task(self, task: int, arrays: Arrays) -> NamedArrays:
        """The next task's teacher."""
        return self.teacher.end_task(task, arrays)

    def constant(self, task: int) -> tuple[str, ...]:
        """The teacher."""
        return self.teacher.names(task)

    def returned(self, task: int) -> tuple[str, ...]:
        """The model, and the sums behind the class means."""
        return (*self.training.names(task + 1), *self._means)

    def predicting(self, tasks: int) -> tuple[str, ...]:
        """The model, and the class means."""
        return (*self.training.names(tasks), *self._means)

    def merging(self, round_: Round) -> Mapping[str, Merge]:
        """The model by weighted mean; sums and counts of the exemplars of this round's clients."""
        sums: dict[str, Merge] = {
            "mean.sum": Sum(counts="mean.count", axis=0, running=False),
            "mean.count": Sum(running=False),
        }
        return {**super().merging(round_), **{name: sums[name] for name in self._means}}

    def keeps_memory(self) -> bool:
        """Ids of exemplars."""
        return True

    def expected(self, task: int, arrays: Arrays, samples: int) -> dict[str, ArraySpec]:
        """The sums grow with the classes seen."""
        known = {name: array for name, array in arrays.items() if name not in MEANS}
        if self._means:
            classes = len(self.workspace.tasks.seen(task + 1))
            sums = np.zeros((classes, self.training.head.width))
            known |= dict(zip(MEANS, (sums, np.zeros(classes)), strict=True))
        return super().expected(task, known, samples)

    def inspect(self, task: int, reply: Arrays, samples: int) -> None:
        """Sums of unit features of no more exemplars than fit the memory."""
        super().inspect(task, reply, samples)
        if not self._means:
            return
        sums, count = (reply[name] for name in MEANS)
        # Every class keeps one exemplar at least, however small the memory.
        most = self.options.memory.budget(self.config.validation.max_samples)
        check_counts("mean.count", count, max(most, len(count)))
        if np.any(np.linalg.norm(sums, axis=1) > count * (1 + 1e-4)):
            raise RejectedError("mean.sum is longer than a sum of unit features can be")

    def fit(self, job: ClientJob) -> ClientUpdate:
        """Train on own samples and exemplars of earlier tasks, then choose exemplars anew."""
        exemplars, learnt, old, samples = rehearsal(self.workspace, self.options.memory, job)
        self.teacher.load(job.task, job.arrays)
        arrays, metrics = self.training.fit(job, samples, len(old), lambda step: self.loss(step, job))
        memory = exemplars.updated(job.memory, job.samples, self.training.unit_features(job.samples), None)
        metrics |= {"kept_share": exemplars.share_of(memory, learnt)}
        if self._means:
            arrays |= self._mean_sums(job.task, memory, exemplars)
        return ClientUpdate(arrays, len(job.samples), metrics, memory)

    def loss(self, step: Step, job: ClientJob) -> Tensor:
        """Sigmoid cross-entropy; the targets of old classes are the teacher's outputs."""
        positions = self.workspace.tasks.positions(step.labels, job.task + 1)
        taught = self.teacher.logits(step.images, range(job.task)) if job.task > 0 else None
        return sigmoid_distillation(
            step.logits(range(job.task + 1)), torch.from_numpy(positions).to(step.images.device), taught
        )

    @torch.inference_mode()
    def scores(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:
        """Logits, or nearness to the class means."""
        if not self._means:
            return super().scores(arrays, samples, tasks)
        load_arrays(self.training.network, arrays)
        means = F.normalize(arrays["mean.sum"].float(), dim=1)
        near = -torch.cdist(F.normalize(self.training.features(samples), dim=1), means)
        return near.masked_fill(arrays["mean.count"] == 0, -torch.inf)

    def _mean_sums(self, task: int, memory: Arrays, exemplars: ExemplarMemory) -> NamedArrays:
        """Sums of unit features of the client's exemplars, and their counts, by class seen."""
        seen = self.workspace.tasks.seen(task + 1)
        train = self.workspace.data.train
        sums = np.zeros((len(seen), self.training.head.width))
        count = np.zeros(len(seen))
        for row, label in enumerate(seen):
            ids = exemplars.ids(memory, label)
            if len(ids):
                samples = train.take(np.flatnonzero(np.isin(train.ids, ids)))
                unit = F.normalize(self.training.features(samples), dim=1)
                sums[row] = unit.double().sum(dim=0).cpu().numpy()
                count[row] = len(samples)
        return {"mean.sum": sums, "mean.count": count}


register(
    "icarl",
    title="iCaRL, federated",
    options=ICaRLOptions,
    method=ICaRL,
    keeps="exemplar images",
    sends="class feature sums of exemplars, with the nearest-mean classifier",
)
