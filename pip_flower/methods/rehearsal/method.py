"""The common ground of methods that rehearse exemplars beside a teacher."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.data.samples import Samples
from pip_flower.method.exchange import ClientJob, ClientUpdate
from pip_flower.method.workspace import Workspace
from pip_flower.methods.networks.method import NetworkMethod
from pip_flower.methods.networks.training import Epoch, NetworkOptions
from pip_flower.methods.rehearsal.holdings import learnt_samples
from pip_flower.methods.rehearsal.memory import ExemplarMemory, MemoryOptions
from pip_flower.methods.rehearsal.teacher import Teacher


@dataclass(frozen=True)
class RehearsalOptions(NetworkOptions):
    """How many exemplars a client keeps."""

    memory: MemoryOptions


class Material(NamedTuple):
    """What a client trains on: samples of the task, and exemplars of earlier ones."""

    new: Samples
    old: Samples

    def joined(self) -> Samples:
        """New ones first."""
        return self.new.joined(self.old) if len(self.old) else self.new


class TaughtMethod(NetworkMethod):
    """Clients learn from the model of the task before, too."""

    options: NetworkOptions

    def __init__(self, workspace: Workspace, options: NetworkOptions) -> None:
        super().__init__(workspace, options)
        self.teacher = Teacher(self.training)

    def end_task(self, task: int, arrays: Arrays) -> NamedArrays:
        """The next task's teacher."""
        return self.teacher.end_task(task, arrays)

    def constant(self, task: int) -> tuple[str, ...]:
        """The teacher."""
        return self.teacher.names(task)


class RehearsalMethod(TaughtMethod):
    """Clients train on own samples and exemplars, which never leave them, beside the teacher."""

    options: RehearsalOptions

    def keeps_memory(self) -> bool:
        """Ids of exemplars."""
        return True

    def fit(self, job: ClientJob) -> ClientUpdate:
        """Train on own samples and exemplars of earlier tasks, then choose exemplars anew."""
        learnt = learnt_samples(self.workspace, job.partition, job.memory, job.samples)
        exemplars = ExemplarMemory(self.options.memory.budget(learnt))
        material = self.material(job, exemplars)
        self.teacher.load(job.task, job.arrays)
        arrays, metrics = self.training.fit(
            job,
            material.joined(),
            len(material.old),
            lambda step: self.loss(step, job),
            epoch=self.epoch(material),
            frozen=self.frozen(job.task),
        )
        memory = exemplars.updated(job.memory, job.samples, self.training.unit_features(job.samples), None)
        metrics |= {"kept_share": exemplars.share_of(memory, learnt)}
        arrays |= self.findings(job, arrays, memory, exemplars)
        return ClientUpdate(arrays, len(job.samples), metrics, memory)

    def material(self, job: ClientJob, exemplars: ExemplarMemory) -> Material:
        """All own samples of the task, all exemplars of other classes."""
        present = self.workspace.tasks.classes[job.task]
        train = self.workspace.data.train
        return Material(job.samples, exemplars.rehearsed(job.memory, train, excluding=present))

    def epoch(self, material: Material) -> Epoch | None:  # noqa: ARG002
        """Which samples make a batch; by default all come in random order."""
        return None

    def frozen(self, task: int) -> Collection[str]:  # noqa: ARG002
        """Arrays of the head that a task does not train."""
        return ()

    def findings(
        self,
        job: ClientJob,  # noqa: ARG002
        arrays: Arrays,  # noqa: ARG002
        memory: Arrays,  # noqa: ARG002
        exemplars: ExemplarMemory,  # noqa: ARG002
    ) -> NamedArrays:
        """What a client sends beside the trained model `arrays`, which is loaded, or in place of parts of it;
        `memory` is what it keeps now."""
        return {}
