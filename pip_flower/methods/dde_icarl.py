"""DDE on iCaRL: new samples also learn for their neighbours in the old feature space; the direction that
training drifts in is taken out of predictions.

After X. Hu, K. Tang, C. Miao, X.-S. Hua and H. Zhang, "Distilling Causal Effect of Data in Class-Incremental
Learning", CVPR 2021. A new sample's probabilities are averaged with those of the new samples that were
nearest to it for the old model, which passes the effect of old data on; iCaRL's distillation of old outputs
stays. The moving average of features over a task's batches is the direction that favours new classes; each
logit loses its share along it. Federated: the server takes the mean of networks and of moving averages.
Simplified: neighbours' probabilities are those at the beginning of an epoch, and the share taken out is
fixed, not fitted on balanced data. Exemplars have no neighbours. The released code is for another base
method; that distillation is by sigmoids here is iCaRL's way.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.config.schema import Bounds
from pip_flower.data.batches import batches
from pip_flower.data.samples import Samples
from pip_flower.method.exchange import ClientJob
from pip_flower.method.registry import register
from pip_flower.methods.networks.training import Epoch, NetworkTraining, Rows, Step
from pip_flower.methods.rehearsal.memory import ExemplarMemory
from pip_flower.methods.rehearsal.method import Material, RehearsalMethod, RehearsalOptions
from pip_flower.models.heads import CosineHead
from pip_flower.models.network import load_arrays

MOMENTUM = "momentum"


@dataclass(frozen=True)
class DDEOptions(RehearsalOptions):
    """How many neighbours count, how long the moving average of features remembers, how much of its direction
    is taken out of logits, and where the learnt scale of the cosine head starts."""

    neighbours: Annotated[int, Bounds(1)]
    decay: Annotated[float, Bounds(0, 0.9999)]
    removed: Annotated[float, Bounds(0)]
    scale: Annotated[float, Bounds(0, exclusive_minimum=True)]


class DDE(RehearsalMethod):
    """Beside the model, `momentum` [D] travels: the moving average of the task's features.

    While a client trains: `moving` is its moving average, `new` its new samples, `near` their neighbours and
    `around` what these say in the present epoch.
    """

    options: DDEOptions
    moving: Tensor
    new: Samples
    near: Tensor | None
    around: Tensor | None

    def make_training(self) -> NetworkTraining:
        """With a cosine head."""
        return NetworkTraining(self.workspace, self.options, self._make_head)

    def start_task(self, task: int, arrays: Arrays) -> NamedArrays:
        """The model; nothing has moved yet."""
        momentum = np.zeros(self.training.head.width, dtype=np.float32)
        return super().start_task(task, arrays) | {MOMENTUM: momentum}

    def received(self, task: int) -> tuple[str, ...]:
        """The model and the moving average."""
        return (*super().received(task), MOMENTUM)

    def returned(self, task: int) -> tuple[str, ...]:
        """Both, trained."""
        return (*super().returned(task), MOMENTUM)

    def predicting(self, tasks: int) -> tuple[str, ...]:
        """The model and the moving average."""
        return (*super().predicting(tasks), MOMENTUM)

    def material(self, job: ClientJob, exemplars: ExemplarMemory) -> Material:
        """As ever; what this client's training needs beside it begins here."""
        material = super().material(job, exemplars)
        self.moving = torch.tensor(job.arrays[MOMENTUM], device=self.workspace.device)
        self.new, self.near, self.around = material.new, None, None
        return material

    def epoch(self, material: Material) -> Epoch | None:
        """All in random order; neighbours' probabilities are taken anew in each epoch."""
        samples = len(material.joined())

        def order(rng: np.random.Generator) -> Iterable[Rows]:
            self.around = None
            return self.training.shuffled(samples, rng)

        return order

    def loss(self, step: Step, job: ClientJob) -> Tensor:
        """-log of the averaged probability of the own class, and iCaRL's distillation."""
        keep = self.options.decay
        self.moving = keep * self.moving + step.features.detach().mean(dim=0)
        logits, columns = step.logits(range(job.task + 1)), self.columns(step, job.task)
        if job.task == 0:
            return F.cross_entropy(logits, columns)
        fresh = torch.from_numpy(~step.rehearsed).to(logits.device)
        around = self._around(step, job.task)[step.at[~step.rehearsed]]
        taught = self.teacher.logits(step.images, range(job.task))
        distilled = F.binary_cross_entropy_with_logits(logits[:, : taught.shape[1]], taught.sigmoid())
        return collided(logits, columns, fresh, around) + distilled

    def findings(
        self,
        job: ClientJob,  # noqa: ARG002
        arrays: Arrays,  # noqa: ARG002
        memory: Arrays,  # noqa: ARG002
        exemplars: ExemplarMemory,  # noqa: ARG002
    ) -> NamedArrays:
        """The moving average."""
        return {MOMENTUM: self.moving.cpu().numpy()}

    @torch.inference_mode()
    def scores(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:
        """Logits less their share along the moving average."""
        load_arrays(self.training.network, arrays)
        head, features = self.training.head, self.training.features(samples)
        logits = head.logits(arrays, features, range(tasks))
        along = head.logits(arrays, arrays[MOMENTUM][None], range(tasks))
        angle = F.cosine_similarity(features, arrays[MOMENTUM][None], dim=1)
        return logits - self.options.removed * angle[:, None] * along

    def _make_head(self, width: int) -> CosineHead:
        return CosineHead(width, scale=self.options.scale)

    @torch.no_grad()
    def _around(self, step: Step, task: int) -> Tensor:
        """For each new sample, the mean of its neighbours' probabilities [n, classes seen]."""
        if self.around is None:
            if self.near is None:
                self.near = nearest(self._features(self.teacher.network), self.options.neighbours)
            own = self._features(self.training.network)
            probabilities = step.head.logits(step.rows, own, range(task + 1)).softmax(dim=1)
            self.around = probabilities[self.near].mean(dim=1) if self.near.shape[1] else probabilities
        return self.around

    def _features(self, network: torch.nn.Module) -> Tensor:
        """Of the new samples' deterministic views [n, D]."""
        trains = network.training
        network.eval()
        parts = batches(np.arange(len(self.new)), self.config.evaluation.batch_size)
        found = torch.cat([network(self.training.views.test(self.new.images[rows])) for rows in parts])
        network.train(trains)
        return found


def nearest(features: Tensor, neighbours: int) -> Tensor:
    """The positions of each row's nearest others by angle [n, k], k no more than there are."""
    unit = F.normalize(features, dim=1)
    likeness = (unit @ unit.T).fill_diagonal_(-torch.inf)
    return likeness.topk(min(neighbours, len(unit) - 1), dim=1).indices


def collided(logits: Tensor, columns: Tensor, fresh: Tensor, around: Tensor) -> Tensor:
    """-log of the own class's probability; that of `fresh` samples is the mean of their own and `around`."""
    probability = logits.softmax(dim=1)
    both = probability.clone()
    both[fresh] = (probability[fresh] + around) / 2
    return -both.gather(1, columns[:, None]).clamp_min(1e-12).log().mean()


register(
    "dde-icarl",
    title="DDE on iCaRL, federated",
    options=DDEOptions,
    method=DDE,
    keeps="exemplar images",
    sends="a moving average of features over all of a client's images",
)
