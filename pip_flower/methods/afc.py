"""AFC: maps stay as they were, the more so the more a channel matters to the loss.

After M. Kang, J. Park and B. Han, "Class-Incremental Learning by Knowledge Distillation with Adaptive Feature
Consolidation", CVPR 2022. Classifier, exemplars and tuning are PODNet's. The importance of a channel is the
mean squared gradient of the loss with respect to its map, by the mean of the stage. Federated: when a task
has ended, every client that is there and holds samples of it sends the sums of the final global model, once,
over its samples of the task and its exemplars. The loss that they derive from is the classification loss.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.config.schema import Bounds
from pip_flower.data.batches import batches
from pip_flower.method.exchange import ClientJob, ClientUpdate, Exchange
from pip_flower.method.merging import Merge, Sum
from pip_flower.method.registry import register
from pip_flower.method.reply_checks import RejectedError, check_counts
from pip_flower.method.round import Round
from pip_flower.method.workspace import Workspace
from pip_flower.methods.networks.training import Step
from pip_flower.methods.rehearsal.memory import ExemplarMemory
from pip_flower.methods.rehearsal.proxies import ProxyOptions, ProxyRehearsal, margin_loss
from pip_flower.models.network import load_arrays
from pip_flower.models.stages import stage_channels, staged

COUNT = "importance.count"


@dataclass(frozen=True)
class AFCOptions(ProxyOptions):
    """How much maps must stay as they were."""

    distillation: Annotated[float, Bounds(0)]


class AFC(ProxyRehearsal):
    """`importance.i` [channels of stage i] is constant during a task."""

    options: AFCOptions

    def __init__(self, workspace: Workspace, options: AFCOptions) -> None:
        super().__init__(workspace, options)
        self.channels = stage_channels(self.training.network)
        self.conclusion = Importance(self)

    def importance_names(self) -> tuple[str, ...]:
        """Of all stages."""
        return tuple(f"importance.{stage}" for stage in range(len(self.channels)))

    def start_task(self, task: int, arrays: Arrays) -> NamedArrays:
        """Sums of nobody yet."""
        sums = {
            f"{name}.sum": np.zeros(n) for name, n in zip(self.importance_names(), self.channels, strict=True)
        }
        return super().start_task(task, arrays) | sums | {COUNT: np.zeros(1)}

    def end_task(self, task: int, arrays: Arrays) -> NamedArrays:
        """The importance of each channel, one on average in each stage; and the next task's teacher."""
        found = {name: relative(arrays[f"{name}.sum"]) for name in self.importance_names()}
        return super().end_task(task, arrays) | found

    def constant(self, task: int) -> tuple[str, ...]:
        """The teacher, and what mattered to it."""
        return (*super().constant(task), *(self.importance_names() if task else ()))

    def kept(self, step: Step, job: ClientJob) -> Tensor:
        """The weighted distance of maps."""
        weights = [
            torch.as_tensor(job.arrays[name]).to(step.images.device) for name in self.importance_names()
        ]
        taught = self.teacher.stages(step.images).maps
        return self.options.distillation * weighted_distance(step.maps, taught, weights)


class Importance(Exchange):
    """At the end of a task: the squared gradients of the final model's maps, summed over own samples."""

    def __init__(self, method: AFC) -> None:
        super().__init__(method.workspace)
        self.method = method

    def received(self, task: int) -> tuple[str, ...]:
        """The model."""
        return self.method.training.names(task + 1)

    def returned(self, task: int) -> tuple[str, ...]:  # noqa: ARG002
        """Sums, and over how many samples."""
        return (*(f"{name}.sum" for name in self.method.importance_names()), COUNT)

    def merging(self, round_: Round) -> Mapping[str, Merge]:
        """The sums over all clients."""
        sums: dict[str, Merge] = dict.fromkeys(self.returned(round_.task), Sum(counts=COUNT, running=False))
        return sums | {COUNT: Sum(running=False)}

    def inspect(self, task: int, reply: Arrays, samples: int) -> None:  # noqa: ARG002
        """Sums of squares."""
        check_counts(COUNT, reply[COUNT], self.config.validation.max_samples)
        for name in self.returned(task):
            if np.any(reply[name] < 0):
                raise RejectedError(f"{name} is negative")

    def fit(self, job: ClientJob) -> ClientUpdate:
        """Over own samples of the task and exemplars of others."""
        method, tasks = self.method, range(job.task + 1)
        present, train = self.workspace.tasks.classes[job.task], self.workspace.data.train
        old = ExemplarMemory(0).rehearsed(job.memory, train, excluding=present)
        samples = job.samples.joined(old) if len(old) else job.samples
        network, device = method.training.network, self.workspace.device
        load_arrays(network, job.arrays)
        network.eval()
        rows = {
            name: torch.as_tensor(job.arrays[name], device=device) for name in method.head.names_of(tasks)
        }
        columns = self.workspace.tasks.positions(samples.labels, job.task + 1)
        totals = [np.zeros(channels) for channels in method.channels]
        for part in batches(np.arange(len(samples)), self.config.training.batch_size):
            maps, features = staged(network, method.training.views.test(samples.images[part]))
            similarities = method.head.similarities(rows, features, tasks)
            targets = torch.from_numpy(columns[part]).to(device)
            scale = rows[method.head.scale_name]
            # Summed, so that each map has the gradient of its own sample's loss.
            loss = len(part) * margin_loss(similarities, targets, scale, method.options.margin)
            for total, gradient in zip(totals, torch.autograd.grad(loss, maps), strict=True):
                total += gradient.square().sum(dim=(0, 2, 3)).double().cpu().numpy()
        names = method.importance_names()
        found: NamedArrays = {f"{name}.sum": total for name, total in zip(names, totals, strict=True)}
        found[COUNT] = np.array([float(len(samples))])
        return ClientUpdate(found, len(job.samples), {}, job.memory)


def relative(sums: np.ndarray) -> np.ndarray:
    """Sums [C] by their mean; ones if nothing mattered."""
    mean = sums.mean()
    found: np.ndarray = (sums / mean if mean > 0 else np.ones_like(sums)).astype(np.float32)
    return found


def weighted_distance(
    maps: Sequence[Tensor], teacher_maps: Sequence[Tensor], importance: Sequence[Tensor]
) -> Tensor:
    """The Euclidean distance of squared maps [B, C, H, W], of unit length over the pixels of a channel,
    times the channel's importance [C]; mean over batch, channels and stages."""
    distances = [
        (weight * torch.linalg.vector_norm(_unit(own) - _unit(taught), dim=2)).mean()
        for own, taught, weight in zip(maps, teacher_maps, importance, strict=True)
    ]
    return torch.stack(distances).mean()


def _unit(stage_map: Tensor) -> Tensor:
    return F.normalize(stage_map.square().flatten(2), dim=2)


register(
    "afc",
    title="AFC, federated",
    options=AFCOptions,
    method=AFC,
    keeps="exemplar images",
    sends="class means, within the proxies of a task's first round; squared gradients by channel",
)
