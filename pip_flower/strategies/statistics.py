"""Adds up what clients report, each client once per task, and solves at the end of a task."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pip_flower.aggregation import is_plain, robust_total
from pip_flower.methods.base import Arrays
from pip_flower.methods.statistics import Grouping, StatisticsMethod
from pip_flower.strategies.base import Contribution, TaskStrategy


class StatisticsStrategy(TaskStrategy):
    """Serves closed-form methods."""

    method: StatisticsMethod

    def addressed(self, drawn: list[int]) -> list[int]:
        """Only clients that have not reported in this task: counting one twice would skew the sums."""
        return [partition for partition in drawn if partition not in self._participations]

    def merge(self, task: int, contributions: list[Contribution]) -> None:
        """Sums of sums, in partition order; by a robust rule, among the clients of this round."""
        answers = [contribution.update.arrays for contribution in contributions]
        groups = {} if is_plain(self.config.aggregation) else self.method.groups(task)
        grouped = {name: self._robust(name, grouping, answers) for name, grouping in groups.items()}
        for name in set(self.method.returned(task)) - grouped.keys():
            for answer in answers:
                self.arrays[name] = self.arrays[name] + answer[name]
        self.arrays |= grouped

    def end_task(self, task: int) -> None:
        """The classifier of all tasks seen."""
        self.arrays |= self.method.solve(task + 1, self.arrays)

    def _robust(self, name: str, grouping: Grouping, answers: Sequence[Arrays]) -> NDArray[Any]:
        """The sum so far and a robust total of the answers, group by group."""
        so_far = self.arrays[name]
        axis = grouping.axis
        moved = so_far[None] if axis is None else np.moveaxis(so_far, axis, 0)

        def rows(array: NDArray[Any]) -> NDArray[Any]:
            groups = array[None] if axis is None else np.moveaxis(array, axis, 0)
            return groups.reshape(len(groups), -1)

        total = robust_total(
            [rows(answer[name]) for answer in answers],
            [answer[grouping.counts] for answer in answers],
            (rows(so_far), self.arrays[grouping.counts]),
            self.config.aggregation,
        ).reshape(moved.shape)
        return so_far + (total[0] if axis is None else np.moveaxis(total, 0, axis))
