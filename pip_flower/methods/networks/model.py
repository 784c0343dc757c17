"""A whole network and its head on a client: loaded, trained with a method's loss, read back."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.config.schema import Bounds
from pip_flower.data.batches import batches
from pip_flower.data.samples import Samples
from pip_flower.data.views import Views
from pip_flower.method.descent import descend
from pip_flower.method.exchange import ClientJob
from pip_flower.method.reply_checks import RejectedError
from pip_flower.method.workspace import Workspace
from pip_flower.models.heads import Head
from pip_flower.models.network import array_names, load_arrays, to_arrays
from pip_flower.runtime.process import once_per_process
from pip_flower.runtime.streams import stream, stream_seed, torch_stream

Rows = NDArray[np.int64]
# The batches of an epoch, as positions among the samples.
Epoch = Callable[[np.random.Generator], Iterable[Rows]]


@dataclass(frozen=True)
class ModelOptions:
    """Of any network that is trained as a whole; `proximal` is FedProx's mu (0 is none)."""

    image_size: Annotated[int, Bounds(8)]
    weight_decay: Annotated[float, Bounds(0)]
    proximal: Annotated[float, Bounds(0)]


@dataclass(frozen=True)
class Step:
    """What a loss is given: images [B, 3, S, S] and their features [B, D], labels [B], which of them are
    rehearsed [B], the parameters that are trained, and their values as the server sent them; `maps` are those
    of the network's stages, if the training reads them, `at` the samples' positions among all."""

    images: Tensor
    features: Tensor
    labels: NDArray[np.int64]
    rehearsed: NDArray[np.bool_]
    parameters: Sequence[Tensor]
    received: Sequence[Tensor]
    head: Head
    rows: Mapping[str, Tensor]
    maps: tuple[Tensor, ...] = ()
    at: Rows = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def logits(self, tasks: Sequence[int]) -> Tensor:
        """Logits [B, classes of `tasks`], in the order of `tasks`."""
        return self.head.logits(self.rows, self.features, tasks)


@dataclass(frozen=True)
class Stage:
    """A part of a client's training: its epochs, by number, the learning rate, and whether the network itself
    is trained or only what comes after it."""

    epochs: range
    rate: float
    network: bool = True


class Trained(NamedTuple):
    """The model after training, and the losses for the log."""

    arrays: NamedArrays
    metrics: dict[str, float]


class ModelTraining(ABC):
    """One network per process, with a head; every client loads its arrays into it."""

    def __init__(self, workspace: Workspace, options: ModelOptions) -> None:
        self.workspace = workspace
        self.options = options
        self.network = self.another("network", self._seed)
        self.head = self.make_head()
        size, dataset = options.image_size, workspace.config.dataset
        self.views = Views(dataset, size, IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, workspace.device)

    @abstractmethod
    def fingerprint(self) -> str:
        """Nothing is frozen: nodes need only agree on the architecture."""

    @abstractmethod
    def make(self, seed: int) -> nn.Module:
        """A new network, initialised from `seed`."""

    def another(self, purpose: str, seed: int) -> nn.Module:
        """A network of this architecture, one per process for each purpose."""
        device = self.workspace.device
        return once_per_process(
            (purpose, self.fingerprint(), seed, str(device)), lambda: self.make(seed).to(device)
        )

    @abstractmethod
    def make_head(self) -> Head:
        """What makes logits of the network's features."""

    @abstractmethod
    def optimizer(self, parameters: Sequence[Tensor], rate: float) -> torch.optim.Optimizer:
        """What trains the parameters."""

    def look(self, images: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """The maps of the stages, where steps have them, and the features [B, D]."""
        return (), self.network(images)

    def rows(self, task: int) -> tuple[str, ...]:
        """The arrays beside the network that a client needs to train `task`."""
        return self.head.names_of(range(task + 1))

    def fixed(self, task: int) -> tuple[str, ...]:  # noqa: ARG002
        """Those of them that `task` does not train."""
        return ()

    def names(self, tasks: int) -> tuple[str, ...]:
        """The network and the head rows of the first `tasks` tasks."""
        return (*array_names(self.network), *self.head.names_of(range(tasks)))

    def start_task(self, task: int) -> NamedArrays:
        """The network, before the first task, and fresh head rows."""
        added: NamedArrays = dict(to_arrays(self.make(self._seed))) if task == 0 else {}
        return added | self.workspace.fresh_head(self.head, task)

    def inspect(self, reply: Arrays) -> None:
        """Running variances are variances."""
        for name, value in reply.items():
            if name.endswith("running_var") and np.any(value < 0):
                raise RejectedError(f"{name} is negative")

    def fit(
        self,
        job: ClientJob,
        samples: Samples,
        rehearsed: int,
        loss: Callable[[Step], Tensor],
        stage: Stage | None = None,
        epoch: Epoch | None = None,
        frozen: Collection[str] = (),
    ) -> Trained:
        """The optimizer's steps on all weights but the head's `frozen` arrays, unless the stage says
        otherwise; the last `rehearsed` of the samples are of earlier tasks; `epoch` says which samples make a
        batch, otherwise all come in random order."""
        training, fixed = self.workspace.config.training, self.fixed(job.task)
        stage = stage or Stage(range(training.epochs), training.learning_rate)
        load_arrays(self.network, job.arrays)
        rows = {
            name: self._leaf(job.arrays[name], name not in {*fixed, *frozen}) for name in self.rows(job.task)
        }
        trained = [row for row in rows.values() if row.requires_grad]
        parameters = [*(self.network.parameters() if stage.network else ()), *trained]
        received = [parameter.detach().clone() for parameter in parameters]
        old = np.arange(len(samples)) >= len(samples) - rehearsed

        def step_loss(batch: tuple[Tensor, Rows]) -> Tensor:
            images, at = batch
            with torch.set_grad_enabled(stage.network):
                maps, features = self.look(images)
            labels, head = samples.labels[at], self.head
            step = Step(images, features, labels, old[at], parameters, received, head, rows, maps, at)
            return loss(step) + proximal_term(step, self.options.proximal)

        optimizer = self.optimizer(parameters, stage.rate)
        self.network.train(stage.network)
        means = []
        for number in stage.epochs:
            given = self._batches(samples, job, number, epoch)
            means.append(descend(given, step_loss, parameters, optimizer, training.clip_norm))
        arrays: NamedArrays = dict(to_arrays(self.network)) if stage.network else {}
        arrays |= {k: value.detach().cpu().numpy() for k, value in rows.items() if k not in fixed}
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

    def _leaf(self, value: NDArray[Any], trained: bool) -> Tensor:
        return torch.tensor(value, device=self.workspace.device, requires_grad=trained)

    def shuffled(self, samples: int, rng: np.random.Generator) -> Iterable[Rows]:
        """Every sample once."""
        order = rng.permutation(samples)
        # A batch of one has no variance to normalise by: two views of the only sample have.
        return batches(
            np.repeat(order, 2) if samples == 1 else order, self.workspace.config.training.batch_size
        )

    def _batches(
        self, samples: Samples, job: ClientJob, number: int, epoch: Epoch | None
    ) -> Iterator[tuple[Tensor, Rows]]:
        """Augmented images, and which samples they are."""
        seed, names = self.workspace.config.seed, (job.round, job.partition, number)
        rng = stream(seed, "batches", *names)
        generator = torch_stream(seed, "views", *names)
        for rows in epoch(rng) if epoch else self.shuffled(len(samples), rng):
            # Nor has what may be left over at the end of an epoch.
            if len(rows) > 1:
                yield self.views.train(samples.images[rows], generator), rows


def proximal_term(step: Step, weight: float) -> Tensor | float:
    """FedProx: mu / 2 |theta - theta_r|^2."""
    if not weight:
        return 0.0
    pairs = zip(step.parameters, step.received, strict=True)
    return weight / 2 * torch.stack([(now - then).square().sum() for now, then in pairs]).sum()
