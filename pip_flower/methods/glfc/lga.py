"""LGA: GLFC whose weights balance every task by itself, and whose proxy server tries heads on noisy features.

J. Dong, H. Li, Y. Cong, G. Sun, Y. Zhang, L. Van Gool: No One Left Behind: Real-World Federated
Class-Incremental Learning, IEEE Transactions on Pattern Analysis and Machine Intelligence, 2024.

Simplified: tasks are balanced each by itself, as the paper reads, where the released code accumulates them;
how far features of a class spread is told by the clients, where the released server looks at training
images; noise beyond two standard deviations is drawn again, and the best model is judged anew in every task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.config.schema import Bounds
from pip_flower.method.exchange import ClientJob, ClientUpdate
from pip_flower.method.merging import Merge, Sum
from pip_flower.method.reply_checks import ArraySpec, RejectedError
from pip_flower.method.round import Round
from pip_flower.methods.glfc.compensation import balanced, one_hot, own_gradients, weighted_sigmoid_loss
from pip_flower.methods.glfc.glfc import GLFC, GLFCOptions
from pip_flower.methods.glfc.proxy import Gradients, MonitorSet, ProxyOptions, ProxyServer
from pip_flower.methods.rehearsal.distillation import sigmoid_targets
from pip_flower.runtime.streams import torch_stream

SPREAD = ("spread.sum", "spread.count")
ROUNDS = "proxy.rounds"
_LEAST, _MOST = 0.5, 5.0
# Noise beyond so many standard deviations is drawn again.
_FARTHEST = 2.0


@dataclass(frozen=True)
class NoisyProxyOptions(ProxyOptions):
    """Noisy copies of each feature that heads are tried on, and rounds at the start of a task whose models
    are not judged yet."""

    copies: Annotated[int, Bounds(1)]
    warm_up: Annotated[int, Bounds(0)]


@dataclass(frozen=True)
class LGAOptions(GLFCOptions):
    """As GLFC's, with another proxy server."""

    proxy: NoisyProxyOptions


class NoisyProxy(ProxyServer):
    """Counts the rounds of a task (`proxy.rounds`) and knows how far features of a class spread."""

    options: NoisyProxyOptions

    def start_task(self) -> NamedArrays:
        """No round yet."""
        return super().start_task() | {ROUNDS: np.zeros(1, dtype=np.int64)}

    def watch(self, round_: Round, gradients: Sequence[tuple[int, Gradients]], arrays: Arrays) -> NamedArrays:
        """One round more."""
        return super().watch(round_, gradients, arrays) | {ROUNDS: arrays[ROUNDS] + 1}

    def at_least_as_good(
        self, now: Arrays, best: Arrays, monitor: MonitorSet, round_: Round, arrays: Arrays
    ) -> bool:
        """Early models are not judged, and give way to the first one that is."""
        early = int(arrays[ROUNDS][0]) <= self.options.warm_up
        return early or super().at_least_as_good(now, best, monitor, round_, arrays)

    def judged(
        self, features: Tensor, labels: Tensor, round_: Round, arrays: Arrays
    ) -> tuple[Tensor, Tensor]:
        """Noisy copies, the same noise for every model that is compared."""
        copies = self.options.copies
        shape = (copies * len(features), features.shape[1])
        generator = torch_stream(self.training.workspace.config.seed, "feature-noise", round_.number)
        noise = nn.init.trunc_normal_(torch.empty(shape), a=-_FARTHEST, b=_FARTHEST, generator=generator)
        noisy = features.repeat(copies, 1) + radius(arrays) * noise.to(features.device)
        return noisy, labels.repeat(copies)


class LGA(GLFC):
    """In the first task clients also send `spread.sum` and `spread.count`: the variances of the features of
    their classes, added up, and of how many classes."""

    options: LGAOptions

    def make_proxy(self) -> ProxyServer:
        """One that tries heads on noisy features."""
        return NoisyProxy(self.training, self.encoder, self.options.proxy)

    def returned(self, task: int) -> tuple[str, ...]:
        """As GLFC's, and in the first task the spread."""
        return (*super().returned(task), *(SPREAD if task == 0 else ()))

    def merging(self, round_: Round) -> Mapping[str, Merge]:
        """The spread of this round's clients."""
        total, count = SPREAD
        sums: dict[str, Merge] = {
            total: Sum(counts=count, axis=0, running=False),
            count: Sum(running=False),
        }
        return {**super().merging(round_), **(sums if round_.task == 0 else {})}

    def expected(self, task: int, arrays: Arrays, samples: int) -> dict[str, ArraySpec]:
        """Two numbers more."""
        return super().expected(task, {**arrays, **dict.fromkeys(SPREAD, np.zeros(1))}, samples)

    def inspect(self, task: int, reply: Arrays, samples: int) -> None:
        """Variances of no more classes than the task has."""
        super().inspect(task, reply, samples)
        if task > 0:
            return
        total, count = (float(reply[name][0]) for name in SPREAD)
        if not 0 <= count <= len(self.workspace.tasks.classes[task]) or count != round(count):
            raise RejectedError("spread.count is not a number of classes of the task")
        if total < 0 or (total and not count):
            raise RejectedError("spread.sum is not a sum of variances")

    def fit(self, job: ClientJob) -> ClientUpdate:
        """As GLFC; then measure the spread, in the first task."""
        update = super().fit(job)
        if job.task == 0:
            # The network is as training has left it.
            update.arrays.update(spread(self.training.features(job.samples), job.samples.labels))
        return update

    def weights(self, logits: Tensor, positions: Tensor, task: int) -> Tensor:
        """Balanced within each task, the more so the more tasks are over, and within bounds."""
        sizes = own_gradients(logits, positions) ** (task / (task + 1))
        ends = [len(self.workspace.tasks.seen(tasks)) for tasks in range(1, task + 1)]
        groups = torch.bucketize(positions, torch.tensor(ends, device=positions.device), right=True)
        return balanced(sizes, groups).clamp(_LEAST, _MOST)

    def distilled(
        self, compensated: Tensor, logits: Tensor, positions: Tensor, taught: Tensor, weights: Tensor
    ) -> Tensor:
        """Both in full, and both by the weights."""
        targets = sigmoid_targets(one_hot(positions, logits.shape[1]), taught)
        return compensated + weighted_sigmoid_loss(logits, targets, weights)


def spread(features: Tensor, labels: NDArray[np.int64]) -> NamedArrays:
    """The mean variance of the features [n, D] of each class that has two samples or more, added up, and the
    number of these classes."""
    found = [
        float(features[labels == label].double().var(dim=0).mean())
        for label in np.unique(labels)
        if (labels == label).sum() > 1
    ]
    return dict(zip(SPREAD, (np.array([sum(found)]), np.array([float(len(found))])), strict=True))


def radius(arrays: Arrays) -> float:
    """The standard deviation of a feature around the mean of its class, in the first task."""
    total, count = (float(arrays[name][0]) for name in SPREAD)
    return float(np.sqrt(max(total, 0.0) / count)) if count else 0.0
