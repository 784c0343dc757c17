"""A client's round from raw batches: PIP's own code on the batches of a fixture, with the fixture's draws.

The released code cuts batches from all classes of a task and then drops what the client does not hold.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pip_flower import prototypes
from pip_flower.data.samples import ImageData, Samples
from pip_flower.data.tasks import TaskSplit
from pip_flower.data.views import Views
from pip_flower.method.exchange import ClientJob, ClientUpdate
from pip_flower.method.workspace import Workspace
from pip_flower.methods.pip.pip import PIP
from pip_flower.models.backbone import Backbone
from pip_flower.parity.deviation import TOLERANCE_AFTER_STEP, Deviation, compare, difference
from pip_flower.parity.fixtures import Array, Fixture
from pip_flower.parity.reference import ReferenceModel, released_config, table_of
from pip_flower.prototypes import Prototypes

CLIENT_ROUND = "client_round.npz"


@dataclasses.dataclass(frozen=True)
class RawBatches:
    """Images [n, 3, S, S] and labels [n] of all classes of a task, cut into batches of `size` in the order of
    each epoch and then of the prototype pass; and the classes that the client holds."""

    images: Array
    labels: Array
    size: int
    orders: Sequence[Array]
    available: Array

    @classmethod
    def stored(cls, fixture: Fixture, epochs: int) -> "RawBatches":
        """`batch0`, `batch1`, ... of a fixture, the same in every epoch."""
        parts = fixture.groups(r"(batch\d+)\.x")
        images, labels = (np.concatenate([fixture[f"{part}.{what}"] for part in parts]) for what in "xy")
        orders = [np.arange(len(labels))] * (epochs + 1)
        return cls(images, labels, len(fixture[f"{parts[0]}.y"]), orders, fixture["available_classes"])


class RecordedClient:
    """PIP's client, which draws nothing: the fixture says what was drawn."""

    def __init__(
        self,
        model: ReferenceModel,
        task: int,
        raw: RawBatches,
        draws: Sequence[Array] = (),
        learning_rate: float = 1.0,
    ) -> None:
        self.model, self.task = model, task
        held = np.isin(raw.labels, raw.available)
        # The client's own samples come first: that is how the others are told from them.
        own_first = np.concatenate([np.flatnonzero(held), np.flatnonzero(~held)])
        position = np.argsort(own_first)
        everything = Samples(raw.images[own_first], raw.labels[own_first], own_first)
        self.samples = everything.take(np.arange(int(held.sum())))
        training = f"training.epochs={len(raw.orders) - 1} training.batch_size={raw.size}"
        settings = f"{training} training.learning_rate={learning_rate}"
        workspace = RecordedWorkspace(model, settings, everything, [position[o] for o in raw.orders], draws)
        options = dataclasses.replace(workspace.config.method.options, prompt=model.options)
        self.pip = PIP(workspace, options)

    def fit(self, known: Prototypes) -> ClientUpdate:
        """All epochs with the server's prototypes `known`, and the client's own after them."""
        return self.pip.fit(self._job(known))

    def prototypes(self) -> Prototypes:
        """The client's own, of the model as the fixture has it."""
        return self.pip.sharing.own(self.model.trainer(self.task, 1.0), self._job(self._nothing()))

    def _nothing(self) -> Prototypes:
        return prototypes.empty(self.model.head.width)

    def _job(self, known: Prototypes) -> ClientJob:
        sent = {name: self.model.state[name].numpy() for name in self.pip.trained(self.task)}
        return ClientJob(1, self.task, 0, sent | known.as_arrays(), self.samples)


class RecordedWorkspace(Workspace):
    """The toy ViT, the samples of a fixture, and streams that give out its draws."""

    def __init__(
        self,
        model: ReferenceModel,
        settings: str,
        samples: Samples,
        orders: Sequence[Array],
        draws: Sequence[Array],
    ) -> None:
        tasks = len(model.class_mask)
        shape = f"dataset.classes={model.class_mask.size} schedule.tasks={tasks} schedule.rounds={tasks}"
        super().__init__(released_config(model.method, f"{shape} {settings}"))
        self.tasks = TaskSplit(tuple(tuple(map(int, classes)) for classes in model.class_mask))
        self.backbone: Backbone = model.backbone
        self.data = ImageData(samples, samples, samples, ())
        self.views: Views = ReadyViews()
        self._orders, self._draws = orders, draws

    def stream(self, *names: str | int) -> np.random.Generator:
        """The order of an epoch or of the prototype pass, or what prototypes are augmented with."""
        purpose, *_, last = names
        if purpose == "prototype-batches":
            return Replay(self._orders[-1])
        return Replay((self._orders if purpose == "batches" else self._draws)[int(last)])


class ReadyViews(Views):
    """Images that are what the ViT sees already."""

    def __init__(self) -> None:
        pass

    def train(self, images: Array, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        """As they are."""
        return torch.from_numpy(images)


class Replay(np.random.Generator):
    """A generator that gives out a stored draw."""

    def __init__(self, draw: Array) -> None:
        super().__init__(np.random.PCG64(0))
        self._draw = draw

    def random(self, size: Any = None, dtype: Any = None, out: Any = None) -> Any:  # noqa: ARG002
        """The stored draw, if it has the shape that is asked for."""
        return self._stored(tuple(size))

    def permutation(self, x: Any, axis: int = 0) -> Any:  # noqa: ARG002
        """The stored order, if it is as long as is asked for."""
        return self._stored((x,))

    def _stored(self, shape: tuple[int, ...]) -> Array:
        if shape != self._draw.shape:
            raise ValueError(f"a draw of shape {shape} was asked for, the stored one is {self._draw.shape}")
        return self._draw


def check_client_round(fixture: Fixture, backbone: Backbone, class_mask: Array) -> Iterator[Deviation]:
    """`client_round.npz`: epochs that are shuffled anew and inject the server's prototypes, Adam going on
    between them, and then the client's own prototypes."""
    model = ReferenceModel(backbone, fixture.under("param."), class_mask, fixture.number("pull_coeff"))
    raw = RawBatches(
        fixture["x"],
        fixture["y"],
        int(fixture["batch_size"]),
        list(fixture["order"]),
        fixture["available_classes"],
    )
    known = table_of(fixture, "global.")
    draws = [draw[np.argsort(fixture["global.classes"])] for draw in fixture["rand_u01"]]
    client = RecordedClient(model, int(fixture["task_id"]), raw, draws, fixture.number("lr"))
    update = client.fit(known)
    trained = {name: torch.from_numpy(np.array(value)) for name, value in update.arrays.items()}
    for name, ours in model.as_reference(trained, otherwise=model.state).items():
        yield compare(fixture, f"after_round.{name}", ours, TOLERANCE_AFTER_STEP)
    for epoch in ("first", "last"):
        yield compare(fixture, f"mean_loss.{epoch}", update.metrics[f"{epoch}_epoch_loss"])
    yield from check_table(fixture, "prototype.", Prototypes.from_arrays(update.arrays))


def check_table(fixture: Fixture, part: str, table: Prototypes) -> Iterator[Deviation]:
    """Classes, means and variances; ours are sorted by class."""
    order = np.argsort(fixture[f"{part}classes"])
    for name, ours in (("classes", table.classes), ("mu", table.mean), ("var", table.variance)):
        yield difference(fixture.name, f"{part}{name}", ours, fixture[f"{part}{name}"][order])
