"""The proxy server: rebuilds images from the clients' gradients, and with them picks the model of a task that
teaches the next one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pip_flower.arrays import Arrays, NamedArrays, pick
from pip_flower.config.schema import Bounds, ConfigError
from pip_flower.data.batches import batches
from pip_flower.method.round import Round
from pip_flower.methods.glfc.encoder import GradientEncoder
from pip_flower.methods.networks.model import ModelTraining
from pip_flower.models.network import load_arrays
from pip_flower.runtime.streams import torch_stream

IMAGES, LABELS = "proxy.images", "proxy.labels"
_BEST = "best."

Gradients = NDArray[np.float32]


@dataclass(frozen=True)
class ProxyOptions:
    """How far a client moves its prototypes before it sends their gradients; steps of L-BFGS that rebuild an
    image, iterations of each, and how many of the last steps' images models are judged on."""

    disturbance: Annotated[int, Bounds(0)]
    steps: Annotated[int, Bounds(1)]
    iterations: Annotated[int, Bounds(1)]
    kept: Annotated[int, Bounds(1)]

    def check(self) -> None:
        """Refuse to keep more images than there are."""
        if self.kept > self.steps:
            raise ConfigError(
                "method.proxy.kept",
                f"{self.kept} images cannot come from {self.steps} steps",
                f"Give at most method.proxy.steps = {self.steps}",
            )


@dataclass(frozen=True)
class MonitorSet:
    """Rebuilt images [n, 3, S, S] and the columns [n] that their classes have among the logits."""

    images: NDArray[np.float16]
    labels: NDArray[np.int64]

    @classmethod
    def empty(cls, size: int) -> "MonitorSet":
        """As a task begins."""
        return cls(np.zeros((0, 3, size, size), dtype=np.float16), np.zeros(0, dtype=np.int64))

    @classmethod
    def within(cls, arrays: Arrays) -> "MonitorSet":
        """As the server holds it."""
        return cls(arrays[IMAGES], arrays[LABELS])

    def with_images(self, images: Tensor, label: int) -> "MonitorSet":
        """With more images of a class."""
        added = images.cpu().numpy().astype(np.float16)
        added = added[np.isfinite(added).reshape(len(added), -1).all(axis=1)]
        labels = np.full(len(added), label, dtype=np.int64)
        return MonitorSet(np.concatenate([self.images, added]), np.concatenate([self.labels, labels]))

    def arrays(self) -> NamedArrays:
        """As it is held."""
        return {IMAGES: self.images, LABELS: self.labels}


class ProxyServer:
    """Keeps the monitor set of a task and the best model so far among the server's arrays."""

    def __init__(self, training: ModelTraining, encoder: GradientEncoder, options: ProxyOptions) -> None:
        self.training = training
        self.encoder = encoder
        self.options = options

    def start_task(self) -> NamedArrays:
        """Nothing to judge by yet; scores of an earlier task count no more."""
        return MonitorSet.empty(self.encoder.size).arrays()

    def watch(self, round_: Round, gradients: Sequence[tuple[int, Gradients]], arrays: Arrays) -> NamedArrays:
        """After a round: the monitor set with what clients (by partition) sent, and the better of the new
        model and the best so far, judged by the same images; the new one if they are equal."""
        monitor = MonitorSet.within(arrays)
        for partition, rows in gradients:
            monitor = self._extended(monitor, rows, round_.number, partition)
        names = self.training.names(round_.task + 1)
        now = pick(arrays, names)
        best = {} if round_.starts_task else {name: arrays[f"{_BEST}{name}"] for name in names}
        if not best or self.at_least_as_good(now, best, monitor, round_, arrays):
            best = now
        return monitor.arrays() | {f"{_BEST}{name}": value for name, value in best.items()}

    def best(self, task: int, arrays: Arrays) -> NamedArrays:
        """The best model of `task`, which has ended."""
        return {name: arrays[f"{_BEST}{name}"] for name in self.training.names(task + 1)}

    def _extended(self, monitor: MonitorSet, rows: Gradients, round_: int, partition: int) -> MonitorSet:
        options, seed = self.options, self.training.workspace.config.seed
        for row, values in enumerate(rows):
            gradient = torch.tensor(values, device=self.encoder.device)
            generator = torch_stream(seed, "rebuilt", round_, partition, row)
            images = self.encoder.rebuilt(
                gradient, options.steps, options.iterations, options.kept, generator
            )
            monitor = monitor.with_images(images, self.encoder.label_of(gradient))
        return monitor

    def at_least_as_good(
        self, now: Arrays, best: Arrays, monitor: MonitorSet, round_: Round, arrays: Arrays
    ) -> bool:
        """Whether the newer of two models is kept: always, if there is nothing to judge by."""
        if not len(monitor.labels):
            return True
        new, old = (self._score(model, monitor, round_, arrays) for model in (now, best))
        return new >= old

    @torch.inference_mode()
    def _score(self, model: Arrays, monitor: MonitorSet, round_: Round, arrays: Arrays) -> float:
        """How many of the monitor set's images, or of what is made of them, a model recognises."""
        device, tasks = self.training.workspace.device, range(round_.task + 1)
        load_arrays(self.training.network, model)
        self.training.network.eval()
        rows = {name: torch.tensor(model[name], device=device) for name in self.training.head.names_of(tasks)}
        features = self._features(monitor)
        labels = torch.from_numpy(monitor.labels).to(device)
        features, labels = self.judged(features, labels, round_, arrays)
        found = self.training.head.logits(rows, features, tasks).argmax(dim=1)
        return float((found == labels).float().mean())

    def judged(
        self,
        features: Tensor,
        labels: Tensor,
        round_: Round,  # noqa: ARG002
        arrays: Arrays,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """The features that the head is tried on: those of the images."""
        return features, labels

    def _features(self, monitor: MonitorSet) -> Tensor:
        size = self.training.workspace.config.evaluation.batch_size
        device = self.training.workspace.device
        parts = batches(np.arange(len(monitor.labels)), size)
        images = (torch.from_numpy(monitor.images[rows]).float().to(device) for rows in parts)
        return torch.cat([self.training.network(part) for part in images])
