"""Who holds which samples of a task; a pure function of the configuration and the labels."""

import numpy as np
from numpy.typing import NDArray

from pip_flower.config import Config
from pip_flower.data.tasks import TaskSplit
from pip_flower.runtime import stream
from pip_flower.schema import ConfigError


def partition_task(
    config: Config, tasks: TaskSplit, labels: NDArray[np.int64], task: int, part: str
) -> list[NDArray[np.int64]]:
    """Rows of `labels` that each client holds in `task`: disjoint, complete, the same on every machine.

    `part` ("train" or "test") names the stream that deals the samples; who holds a class is common to
    both, so a client is tested on the classes it trained.
    """
    classes = tasks.classes[task]
    held = holders(config, len(classes), task)
    dealer = stream(config.seed, "partition", task, part)
    hands: list[list[NDArray[np.int64]]] = [[] for _ in range(config.federation.clients)]
    for column, label in enumerate(classes):
        rows = dealer.permutation(np.flatnonzero(labels == label))
        owners = dealer.permutation(np.flatnonzero(held[:, column]))
        for owner, share in zip(owners, np.array_split(rows, len(owners)), strict=True):
            hands[owner].append(share)
    return [np.sort(np.concatenate(hand)) for hand in hands]


def require_samples(parts: list[NDArray[np.int64]], task: int) -> None:
    """Refuse a partition that leaves a client with nothing to learn from."""
    empty = [client for client, rows in enumerate(parts) if len(rows) == 0]
    if empty:
        raise ConfigError(
            "federation.clients",
            f"task {task + 1} has too few samples: clients {empty} would get none",
            "Use fewer clients, fewer tasks or more data",
        )


def drawn_classes(config: Config, tasks: TaskSplit, task: int, partition: int, round_: int) -> list[int]:
    """The classes that a client of the released code draws in a round: a fraction eta of the task's."""
    classes = tasks.classes[task]
    wanted = max(1, round(config.partition.class_fraction * len(classes)))
    rng = stream(config.seed, "drawn-classes", round_, partition)
    return sorted(int(label) for label in rng.choice(classes, wanted, replace=False))


def holders(config: Config, classes: int, task: int) -> NDArray[np.bool_]:
    """Which client holds which class of the task: [clients, classes].

    Each client draws the fraction eta of the classes; where eta times the classes is not whole, the
    number is rounded up or down at random so that it is right on average.
    """
    clients = config.federation.clients
    if config.partition.scheme == "iid":
        return np.ones((clients, classes), dtype=np.bool_)
    rng = stream(config.seed, "holders", task)
    share = config.partition.class_fraction * classes
    held = np.zeros((clients, classes), dtype=np.bool_)
    for client in range(clients):
        # The tolerance keeps 0.6 * 10 at six although the product may fall a hair short of it.
        wanted = int(np.floor(share + 1e-9))
        wanted += int(rng.random() < share - wanted - 1e-9)
        held[client, rng.permutation(classes)[: max(1, wanted)]] = True
    for column in np.flatnonzero(~held.any(axis=0)):
        # Every sample belongs to somebody: a class nobody drew goes to the client with fewest classes.
        held[int(held.sum(axis=1).argmin()), column] = True
    return held
