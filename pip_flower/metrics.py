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

    def forgetting(self) -> list[float]:
        """F_t for t = 2..T: mean over earlier tasks of the best accuracy so far minus the present."""
        return [
            _mean([max(row[i] for row in self._compared(i, t)) - self.rows[t][i] for i in range(t)])
            for t in range(1, len(self.rows))
        ]

    def _compared(self, task: int, now: int) -> list[list[float]]:
        """The evaluations of `task` up to `now`, or the present one alone."""
        return self.rows[task if self.memory else now : now + 1]

    def backward_transfer(self) -> float:
        """Mean over earlier tasks of the accuracy at the end minus the one when just learnt."""
        last = self.rows[-1]
        return _mean([last[i] - self.rows[i][i] for i in range(len(last) - 1)])

    def summary(self) -> dict[str, float | list[float]]:
        """Everything a report shows."""
        return {
            "after_task": self.after_task(),
            "average": self.average(),
            "last": self.last(),
            "performance_drop": self.performance_drop(),
            "forgetting": _mean(self.forgetting()),
            "backward_transfer": self.backward_transfer(),
        }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
