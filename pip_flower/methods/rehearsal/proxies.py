"""Rehearsal with PODNet's classifier: several proxies for each class, those of old classes frozen.

In the first round of a task clients imprint the proxies of the classes that they hold: the mean of the
class's unit features, moved a little apart in the directions that the server drew, so that the proxies of
all clients correspond. The server then takes the mean by samples of the class. In the last round clients
tune the new proxies and the scale on their memory, with the network fixed."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pip_flower.aggregation import is_plain
from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.config.schema import Bounds
from pip_flower.data.batches import batches
from pip_flower.method.descent import descend
from pip_flower.method.exchange import ClientJob, ClientUpdate, Contribution
from pip_flower.method.merging import Merge, Sum
from pip_flower.method.reply_checks import check_counts
from pip_flower.method.round import Round
from pip_flower.methods.networks.training import NetworkTraining, Step
from pip_flower.methods.rehearsal.memory import ExemplarMemory
from pip_flower.methods.rehearsal.method import RehearsalMethod, RehearsalOptions
from pip_flower.models.heads import ProxyHead
from pip_flower.models.network import load_arrays

# Samples of each class of the task that the clients of a round have.
COUNT = "proxies.count"
# How far the proxies of a class are moved from its mean.
_APART = 0.01


@dataclass(frozen=True)
class ProxyOptions(RehearsalOptions):
    """The proxies of a class, the margin between classes, and the tuning at the end of a task."""

    proxies: Annotated[int, Bounds(1)]
    margin: Annotated[float, Bounds(0, 2)]
    tuning_epochs: Annotated[int, Bounds(0)]
    tuning_rate: Annotated[float, Bounds(0, 1, exclusive_minimum=True)]


class ProxyRehearsal(RehearsalMethod):
    """A method adds what keeps the network near its teacher (`kept`)."""

    options: ProxyOptions

    def make_training(self) -> NetworkTraining:
        """Signed features, proxies, and the maps of the stages."""
        return NetworkTraining(self.workspace, self.options, self._make_head, signed=True, maps=True)

    def _make_head(self, width: int) -> ProxyHead:
        self.head = ProxyHead(width, proxies=self.options.proxies)
        return self.head

    def start_task(self, task: int, arrays: Arrays) -> NamedArrays:
        """The model, and nobody's samples yet."""
        return super().start_task(task, arrays) | {COUNT: np.zeros(self.class_counts(task)[1])}

    def frozen(self, task: int) -> tuple[str, ...]:
        """The proxies of earlier tasks."""
        return tuple(self.head.proxies_name(earlier) for earlier in range(task))

    def returned(self, task: int) -> tuple[str, ...]:
        """The network, the new proxies, the scale; and how many samples of each class there are."""
        frozen = self.frozen(task)
        return (*(name for name in super().returned(task) if name not in frozen), COUNT)

    def merging(self, round_: Round) -> Mapping[str, Merge]:
        """The model by weighted mean."""
        return {**super().merging(round_), COUNT: Sum(running=False)}

    def merge(self, round_: Round, contributions: Sequence[Contribution], arrays: Arrays) -> NamedArrays:
        """In the first round of a task a class's proxies are the mean of those that were imprinted."""
        changed = super().merge(round_, contributions, arrays)
        if round_.task and round_.starts_task and is_plain(self.config.aggregation):
            name = self.head.proxies_name(round_.task)
            updates = [contribution.update.arrays for contribution in contributions]
            changed[name] = mean_of_holders(
                changed[name], [update[name] for update in updates], [update[COUNT] for update in updates]
            )
        return changed

    def inspect(self, task: int, reply: Arrays, samples: int) -> None:
        """No more samples of its classes than the client claims."""
        super().inspect(task, reply, samples)
        check_counts(COUNT, reply[COUNT], samples)

    def fit(self, job: ClientJob) -> ClientUpdate:
        """As every rehearsal; later tasks begin with imprinted proxies."""
        imprints = job.task > 0 and job.starts_task
        return super().fit(self._imprinted(job) if imprints else job)

    def loss(self, step: Step, job: ClientJob) -> Tensor:
        """The margin loss over all classes seen, and what `kept` asks, times sqrt((n + m) / m)."""
        similarities = self.head.similarities(step.rows, step.features, range(job.task + 1))
        scale = step.rows[self.head.scale_name]
        loss = margin_loss(similarities, self.columns(step, job.task), scale, self.options.margin)
        if job.task == 0:
            return loss
        old, new = self.class_counts(job.task)
        return loss + math.sqrt((old + new) / new) * self.kept(step, job)

    @abstractmethod
    def kept(self, step: Step, job: ClientJob) -> Tensor:
        """How far the network has moved from its teacher."""

    def findings(
        self, job: ClientJob, arrays: Arrays, memory: Arrays, exemplars: ExemplarMemory
    ) -> NamedArrays:
        """The counts and, at the end of later tasks, the tuned classifier."""
        classes = self.workspace.tasks.classes[job.task]
        counts = np.array([(job.samples.labels == label).sum() for label in classes], dtype=np.float64)
        tuned = self._tuned(job, arrays, memory, exemplars) if job.task and job.ends_task else {}
        return {COUNT: counts, **tuned}

    def _imprinted(self, job: ClientJob) -> ClientJob:
        """The job with proxies at the means of the classes that the client holds."""
        load_arrays(self.training.network, job.arrays)
        name = self.head.proxies_name(job.task)
        features = self.training.features(job.samples).cpu()
        proxies = torch.tensor(job.arrays[name])
        for row, label in enumerate(self.workspace.tasks.classes[job.task]):
            own = torch.from_numpy(job.samples.labels == label)
            if own.any():
                proxies[row] = imprint(features[own], proxies[row])
        return replace(job, arrays={**job.arrays, name: proxies.numpy()})

    def _tuned(
        self, job: ClientJob, arrays: Arrays, memory: Arrays, exemplars: ExemplarMemory
    ) -> NamedArrays:
        """The new proxies and the scale after the last epochs, on features of the memory."""
        samples = exemplars.samples(memory, self.workspace.data.train)
        device = self.workspace.device
        features = self.training.features(samples).clone()
        columns = torch.from_numpy(self.workspace.tasks.positions(samples.labels, job.task + 1)).to(device)
        names = self.head.names_of(range(job.task + 1))
        rows = {name: torch.tensor(arrays[name], device=device) for name in names}
        trained = {name: rows[name] for name in (self.head.proxies_name(job.task), self.head.scale_name)}
        parameters = [value.requires_grad_() for value in trained.values()]
        optimizer = torch.optim.SGD(parameters, self.options.tuning_rate, self.options.momentum)
        rng = self.workspace.stream("tuning", job.round, job.partition)

        def loss(at: NDArray[np.int64]) -> Tensor:
            similarities = self.head.similarities(rows, features[at], range(job.task + 1))
            return margin_loss(similarities, columns[at], rows[self.head.scale_name], self.options.margin)

        training = self.config.training
        for _ in range(self.options.tuning_epochs):
            order = batches(rng.permutation(len(samples)), training.batch_size)
            descend(order, loss, parameters, optimizer, training.clip_norm)
        return {name: value.detach().cpu().numpy() for name, value in trained.items()}


def margin_loss(similarities: Tensor, columns: Tensor, scale: Tensor, margin: float) -> Tensor:
    """PODNet's loss of similarities g [B, C]: the hinge of -log[exp(s (g_y - margin)) / sum of exp(s g_c)
    over the other classes], mean over the batch; nothing if there is no other class."""
    own = columns[:, None]
    logits = scale * similarities
    # Finite, so that a single class has a gradient of zero.
    others = logits.scatter(1, own, -1e4).logsumexp(dim=1)
    wanted = logits.gather(1, own)[:, 0] - scale * margin
    return F.relu(others - wanted).mean()


def imprint(features: Tensor, directions: Tensor) -> Tensor:
    """Proxies [K, D] of a class: the unit mean of its unit features [n, D], each moved a little in its
    direction [K, D]."""
    mean = F.normalize(F.normalize(features, dim=1).mean(dim=0), dim=0)
    return mean + _APART * F.normalize(directions, dim=1)


def mean_of_holders(
    otherwise: NDArray[np.float32],
    proxies: Sequence[NDArray[np.float32]],
    counts: Sequence[NDArray[np.float64]],
) -> NDArray[np.float32]:
    """Proxies [classes, K, D] of several clients, each class by who has how many of its samples; a class that
    nobody has is as `otherwise`."""
    weights = np.stack(counts)
    total = weights.sum(axis=0)
    mean = np.einsum("lc,lckd->ckd", weights / np.maximum(total, 1), np.stack(proxies))
    found: NDArray[np.float32] = np.where(total[:, None, None] > 0, mean, otherwise).astype(np.float32)
    return found
