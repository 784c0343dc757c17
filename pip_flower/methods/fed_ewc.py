"""EWC, federated: weights that mattered to earlier tasks are held back; no exemplars.

After J. Kirkpatrick and others, "Overcoming catastrophic forgetting in neural networks", PNAS 2017, with
one decaying penalty for all earlier tasks as in J. Schwarz and others, "Progress & Compress", ICML 2018.
When a task has ended, every client that is there and holds samples of it sends the diagonal of the
empirical Fisher information of the final global model, once; the server takes the mean by samples. Head
rows are not penalised: those of earlier tasks are not trained. The limit of 1e-4 and the weight of 1000 are
those of a published federated comparison. Gradients are taken one sample at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.config.schema import Bounds
from pip_flower.method.exchange import ClientJob, ClientUpdate, Exchange
from pip_flower.method.registry import register
from pip_flower.method.reply_checks import RejectedError
from pip_flower.method.workspace import Workspace
from pip_flower.methods.networks.method import NetworkMethod
from pip_flower.methods.networks.training import NetworkOptions, Step
from pip_flower.models.network import load_arrays


@dataclass(frozen=True)
class EWCOptions(NetworkOptions):
    """The weight of the penalty, how fast it is forgotten, and what a weight's information counts at most."""

    penalty: Annotated[float, Bounds(0)]
    decay: Annotated[float, Bounds(0, 1)]
    largest: Annotated[float, Bounds(0, exclusive_minimum=True)]


class FedEWC(NetworkMethod):
    """For each weight w of the network the server has `anchor.w` and `fisher.w`, constant during a task, and
    `information.w`, what clients found in the task that ends."""

    options: EWCOptions

    def __init__(self, workspace: Workspace, options: EWCOptions) -> None:
        super().__init__(workspace, options)
        self.weights = tuple(f"network.{name}" for name, _ in self.training.network.named_parameters())
        self.conclusion = Information(self)
        self._held: list[tuple[Tensor, Tensor]] = []

    def start_task(self, task: int, arrays: Arrays) -> NamedArrays:
        """The model; nothing is known of the task yet."""
        added = super().start_task(task, arrays)
        known = {**arrays, **added}
        return added | {f"information.{name}": np.zeros_like(known[name]) for name in self.weights}

    def end_task(self, task: int, arrays: Arrays) -> NamedArrays:  # noqa: ARG002
        """F <- gamma F + the information of the task; and the weights to stay near to."""
        ended: NamedArrays = {}
        for name in self.weights:
            before = arrays.get(f"fisher.{name}", np.zeros_like(arrays[name]))
            found = np.minimum(arrays[f"information.{name}"], self.options.largest)
            ended[f"fisher.{name}"] = (self.options.decay * before + found).astype(np.float32)
            ended[f"anchor.{name}"] = arrays[name].copy()
        return ended

    def constant(self, task: int) -> tuple[str, ...]:
        """What holds weights back, from the second task on."""
        kinds = ("anchor", "fisher") if task else ()
        return tuple(f"{kind}.{name}" for kind in kinds for name in self.weights)

    def fit(self, job: ClientJob) -> ClientUpdate:
        """SGD on own samples of the task."""
        device, names = self.workspace.device, self.constant(job.task)
        found = [torch.as_tensor(job.arrays[name]).to(device) for name in names]
        half = len(found) // 2
        self._held = list(zip(found[:half], found[half:], strict=True))
        return super().fit(job)

    def loss(self, step: Step, job: ClientJob) -> Tensor:
        """Cross-entropy over the classes of the task + l / 2 sum F (w - w*)^2."""
        loss = super().loss(step, job)
        if job.task == 0 or not self.options.penalty:
            return loss
        # The network's parameters come first.
        return loss + quadratic_penalty(step.parameters[: len(self._held)], self._held, self.options.penalty)


def quadratic_penalty(
    weights: Sequence[Tensor], held: Sequence[tuple[Tensor, Tensor]], strength: float
) -> Tensor:
    """l / 2 sum F (w - w*)^2 of weights and their (w*, F)."""
    terms = [
        (fisher * (weight - anchor).square()).sum()
        for weight, (anchor, fisher) in zip(weights, held, strict=True)
    ]
    return strength / 2 * torch.stack(terms).sum()


class Information(Exchange):
    """At the end of a task: the mean squared gradient of log p of own samples, with the final model."""

    def __init__(self, method: FedEWC) -> None:
        super().__init__(method.workspace)
        self.method = method

    def received(self, task: int) -> tuple[str, ...]:
        """The model."""
        return self.method.training.names(task + 1)

    def returned(self, task: int) -> tuple[str, ...]:  # noqa: ARG002
        """The information of each weight."""
        return tuple(f"information.{name}" for name in self.method.weights)

    def inspect(self, task: int, reply: Arrays, samples: int) -> None:  # noqa: ARG002
        """Squares."""
        for name, value in reply.items():
            if np.any(value < 0):
                raise RejectedError(f"{name} is negative")

    def fit(self, job: ClientJob) -> ClientUpdate:
        """One sample at a time: the square of a mean is not the mean of squares."""
        training, samples = self.method.training, job.samples
        load_arrays(training.network, job.arrays)
        training.network.eval()
        device = self.workspace.device
        rows = {
            name: torch.as_tensor(job.arrays[name], device=device) for name in training.head.names(job.task)
        }
        targets = torch.from_numpy(self.workspace.tasks.targets(samples.labels, job.task)).to(device)
        parameters = list(training.network.parameters())
        totals = [torch.zeros_like(parameter) for parameter in parameters]
        for at in range(len(samples)):
            features = training.network(training.views.test(samples.images[at : at + 1]))
            logits = training.head.logits(rows, features, [job.task])
            loss = F.cross_entropy(logits, targets[at : at + 1])
            for total, gradient in zip(totals, torch.autograd.grad(loss, parameters), strict=True):
                total += gradient.square() / len(samples)
        names = self.returned(job.task)
        found: NamedArrays = {name: value.cpu().numpy() for name, value in zip(names, totals, strict=True)}
        return ClientUpdate(found, len(samples), {})


register(
    "fed-ewc",
    title="EWC, federated",
    options=EWCOptions,
    method=FedEWC,
    keeps="model of the last task",
    sends="mean squared gradients of each weight, at the end of a task",
)
