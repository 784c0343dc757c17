"""The stream of tasks: which classes arrive when."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pip_flower.config.sections import Config
from pip_flower.runtime.streams import stream


@dataclass(frozen=True)
class TaskSplit:
    """`classes[t]` are the labels that task t brings; disjoint, in the order they arrive."""

    classes: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.classes)

    def seen(self, tasks: int) -> tuple[int, ...]:
        """Labels of the first `tasks` tasks; a column of the concatenated logits each."""
        return tuple(label for task in self.classes[:tasks] for label in task)

    def rows(self, labels: NDArray[np.int64], task: int) -> NDArray[np.int64]:
        """Positions of the samples of `task`."""
        return np.flatnonzero(np.isin(labels, self.classes[task]))

    def targets(self, labels: NDArray[np.int64], task: int) -> NDArray[np.int64]:
        """Labels of `task` as positions among the task's classes."""
        return _positions(labels, self.classes[task])

    def positions(self, labels: NDArray[np.int64], tasks: int) -> NDArray[np.int64]:
        """Labels of the first `tasks` tasks as positions among all classes seen by then."""
        return _positions(labels, self.seen(tasks))


def _positions(labels: NDArray[np.int64], classes: tuple[int, ...]) -> NDArray[np.int64]:
    position = {label: index for index, label in enumerate(classes)}
    return np.array([position[int(label)] for label in labels], dtype=np.int64)


def split_tasks(config: Config) -> TaskSplit:
    """Equal tasks, or a base task and equal increments; classes in label order, shuffled by the seed, or
    in the order given."""
    order = np.arange(config.dataset.classes)
    if config.dataset.class_order == "seed":
        order = stream(config.seed, "class-order").permutation(order)
    if config.dataset.class_order == "given":
        order = np.array(config.dataset.given_order)
    base = config.schedule.base_classes
    parts = np.split(order[base:], config.schedule.tasks - (base > 0))
    if base:
        parts = [order[:base], *parts]
    return TaskSplit(tuple(tuple(int(label) for label in part) for part in parts))
