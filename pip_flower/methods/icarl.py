"""iCaRL: rehearsal from a local memory of exemplars, distillation, optional nearest-mean classifier.

Exemplars never leave their client. It keeps their ids; the images are its own samples.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pip_flower.data.samples import Samples
from pip_flower.arrays import Arrays
from pip_flower.method.base import ClientJob, ClientUpdate
from pip_flower.methods.full_model import FullModel, FullModelOptions
from pip_flower.method.registry import register
from pip_flower.models import classifier
from pip_flower.models.network import feature_width, load_arrays, make_network
from pip_flower.runtime.process import once_per_process
from pip_flower.config.schema import Bounds
from pip_flower.rounds.icarl import MEANS, OLD, ICaRLStrategy
from pip_flower.method.reply_checks import ArraySpec, RejectedError, check_counts
from pip_flower.method.workspace import Workspace


@dataclass(frozen=True)
class ICaRLOptions(FullModelOptions):
    """K exemplars per client, and how classes are told apart."""

    memory: Annotated[int, Bounds(1)]
    classifier: Literal["linear", "nearest-mean"]


class ICaRL(FullModel):
    """Beside the model, clients get the old one as teacher (`old.*`) and send sums of unit features of their
    exemplars (`mean.sum` [classes seen, D], `mean.count`), if the nearest-mean classifier is used."""

    options: ICaRLOptions

    def __init__(self, bench: Workspace, options: ICaRLOptions) -> None:
        super().__init__(bench, options)
        make = lambda: make_network(options.network, options.stem, 0).to(bench.device).eval()  # noqa: E731
        self.teacher = once_per_process(("teacher", options.network, options.stem), make)

    def received(self, task: int) -> tuple[str, ...]:
        """The model and, from the second task on, the one at the end of the task before."""
        old = () if task == 0 else tuple(f"{OLD}{name}" for name in self.model_names(task))
        return super().received(task) + old

    def returned(self, task: int) -> tuple[str, ...]:
        """The model, and the sums behind the class means."""
        return super().returned(task) + (MEANS if self._uses_means() else ())

    def predicting(self, tasks: int) -> tuple[str, ...]:
        """The model, and the class means."""
        return super().predicting(tasks) + (MEANS if self._uses_means() else ())

    def keeps_memory(self) -> bool:
        """Ids of exemplars."""
        return True

    def expected(self, task: int, arrays: Arrays, samples: int) -> dict[str, ArraySpec]:
        """The sums grow with the classes seen."""
        known = {name: array for name, array in arrays.items() if name not in MEANS}
        if self._uses_means():
            classes = len(self.bench.tasks.seen(task + 1))
            sums = np.zeros((classes, feature_width(self.network)))
            known |= dict(zip(MEANS, (sums, np.zeros(classes)), strict=True))
        return super().expected(task, known, samples)

    def inspect(self, task: int, answer: Arrays, samples: int) -> None:
        """Sums of unit features of no more exemplars than fit the memory."""
        super().inspect(task, answer, samples)
        if not self._uses_means():
            return
        sums, count = (answer[name] for name in MEANS)
        # Every class keeps one exemplar at least, however small the memory.
        check_counts("mean.count", count, max(self.options.memory, len(count)))
        if np.any(np.linalg.norm(sums, axis=1) > count * (1 + 1e-4)):
            raise RejectedError("mean.sum is longer than a sum of unit features can be")

    def fit(self, job: ClientJob) -> ClientUpdate:
        """Train on own samples and exemplars, then choose exemplars anew."""
        if job.task > 0:
            load_arrays(self.teacher, job.arrays, f"{OLD}network.")
        update = super().fit(job)
        if self._uses_means():
            update.arrays.update(self._mean_sums(job, update.memory))
        return update

    def rehearsed(self, job: ClientJob) -> Samples:
        """The client's samples of the task and its exemplars of earlier ones."""
        kept = self._exemplars(job, job.memory)
        if not len(kept):
            return job.samples
        return job.samples.joined(kept)

    def loss(
        self, images: Tensor, labels: NDArray[np.int64], head: Mapping[str, Tensor], job: ClientJob
    ) -> Tensor:
        """Sigmoid cross-entropy; the targets of old classes are the teacher's outputs."""
        tasks = self.bench.tasks
        outputs = classifier.logits(head, self.network(images), range(job.task + 1))
        column = {label: i for i, label in enumerate(tasks.seen(job.task + 1))}
        rows = torch.tensor([column[int(label)] for label in labels], device=images.device)
        targets = F.one_hot(rows, len(column)).float()
        if job.task > 0:
            targets[:, : len(tasks.seen(job.task))] = self._teach(images, job)
        return F.binary_cross_entropy_with_logits(outputs, targets)

    def remember(self, job: ClientJob) -> dict[str, NDArray[Any]]:
        """Ids of exemplars per class, the best first; memory is shared equally by the classes known."""
        kept = {name: np.asarray(ids) for name, ids in job.memory.items()}
        features = F.normalize(self.features(job.samples), dim=1).cpu().numpy()
        for label in np.unique(job.samples.labels):
            members = np.flatnonzero(job.samples.labels == label)
            order = herd(features[members], self.options.memory)
            kept[f"exemplars.{label}"] = job.samples.ids[members][order]
        share = max(1, self.options.memory // len(kept))
        return {name: ids[:share] for name, ids in kept.items()}

    @torch.inference_mode()
    def scores(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:
        """Logits, or nearness to the class means."""
        if not self._uses_means():
            return super().scores(arrays, samples, tasks)
        load_arrays(self.network, arrays)
        means = F.normalize(arrays["mean.sum"].float(), dim=1)
        near = -torch.cdist(F.normalize(self.features(samples), dim=1), means)
        return near.masked_fill(arrays["mean.count"] == 0, -torch.inf)

    def _uses_means(self) -> bool:
        return self.options.classifier == "nearest-mean"

    @torch.no_grad()
    def _teach(self, images: Tensor, job: ClientJob) -> Tensor:
        old = {
            name: torch.as_tensor(job.arrays[f"{OLD}{name}"], device=images.device)
            for task in range(job.task)
            for name in classifier.row_names(task)
        }
        return torch.sigmoid(classifier.logits(old, self.teacher(images), range(job.task)))

    def _exemplars(self, job: ClientJob, memory: Arrays) -> Samples:
        """The exemplars of earlier tasks' classes."""
        present = {f"exemplars.{label}" for label in self.bench.tasks.classes[job.task]}
        ids = [ids for name, ids in memory.items() if name not in present]
        wanted = np.concatenate(ids) if ids else np.zeros(0, dtype=np.int64)
        train = self.bench.data.train
        return train.take(np.flatnonzero(np.isin(train.ids, wanted)))

    def _mean_sums(self, job: ClientJob, memory: Arrays) -> dict[str, NDArray[Any]]:
        seen = self.bench.tasks.seen(job.task + 1)
        train = self.bench.data.train
        sums = np.zeros((len(seen), feature_width(self.network)))
        count = np.zeros(len(seen))
        for row, label in enumerate(seen):
            ids = memory.get(f"exemplars.{label}", np.zeros(0, dtype=np.int64))
            if len(ids):
                samples = train.take(np.flatnonzero(np.isin(train.ids, ids)))
                sums[row] = F.normalize(self.features(samples), dim=1).double().sum(dim=0).cpu().numpy()
                count[row] = len(samples)
        return {"mean.sum": sums, "mean.count": count}


def herd(features: NDArray[np.floating], count: int) -> NDArray[np.int64]:
    """Positions of at most `count` of the unit features [n, D], each the one that brings the mean of
    those picked nearest to the mean of all; a shorter list is a prefix of a longer one."""
    mean = features.mean(axis=0)
    picked: list[int] = []
    total = np.zeros_like(mean)
    free = np.ones(len(features), dtype=np.bool_)
    for k in range(1, min(count, len(features)) + 1):
        distance = np.linalg.norm(mean - (features + total) / k, axis=1)
        best = int(np.where(free, distance, np.inf).argmin())
        picked.append(best)
        free[best] = False
        total = total + features[best]
    return np.array(picked, dtype=np.int64)


register("icarl", title="iCaRL, federated", options=ICaRLOptions, method=ICaRL, strategy=ICaRLStrategy)
