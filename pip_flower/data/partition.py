"""Who holds which samples of a task; a pure function of the configuration and the labels."""

import numpy as np
from numpy.typing import NDArray

from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import Config
from pip_flower.data.population import active_clients
from pip_flower.data.tasks import TaskSplit
from pip_flower.runtime.streams import stream

Rows = NDArray[np.int64]
Hands = list[list[Rows]]


def partition_task(config: Config, tasks: TaskSplit, labels: Rows, task: int, part: str) -> list[Rows]:
    """Rows of `labels` that each client holds in `task`: complete, disjoint (unless samples are shared), the
    same on every machine. Clients that do not learn the task hold none.

    `part` ("train" or "test") names the stream that deals the samples; who holds how much of a class is
    common to both, so a client is tested on what it trained.
    """
    deal = {"classes": _by_class, "iid": _by_class, "dirichlet": _by_dirichlet, "quantity": _by_quantity}
    hands = deal[config.partition.scheme](config, tasks, labels, task, part)
    nothing = np.zeros(0, dtype=np.int64)
    return [np.sort(np.concatenate([nothing, *hand])) for hand in hands]


def require_samples(config: Config, parts: list[Rows], task: int) -> None:
    """Refuse a partition that leaves a client with nothing to learn from."""
    empty = [int(client) for client in active_clients(config, task) if len(parts[client]) == 0]
    if empty:
        raise ConfigError(
            "federation.clients",
            f"task {task + 1} has too few samples: clients {empty} would get none",
            "Use fewer clients, fewer tasks, a more even partition or more data, or let such clients sit "
            "the task out with partition.empty=allow",
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
    held = np.zeros((config.federation.clients, classes), dtype=np.bool_)
    active = active_clients(config, task)
    if config.partition.scheme == "iid":
        held[active] = True
        return held
    rng = stream(config.seed, "holders", task)
    share = config.partition.class_fraction * classes
    for client in active:
        # The tolerance keeps 0.6 * 10 at six although the product may fall a hair short of it.
        wanted = int(np.floor(share + 1e-9))
        wanted += int(rng.random() < share - wanted - 1e-9)
        held[client, rng.permutation(classes)[: max(1, wanted)]] = True
    for column in np.flatnonzero(~held.any(axis=0)):
        # Every sample belongs to somebody: a class nobody drew goes to the client with fewest classes.
        held[active[held[active].sum(axis=1).argmin()], column] = True
    return held


def _by_class(config: Config, tasks: TaskSplit, labels: Rows, task: int, part: str) -> Hands:
    """A class's samples in equal shares to its holders, or all of them to each."""
    held = holders(config, len(tasks.classes[task]), task)
    shared = config.partition.scheme == "classes" and config.partition.samples == "shared"
    dealer = stream(config.seed, "partition", task, part)
    hands: Hands = [[] for _ in range(config.federation.clients)]
    for column, label in enumerate(tasks.classes[task]):
        rows = dealer.permutation(np.flatnonzero(labels == label))
        owners = dealer.permutation(np.flatnonzero(held[:, column]))
        shares = [rows] * len(owners) if shared else np.array_split(rows, len(owners))
        for owner, share in zip(owners, shares, strict=True):
            hands[owner].append(share)
    return hands


def _by_dirichlet(config: Config, tasks: TaskSplit, labels: Rows, task: int, part: str) -> Hands:
    """Each class in proportions drawn from a symmetric Dirichlet distribution."""
    active = active_clients(config, task)
    proportions = stream(config.seed, "dirichlet", task)
    dealer = stream(config.seed, "partition", task, part)
    hands: Hands = [[] for _ in range(config.federation.clients)]
    for label in tasks.classes[task]:
        wanted = proportions.dirichlet(np.full(len(active), config.partition.alpha))
        rows = dealer.permutation(np.flatnonzero(labels == label))
        for owner, share in zip(active, _cut(rows, wanted), strict=True):
            hands[owner].append(share)
    return hands


def _by_quantity(config: Config, tasks: TaskSplit, labels: Rows, task: int, part: str) -> Hands:
    """All classes alike, but in log-normal amounts: who has much has much in every task."""
    active = active_clients(config, task)
    sizes = stream(config.seed, "quantity").lognormal(0.0, config.partition.sigma, config.federation.clients)
    rows = stream(config.seed, "partition", task, part).permutation(tasks.rows(labels, task))
    hands: Hands = [[] for _ in range(config.federation.clients)]
    for owner, share in zip(active, _cut(rows, sizes[active]), strict=True):
        hands[owner].append(share)
    return hands


def _cut(rows: Rows, weights: NDArray[np.float64]) -> list[Rows]:
    """`rows` in consecutive shares proportional to `weights`, each within one of its exact size."""
    ends = np.cumsum(weights) / np.sum(weights) * len(rows)
    return np.split(rows, np.round(ends[:-1]).astype(np.int64))
