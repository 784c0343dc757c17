"""GLFC: gradients compensated by class, distillation of relations between classes, a proxy server.

J. Dong, L. Wang, Z. Fang, G. Sun, S. Xu, X. Wang, Q. Zhu: Federated Class-Incremental Learning, CVPR 2022.

A client weighs each sample by how far it is from being learnt, relative to the other new or the other old
ones; it distils from the best model of the task before. Which one that is, a proxy server finds out: clients
that notice a new task send it gradients of disturbed prototypes, from which it rebuilds images.

Simplified: all clients distil from the best model of the task before, which is what both models of the
released pair come to; models are compared on one and the same monitor set, which grows within a task and
begins anew with the next; the learning rate is constant. Left open: noise on the gradients, which the paper
mentions and the released code has not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.config.sections import Config
from pip_flower.data.samples import Samples
from pip_flower.method.exchange import ClientJob, ClientUpdate, Contribution
from pip_flower.method.merging import Kept, Merge
from pip_flower.method.reply_checks import ArraySpec, RejectedError
from pip_flower.method.round import Round
from pip_flower.method.workspace import Workspace
from pip_flower.methods.glfc.changes import Change, ChangeDetector, ChangeOptions
from pip_flower.methods.glfc.compensation import balanced, one_hot, own_gradients, weighted_sigmoid_loss
from pip_flower.methods.glfc.encoder import GradientEncoder
from pip_flower.methods.glfc.prototypes import PrototypeGradients
from pip_flower.methods.glfc.proxy import ProxyOptions, ProxyServer
from pip_flower.methods.networks.method import NetworkMethod
from pip_flower.methods.networks.training import NetworkOptions, Step
from pip_flower.methods.rehearsal.distillation import sigmoid_distillation
from pip_flower.methods.rehearsal.holdings import learnt_samples
from pip_flower.methods.rehearsal.memory import ExemplarMemory, MemoryOptions, learnt_classes
from pip_flower.methods.rehearsal.teacher import Teacher
from pip_flower.models.network import load_arrays
from pip_flower.runtime.streams import torch_stream

GRADIENTS = "prototypes.gradient"


@dataclass(frozen=True)
class GLFCOptions(NetworkOptions):
    """The memory, what tells a new task, and the proxy server."""

    memory: MemoryOptions
    change: ChangeOptions
    proxy: ProxyOptions


class GLFC(NetworkMethod):
    """Beside the model, a client that notices a new task sends `prototypes.gradient` [its classes, P]."""

    options: GLFCOptions

    @classmethod
    def check(cls, config: Config) -> None:
        """A change of task that can be noticed, and images that can be rebuilt."""
        super().check(config)
        config.method.options.change.check(config)
        config.method.options.proxy.check()

    def __init__(self, workspace: Workspace, options: GLFCOptions) -> None:
        super().__init__(workspace, options)
        classes = len(workspace.tasks.seen(len(workspace.tasks)))
        generator = torch_stream(workspace.config.seed, "encoder")
        self.encoder = GradientEncoder(options.image_size, classes, generator, workspace.device)
        self.teacher = Teacher(self.training)
        self.changes = ChangeDetector(self.training, options.change)
        self.prototypes = PrototypeGradients(self.training, self.encoder)
        self.proxy = self.make_proxy()

    def make_proxy(self) -> ProxyServer:
        """Who picks the teacher."""
        return ProxyServer(self.training, self.encoder, self.options.proxy)

    def start_task(self, task: int, arrays: Arrays) -> NamedArrays:
        """The model's arrays, and an empty monitor set."""
        return super().start_task(task, arrays) | self.proxy.start_task()

    def end_task(self, task: int, arrays: Arrays) -> NamedArrays:
        """The next task's teacher: the best model of this one."""
        return self.teacher.end_task(task, self.proxy.best(task, arrays))

    def constant(self, task: int) -> tuple[str, ...]:
        """The teacher."""
        return self.teacher.names(task)

    def returned(self, task: int) -> tuple[str, ...]:
        """The model, and gradients of prototypes."""
        return (*super().returned(task), GRADIENTS)

    def merging(self, round_: Round) -> Mapping[str, Merge]:
        """The model by mean; the gradients are the proxy server's."""
        return {**super().merging(round_), GRADIENTS: Kept()}

    def weight(self, contribution: Contribution) -> float:  # noqa: ARG002
        """Every client alike."""
        return 1.0

    def merge(self, round_: Round, contributions: Sequence[Contribution], arrays: Arrays) -> NamedArrays:
        """The mean, which the proxy server then judges."""
        changed = super().merge(round_, contributions, arrays)
        sent = [(c.partition, c.update.arrays[GRADIENTS]) for c in contributions]
        return changed | self.proxy.watch(round_, sent, {**arrays, **changed})

    def keeps_memory(self) -> bool:
        """Ids of exemplars, and what tells a new task."""
        return True

    def expected(self, task: int, arrays: Arrays, samples: int) -> dict[str, ArraySpec]:
        """As many gradients as a client likes to send, each as long as the encoder has weights."""
        any_number = np.zeros((0, self.encoder.width), dtype=np.float32)
        found = super().expected(task, {**arrays, GRADIENTS: any_number}, samples)
        return found | {GRADIENTS: ArraySpec((None, self.encoder.width), any_number.dtype)}

    def inspect(self, task: int, reply: Arrays, samples: int) -> None:
        """One gradient for a class of the task at most."""
        super().inspect(task, reply, samples)
        rows = reply[GRADIENTS]
        tasks = self.workspace.tasks
        if len(rows) > len(tasks.classes[task]):
            raise RejectedError(f"{GRADIENTS} has more rows than the task has classes")
        told = [self.encoder.label_of(torch.tensor(row)) for row in rows]
        wanted = tasks.positions(np.array(tasks.classes[task]), task + 1).tolist()
        if len(set(told)) < len(told) or not set(told) <= set(wanted):
            raise RejectedError(f"{GRADIENTS} is not of different classes of the task")

    def fit(self, job: ClientJob) -> ClientUpdate:
        """Notice a new task, train on own samples and exemplars, and show prototypes if the task is new."""
        load_arrays(self.training.network, job.arrays)
        change = self.changes.look(job)
        entering = self._entering(job, change)
        learnt = learnt_samples(self.workspace, job.partition, job.memory, entering)
        exemplars = ExemplarMemory(self.options.memory.budget(learnt))
        memory = exemplars.updated(job.memory, entering, self.training.unit_features(entering), None)
        present = self.workspace.tasks.classes[job.task]
        old = exemplars.rehearsed(memory, self.workspace.data.train, excluding=present)
        samples = job.samples.joined(old) if len(old) else job.samples
        self.teacher.load(job.task, job.arrays)
        loss = partial(self.objective, task=job.task, rehearses=len(old) > 0)
        arrays, metrics = self.training.fit(job, samples, len(old), loss)
        shown = job.samples if change.signal else job.samples.take(np.zeros(0, dtype=np.int64))
        arrays[GRADIENTS] = self.prototypes.of(shown, job.task, arrays, self.options.proxy.disturbance)
        metrics |= {"kept_share": exemplars.share_of(memory, learnt), "signal": float(change.signal)}
        return ClientUpdate(arrays, len(job.samples), metrics, {**memory, **change.kept(job.task)})

    def objective(self, step: Step, task: int, rehearses: bool) -> Tensor:
        """Compensated sigmoid cross-entropy and, once there is a teacher, distillation; every sample counts
        alike as long as the client has none to rehearse."""
        logits = step.logits(range(task + 1))
        positions = torch.from_numpy(self.workspace.tasks.positions(step.labels, task + 1)).to(logits.device)
        weights = self.weights(logits, positions, task) if rehearses else torch.ones_like(logits[:, 0])
        compensated = weighted_sigmoid_loss(logits, one_hot(positions, logits.shape[1]), weights)
        if task == 0:
            return compensated
        taught = self.teacher.logits(step.images, range(task))
        return self.distilled(compensated, logits, positions, taught, weights)

    def weights(self, logits: Tensor, positions: Tensor, task: int) -> Tensor:
        """By how far a sample is from being learnt, among the old and among the new ones."""
        old = positions < len(self.workspace.tasks.seen(task))
        return balanced(own_gradients(logits, positions), old)

    def distilled(
        self,
        compensated: Tensor,
        logits: Tensor,
        positions: Tensor,
        taught: Tensor,
        weights: Tensor,  # noqa: ARG002
    ) -> Tensor:
        """Half of each."""
        return 0.5 * compensated + 0.5 * sigmoid_distillation(logits, positions, taught)

    def _entering(self, job: ClientJob, change: Change) -> Samples:
        """Own samples of the classes that enter the memory: on a signal, those of the tasks that the client
        has trained before and does not remember yet."""
        tasks = [task for task in change.trained if change.signal and task != job.task]
        train, known = self.workspace.data.train, learnt_classes(job.memory)
        found = train.take(np.zeros(0, dtype=np.int64))
        for task in tasks:
            own = self.workspace.client_samples(task, job.partition, "train")
            found = found.joined(own.take(np.flatnonzero(~np.isin(own.labels, known))))
        return found
