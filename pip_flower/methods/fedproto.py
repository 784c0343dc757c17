"""FedProto: clients exchange class means of features, which guide their training and are the classifier.

After Y. Tan, G. Long, L. Liu, T. Zhou, Q. Lu, J. Jiang and C. Zhang, "FedProto: Federated Prototype Learning
across Heterogeneous Clients", AAAI 2022. A client adds weight * MSE(z, C_y) to the cross-entropy over the
task's classes; C_y is the mean of all clients' class means, by samples as in the paper. Where nobody has
reported the class yet, there is no such term. The nearest C is the prediction.

As in the paper, models stay on their clients (`models: local`), which then test them; a client that never
trained predicts with the network that everybody starts with. `models: averaged` also averages the networks,
in order to have one to score. In both, prototypes of finished tasks stay as they are, although the networks
move on. Left open: the paper's clients with different architectures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from pip_flower.arrays import Arrays, NamedArrays, pick
from pip_flower.config.schema import Bounds
from pip_flower.data.samples import Samples
from pip_flower.method.exchange import ClientJob, ClientUpdate, Contribution
from pip_flower.method.merging import Mean, Merge, Sum
from pip_flower.method.registry import register
from pip_flower.method.reply_checks import ArraySpec, check_class_sums
from pip_flower.method.round import Round
from pip_flower.methods.networks.method import NetworkMethod
from pip_flower.methods.networks.training import NetworkOptions, Step
from pip_flower.models.network import load_arrays


@dataclass(frozen=True)
class FedProtoOptions(NetworkOptions):
    """The weight of the distance to the prototypes, and where networks live."""

    weight: Annotated[float, Bounds(0)]
    models: Literal["local", "averaged"]


class FedProto(NetworkMethod):
    """`proto.sum.t` [classes, D] and `proto.count.t` [classes] of the features of those who last reported the
    class."""

    options: FedProtoOptions

    def start_task(self, task: int, arrays: Arrays) -> NamedArrays:
        """No prototypes yet; a model, if there is a common one."""
        classes = len(self.workspace.tasks.classes[task])
        sums, counts = _names(task)
        empty = {sums: np.zeros((classes, self.training.head.width)), counts: np.zeros(classes)}
        return empty if self._local else super().start_task(task, arrays) | empty

    def received(self, task: int) -> tuple[str, ...]:
        """The task's prototypes, and the common model."""
        return self._model(task + 1) + _names(task)

    def returned(self, task: int) -> tuple[str, ...]:
        """The client's own, and its model if that is averaged."""
        return self._model(task + 1) + _names(task)

    def predicting(self, tasks: int) -> tuple[str, ...]:
        """All prototypes, and the common model."""
        return self._model(tasks) + tuple(name for task in range(tasks) for name in _names(task))

    def merging(self, round_: Round) -> Mapping[str, Merge]:
        """The mean of a class's features over this round's clients."""
        sums, counts = _names(round_.task)
        model: dict[str, Merge] = dict.fromkeys(self._model(round_.task + 1), Mean())
        return {**model, sums: Sum(counts, axis=0, running=False), counts: Sum(running=False)}

    def merge(self, round_: Round, contributions: Sequence[Contribution], arrays: Arrays) -> NamedArrays:
        """A class that nobody reported keeps its prototype."""
        found = super().merge(round_, contributions, arrays)
        sums, counts = _names(round_.task)
        unreported = found[counts] == 0
        for name in (sums, counts):
            found[name][unreported] = arrays[name][unreported]
        return found

    def expected(self, task: int, arrays: Arrays, samples: int) -> dict[str, ArraySpec]:
        """Sums may be as long as they have terms."""
        specs = super().expected(task, arrays, samples)
        return specs | {name: replace(specs[name], scale=float(samples)) for name in _names(task)}

    def inspect(self, task: int, reply: Arrays, samples: int) -> None:
        """A network that can be, and sums that rest on the client's samples."""
        super().inspect(task, reply, samples)
        sums, counts = ((name, reply[name]) for name in _names(task))
        check_class_sums(sums, counts, samples)

    def fit(self, job: ClientJob) -> ClientUpdate:
        """SGD on the client's samples of the task, then their class means."""
        start = {**self.own_arrays(job.task + 1, job.memory), **job.arrays}
        trained = super().fit(replace(job, arrays=start))
        arrays = pick(trained.arrays, self._model(job.task + 1)) | self._prototypes(job)
        return ClientUpdate(arrays, trained.samples, trained.metrics, trained.arrays if self._local else {})

    def loss(self, step: Step, job: ClientJob) -> Tensor:
        """Cross-entropy and the distance to the prototypes."""
        loss = super().loss(step, job)
        sums, counts = (torch.as_tensor(job.arrays[name], device=loss.device) for name in _names(job.task))
        targets = torch.from_numpy(self.workspace.tasks.targets(step.labels, job.task)).to(loss.device)
        return loss + self.options.weight * prototype_distance(step.features, targets, sums, counts)

    def keeps_memory(self) -> bool:
        """A model of its own."""
        return self._local

    def predicts_on_clients(self) -> bool:
        """Nobody else has their models."""
        return self._local

    def own_arrays(self, tasks: int, memory: Arrays) -> NamedArrays:
        """The client's model; what it never trained is as everybody starts with."""
        if not self._local:
            return {}
        fresh = {
            name: value for task in range(tasks) for name, value in self.training.start_task(task).items()
        }
        return {name: np.asarray(memory.get(name, value)) for name, value in fresh.items()}

    @torch.inference_mode()
    def scores(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:
        """Nearness to each prototype; a class without one cannot win."""
        load_arrays(self.training.network, arrays)
        sums, counts = (torch.cat([arrays[_names(task)[kind]] for task in range(tasks)]) for kind in (0, 1))
        means = sums / counts.clamp(min=1)[:, None]
        near = -torch.cdist(self.training.features(samples).to(means.dtype), means)
        return near.masked_fill(counts == 0, -torch.inf)

    def _prototypes(self, job: ClientJob) -> NamedArrays:
        """Sums and counts of the features that the trained network has of the client's samples."""
        features = self.training.features(job.samples).double().cpu().numpy()
        targets = self.workspace.tasks.targets(job.samples.labels, job.task)
        sums, counts = _names(job.task)
        found = np.zeros((len(self.workspace.tasks.classes[job.task]), features.shape[1]))
        np.add.at(found, targets, features)
        return {sums: found, counts: np.bincount(targets, minlength=len(found)).astype(np.float64)}

    def _model(self, tasks: int) -> tuple[str, ...]:
        """What the server has of the model."""
        return () if self._local else self.training.names(tasks)

    @property
    def _local(self) -> bool:
        return self.options.models == "local"


def prototype_distance(features: Tensor, targets: Tensor, sums: Tensor, counts: Tensor) -> Tensor:
    """MSE of features [B, D] and the prototypes of their classes; samples without one are at no distance."""
    means = (sums / counts.clamp(min=1)[:, None]).to(features.dtype)
    known = (counts > 0)[targets]
    apart = torch.where(known[:, None], features - means[targets], torch.zeros_like(features))
    return apart.square().mean()


def _names(task: int) -> tuple[str, str]:
    return f"proto.sum.{task}", f"proto.count.{task}"


register(
    "fedproto",
    title="FedProto: prototypes as classifier",
    options=FedProtoOptions,
    method=FedProto,
    keeps="its own network, where models are local",
    sends="class feature sums",
)
