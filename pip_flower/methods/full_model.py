"""Methods that train a whole network from scratch, averaged like any model: FedAvg and FedProx."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn

from pip_flower.data.samples import Samples
from pip_flower.data.views import Views
from pip_flower.method.descent import descend
from pip_flower.arrays import Arrays
from pip_flower.method.base import ClientJob, ClientUpdate, Method
from pip_flower.method.registry import register
from pip_flower.models import classifier
from pip_flower.models.network import array_names, feature_width, load_arrays, make_network, to_arrays
from pip_flower.runtime.process import once_per_process
from pip_flower.runtime.streams import stream, torch_stream
from pip_flower.config.schema import Bounds
from pip_flower.rounds.averaging import AveragingStrategy
from pip_flower.method.reply_checks import RejectedError
from pip_flower.method.workspace import Workspace
from pip_flower.data.batches import batches


@dataclass(frozen=True)
class FullModelOptions:
    """The network, and the proximal weight mu (0 is FedAvg)."""

    network: str
    stem: Literal["small", "imagenet"]
    image_size: Annotated[int, Bounds(8)]
    momentum: Annotated[float, Bounds(0, 0.999)]
    weight_decay: Annotated[float, Bounds(0)]
    proximal: Annotated[float, Bounds(0)]


class FullModel(Method):
    """Every array of the network travels both ways, with the head rows of the tasks seen."""

    options: FullModelOptions

    def __init__(self, bench: Workspace, options: FullModelOptions) -> None:
        super().__init__(bench, options)
        seed = self.seed("network")
        key = ("network", options.network, options.stem, seed)
        make = lambda: make_network(options.network, options.stem, seed).to(bench.device)  # noqa: E731
        # One network per process; every client loads its arrays into it.
        self.network: nn.Module = once_per_process(key, make)
        size = options.image_size
        dataset = bench.config.dataset
        self.views = Views(dataset, size, IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, bench.device)

    def fingerprint(self) -> str:
        """Nothing is frozen: nodes need only agree on the architecture."""
        return f"{self.options.network} {self.options.stem}"

    def start_task(self, task: int, arrays: Arrays) -> dict[str, NDArray[Any]]:  # noqa: ARG002
        """The network, before the first task, and fresh head rows."""
        added: dict[str, NDArray[Any]] = {}
        if task == 0:
            seed = self.seed("network")
            added |= to_arrays(make_network(self.options.network, self.options.stem, seed))
        generator = torch_stream(self.bench.config.seed, "start-task", task)
        classes = len(self.bench.tasks.classes[task])
        rows = classifier.start_task(task, classes, feature_width(self.network), generator)
        return added | {name: value.numpy() for name, value in rows.items()}

    def received(self, task: int) -> tuple[str, ...]:
        """The network and the rows of all tasks so far."""
        return self.model_names(task + 1)

    def returned(self, task: int) -> tuple[str, ...]:
        """The same."""
        return self.model_names(task + 1)

    def predicting(self, tasks: int) -> tuple[str, ...]:
        """The same."""
        return self.model_names(tasks)

    def model_names(self, tasks: int) -> tuple[str, ...]:
        """The network and the head rows of the first `tasks` tasks."""
        rows = (name for task in range(tasks) for name in classifier.row_names(task))
        return (*array_names(self.network), *rows)

    def inspect(self, task: int, answer: Arrays, samples: int) -> None:  # noqa: ARG002
        """Running variances are variances."""
        for name, value in answer.items():
            if name.endswith("running_var") and np.any(value < 0):
                raise RejectedError(f"{name} is negative")

    def fit(self, job: ClientJob) -> ClientUpdate:
        """SGD on all weights."""
        head = self._load(job)
        samples = self.rehearsed(job)
        parameters = [*self.network.parameters(), *head.values()]
        anchors = [parameter.detach().clone() for parameter in parameters]
        training = self.bench.config.training
        optimizer = torch.optim.SGD(
            parameters, training.learning_rate, self.options.momentum, weight_decay=self.options.weight_decay
        )
        means = []
        self.network.train()
        for epoch in range(training.epochs):
            losses = (
                self.loss(images, labels, head, job) + self._pull(parameters, anchors)
                for images, labels in self._batches(samples, job, epoch)
            )
            means.append(descend(losses, parameters, optimizer, training.clip_norm))
        arrays: dict[str, NDArray[Any]] = dict(to_arrays(self.network))
        arrays |= {name: value.detach().cpu().numpy() for name, value in head.items()}
        metrics = {"first_epoch_loss": means[0], "last_epoch_loss": means[-1]}
        return ClientUpdate(arrays, len(job.samples), metrics, self.remember(job))

    def _pull(self, parameters: list[Tensor], anchors: list[Tensor]) -> Tensor | float:
        """FedProx: mu / 2 |theta - theta_r|^2."""
        if not self.options.proximal:
            return 0.0
        return self.options.proximal / 2 * _squared_distance(parameters, anchors)

    def rehearsed(self, job: ClientJob) -> Samples:
        """What a client trains on: its samples of the task."""
        return job.samples

    def remember(self, job: ClientJob) -> dict[str, NDArray[Any]]:  # noqa: ARG002
        """What a client keeps for later rounds: nothing."""
        return {}

    def loss(
        self, images: Tensor, labels: NDArray[np.int64], head: Mapping[str, Tensor], job: ClientJob
    ) -> Tensor:
        """Cross-entropy over the classes of the task."""
        outputs = classifier.logits(head, self.network(images), [job.task])
        targets = torch.from_numpy(self.bench.tasks.targets(labels, job.task)).to(images.device)
        return F.cross_entropy(outputs, targets)

    @torch.inference_mode()
    def scores(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:
        """Logits of all classes seen."""
        load_arrays(self.network, arrays)
        return classifier.logits(arrays, self.features(samples), range(tasks))

    @torch.inference_mode()
    def features(self, samples: Samples) -> Tensor:
        """Features [n, D] of the deterministic view, with the weights that are loaded."""
        self.network.eval()
        parts = batches(np.arange(len(samples)), self.bench.config.evaluation.batch_size)
        return torch.cat([self.network(self.views.test(samples.images[rows])) for rows in parts])

    def _load(self, job: ClientJob) -> dict[str, Tensor]:
        load_arrays(self.network, job.arrays)
        rows = [name for task in range(job.task + 1) for name in classifier.row_names(task)]
        device = self.bench.device
        return {name: torch.tensor(job.arrays[name], device=device, requires_grad=True) for name in rows}

    def _batches(
        self, samples: Samples, job: ClientJob, epoch: int
    ) -> Iterator[tuple[Tensor, NDArray[np.int64]]]:
        seed, names = self.bench.config.seed, (job.round, job.partition, epoch)
        order = stream(seed, "batches", *names).permutation(len(samples))
        generator = torch_stream(seed, "views", *names)
        for rows in batches(order, self.bench.config.training.batch_size):
            # A batch of one has no variance to normalise by.
            if len(rows) > 1:
                yield self.views.train(samples.images[rows], generator), samples.labels[rows]


def _squared_distance(parameters: list[Tensor], anchors: list[Tensor]) -> Tensor:
    """|theta - theta_r|^2."""
    pairs = zip(parameters, anchors, strict=True)
    return torch.stack([(parameter - anchor).square().sum() for parameter, anchor in pairs]).sum()


for name, title in (("fedavg", "FedAvg (fine-tuning)"), ("fedprox", "FedProx")):
    register(name, title=title, options=FullModelOptions, method=FullModel, strategy=AveragingStrategy)
