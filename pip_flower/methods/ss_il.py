"""SS-IL: a softmax of its own for new and for old classes, distillation task by task.

After H. Ahn, J. Kwak, S. Lim, H. Bang, H. Kim and T. Moon, "SS-IL: Separated Softmax for Incremental
Learning", ICCV 2021. A new sample says nothing about old classes, so the few exemplars do not compete with
it; every batch has the same share of them. Federated: clients train so on their own samples, the server
takes the mean. Exemplars are herded, where the released code keeps the first images of a class. The weight
of the distillation is one, and the learning rate follows the run's configuration, not the paper's steps.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pip_flower.config.schema import Bounds
from pip_flower.method.exchange import ClientJob
from pip_flower.method.registry import register
from pip_flower.methods.networks.training import Epoch, Rows, Step
from pip_flower.methods.rehearsal.batches import mixed_batches
from pip_flower.methods.rehearsal.distillation import taskwise
from pip_flower.methods.rehearsal.method import Material, RehearsalMethod, RehearsalOptions


@dataclass(frozen=True)
class SSILOptions(RehearsalOptions):
    """How soft the distillation is, and how many exemplars a batch has for each new sample of a full one."""

    temperature: Annotated[float, Bounds(0.1)]
    old_per_new: Annotated[float, Bounds(0, 10, exclusive_minimum=True)]


class SSIL(RehearsalMethod):
    """Nothing but the model travels."""

    options: SSILOptions

    def epoch(self, material: Material) -> Epoch | None:
        """Batches with a fixed number of exemplars beside the new samples."""
        new, old = len(material.new), len(material.old)
        size = self.config.training.batch_size
        replayed = max(1, round(self.options.old_per_new * size))

        def batches(rng: np.random.Generator) -> Iterator[Rows]:
            for batch in mixed_batches(new, old, size, replayed, rng):
                yield np.concatenate([batch.new, new + batch.old])

        return batches if old else None

    def loss(self, step: Step, job: ClientJob) -> Tensor:
        """Separated cross-entropy, and T^2 KD_T on each old task's classes."""
        logits = step.logits(range(job.task + 1))
        old, _ = self.class_counts(job.task)
        loss = separated_cross_entropy(logits, self.columns(step, job.task), old, step.rehearsed)
        if job.task == 0:
            return loss
        taught = self.teacher.logits(step.images, range(job.task))
        sizes = [len(classes) for classes in self.workspace.tasks.classes[: job.task]]
        return loss + taskwise(logits, taught, sizes, self.options.temperature)


def separated_cross_entropy(
    logits: Tensor, columns: Tensor, old: int, rehearsed: NDArray[np.bool_]
) -> Tensor:
    """Cross-entropy of new samples over the columns from `old` on, of rehearsed ones over those before; the
    sum of both by the size of the batch."""
    replayed = torch.from_numpy(rehearsed).to(logits.device)
    new = F.cross_entropy(logits[~replayed, old:], columns[~replayed] - old, reduction="sum")
    total = new
    if rehearsed.any():
        total = total + F.cross_entropy(logits[replayed, :old], columns[replayed], reduction="sum")
    return total / len(logits)


register(
    "ss-il",
    title="SS-IL, federated",
    options=SSILOptions,
    method=SSIL,
    keeps="exemplar images",
)
