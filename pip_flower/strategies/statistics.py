"""Adds up what clients report, each client once per task, and solves at the end of a task."""

from pip_flower.methods.statistics import StatisticsMethod
from pip_flower.strategies.base import Contribution, TaskStrategy


class StatisticsStrategy(TaskStrategy):
    """Serves closed-form methods."""

    method: StatisticsMethod

    def addressed(self, drawn: list[int]) -> list[int]:
        """Only clients that have not reported in this task: counting one twice would skew the sums."""
        return [partition for partition in drawn if partition not in self._participations]

    def merge(self, task: int, contributions: list[Contribution]) -> None:
        """Sums of sums, in partition order."""
        for name in self.method.returned(task):
            for contribution in contributions:
                self.arrays[name] = self.arrays[name] + contribution.update.arrays[name]

    def end_task(self, task: int) -> None:
        """The classifier of all tasks seen."""
        self.arrays |= self.method.solve(task + 1, self.arrays)
