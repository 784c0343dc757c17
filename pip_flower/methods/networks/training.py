"""A whole network and its head on a client: loaded, trained with a method's loss, read back."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.config.schema import Bounds, ConfigError
from pip_flower.config.sections import Config
from pip_flower.data.batches import batches
from pip_flower.data.samples import Samples
from pip_flower.data.views import Views
from pip_flower.method.descent import descend
from pip_flower.method.exchange import ClientJob
from pip_flower.method.reply_checks import RejectedError
from pip_flower.method.workspace import Workspace
from pip_flower.models.heads import Head, LinearHead
from pip_flower.models.network import array_names, feature_width, load_arrays, make_network, to_arrays
from pip_flower.runtime.process import once_per_process
from pip_flower.runtime.streams import stream, stream_seed, torch_stream


@dataclass(frozen=True)
class NetworkOptions:
    """The network and how SGD trains it; `proximal` is FedProx's mu (0 is none)."""

    network: str
    stem: Literal["small", "imagenet"]
    image_size: Annotated[int, Bounds(8)]
    momentum: Annotated[float, Bounds(0, 0.999)]
    weight_decay: Annotated[float, Bounds(0)]
    proximal: Annotated[float, Bounds(0)]


@dataclass(frozen=True)
class Step:
    """What a loss is given: images [B, 3, S, S] and their features [B, D], labels [B], which of them are
    rehearsed [B], the parameters that are trained, and their values as the server sent them."""

    images: Tensor
    features: Tensor
    labels: NDArray[np.int64]
    rehearsed: NDArray[np.bool_]
    parameters: Sequence[Tensor]
    received: Sequence[Tensor]
    head: Head
    rows: Mapping[str, Tensor]

    def logits(self, tasks: Sequence[int]) -> Tensor:
        """Logits [B, classes of `tasks`], in the order of `tasks`."""
        return self.head.logits(self.rows, self.features, tasks)


class Trained(NamedTuple):
    """The model after training, and the losses for the log."""

    arrays: NamedArrays
    metrics: dict[str, float]


class NetworkTraining:
    """One network per process; every client loads its arrays into it."""

    @staticmethod
    def check(config: Config) -> None:
        """Refuse batches that nothing can be learnt from."""
        if config.training.batch_size < 2:
            raise ConfigError(
                "training.batch_size",
                f"{config.training.batch_size} image has no variance, which batch normalisation needs",
                "Give 2 or more",
            )

    def __init__(self, workspace: Workspace, options: NetworkOptions) -> None:
        self.workspace = workspace
        self.options = options
        self.network: nn.Module = once_per_process(
            ("network", options.network, options.stem, self._seed),
            lambda: self._make().to(workspace.device),
        )
        self.head = LinearHead(feature_width(self.network))
        size, dataset = options.image_size, workspace.config.dataset
        self.views = Views(dataset, size, IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, workspace.device)

    def fingerprint(self) -> str:
        """Nothing is frozen: nodes need only agree on the architecture."""
        return f"{self.options.network} {self.options.stem}"

    def names(self, tasks: int) -> tuple[str, ...]:
        """The network and the head rows of the first `tasks` tasks."""
        return (*array_names(self.network), *self.head.names_of(range(tasks)))

    def start_task(self, task: int) -> NamedArrays:
        """The network, before the first task, and fresh head rows."""
        added: NamedArrays = dict(to_arrays(self._make())) if task == 0 else {}
        return added | self.workspace.fresh_head(self.head, task)

    def inspect(self, reply: Arrays) -> None:
        """Running variances are variances."""
        for name, value in reply.items():
            if name.endswith("running_var") and np.any(value < 0):
                raise RejectedError(f"{name} is negative")

    def fit(
        self, job: ClientJob, samples: Samples, rehearsed: int, loss: Callable[[Step], Tensor]
    ) -> Trained:
        """SGD on all weights; the last `rehearsed` of the samples are of earlier tasks."""
        load_arrays(self.network, job.arrays)
        device = self.workspace.device
        names = self.head.names_of(range(job.task + 1))
        rows = {name: torch.tensor(job.arrays[name], device=device, requires_grad=True) for name in names}
        parameters = [*self.network.parameters(), *rows.values()]
        received = [parameter.detach().clone() for parameter in parameters]
        old = np.arange(len(samples)) >= len(samples) - rehearsed

        def step_loss(batch: tuple[Tensor, NDArray[np.int64]]) -> Tensor:
            images, at = batch
            features = self.network(images)
            step = Step(images, features, samples.labels[at], old[at], parameters, received, self.head, rows)
            return loss(step) + proximal_term(step, self.options.proximal)

        training = self.workspace.config.training
        optimizer = torch.optim.SGD(
            parameters, training.learning_rate, self.options.momentum, weight_decay=self.options.weight_decay
        )
        self.network.train()
        means = [
            descend(self._batches(samples, job, epoch), step_loss, parameters, optimizer, training.clip_norm)
            for epoch in range(training.epochs)
        ]
        arrays: NamedArrays = dict(to_arrays(self.network))
        arrays |= {name: value.detach().cpu().numpy() for name, value in rows.items()}
        return Trained(arrays, {"first_epoch_loss": means[0], "last_epoch_loss": means[-1]})

    @torch.inference_mode()
    def scores(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:
        """Logits of all classes seen [n, classes]."""
        load_arrays(self.network, arrays)
        return self.head.logits(arrays, self.features(samples), range(tasks))

    @torch.inference_mode()
    def features(self, samples: Samples) -> Tensor:
        """Features [n, D] of the deterministic view, with the weights that are loaded."""
        self.network.eval()
        parts = batches(np.arange(len(samples)), self.workspace.config.evaluation.batch_size)
        return torch.cat([self.network(self.views.test(samples.images[rows])) for rows in parts])

    def unit_features(self, samples: Samples) -> NDArray[np.float32]:
        """Features of length 1 [n, D], which exemplars are chosen by."""
        if not len(samples):
            return np.zeros((0, self.head.width), dtype=np.float32)
        found: NDArray[np.float32] = nn.functional.normalize(self.features(samples), dim=1).cpu().numpy()
        return found

    @property
    def _seed(self) -> int:
        return stream_seed(self.workspace.config.seed, "network")

    def _make(self) -> nn.Module:
        return make_network(self.options.network, self.options.stem, self._seed)

    def _batches(
        self, samples: Samples, job: ClientJob, epoch: int
    ) -> Iterator[tuple[Tensor, NDArray[np.int64]]]:
        """Augmented images, and which samples they are."""
        seed, names = self.workspace.config.seed, (job.round, job.partition, epoch)
        order = stream(seed, "batches", *names).permutation(len(samples))
        generator = torch_stream(seed, "views", *names)
        if len(order) == 1:
            # A batch of one has no variance to normalise by: two views of the only sample have.
            order = np.repeat(order, 2)
        for rows in batches(order, self.workspace.config.training.batch_size):
            # Nor has what may be left over at the end of an epoch.
            if len(rows) > 1:
                yield self.views.train(samples.images[rows], generator), rows


def proximal_term(step: Step, weight: float) -> Tensor | float:
    """FedProx: mu / 2 |theta - theta_r|^2."""
    if not weight:
        return 0.0
    pairs = zip(step.parameters, step.received, strict=True)
    return weight / 2 * torch.stack([(now - then).square().sum() for now, then in pairs]).sum()
