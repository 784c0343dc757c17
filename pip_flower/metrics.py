"""The accuracy matrix and what is derived from it (all in percent)."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class AccuracyMatrix:
    """`rows[t][i]` is the accuracy on task i after learning task t, for i <= t.

    Without `memory`, forgetting compares with nothing earlier, as in the released code.
    """

    rows: list[list[float]] = field(default_factory=list)
    memory: bool = True

    def add(self, accuracies: Sequence[float]) -> None:
        """Record the accuracies on every task seen so far, after one more task."""
        if len(accuracies) != len(self.rows) + 1:
            raise ValueError(f"expected {len(self.rows) + 1} accuracies, got {len(accuracies)}")
        self.rows.append(list(accuracies))

    def after_task(self) -> list[float]:
        """A_t: mean accuracy over the tasks seen, after each task."""
        return [_mean(row) for row in self.rows]

    def average(self) -> float:
        """Avg: mean of A_t over tasks."""
        return _mean(self.after_task())

    def last(self) -> float:
        """A_T."""
        return self.after_task()[-1]

    def performance_drop(self) -> float:
        """PD = A_1 - A_T."""
        return self.after_task()[0] - self.last()

    def forgetting_by_task(self) -> list[list[float]]:
        """For t = 2..T and each earlier task: the best of its accuracies before t minus the one after t;
        negative if the task has gained."""
        return [
            [self._best_before(now, task) - self.rows[now][task] for task in range(now)]
            for now in range(1, len(self.rows))
        ]

    def forgetting(self) -> list[float]:
        """F_t for t = 2..T: the mean over earlier tasks."""
        return [_mean(lost) for lost in self.forgetting_by_task()]

    def _best_before(self, now: int, task: int) -> float:
        """The best accuracy on `task` in earlier evaluations; without memory, the present one."""
        earlier = self.rows[task:now] if self.memory else self.rows[now : now + 1]
        return max(row[task] for row in earlier)

    def backward_transfer(self) -> float:
        """Mean over earlier tasks of the accuracy at the end minus the one when just learnt."""
        last = self.rows[-1]
        return _mean([last[i] - self.rows[i][i] for i in range(len(last) - 1)])

    def summary(self) -> dict[str, float | list[float] | list[list[float]]]:
        """Everything a report shows."""
        return {
            "after_task": self.after_task(),
            "average": self.average(),
            "last": self.last(),
            "performance_drop": self.performance_drop(),
            "forgetting": _mean(self.forgetting()),
            "forgetting_after_task": self.forgetting(),
            "forgetting_by_task": self.forgetting_by_task(),
            "backward_transfer": self.backward_transfer(),
        }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
