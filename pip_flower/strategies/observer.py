"""What a strategy tells those who watch it: progress, figures of a round, accuracies of a task."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True)
class RoundRecord:
    """One round. Bytes are means per client, counted from the serialised messages."""

    round: int
    task: int
    clients: list[int]
    failed: int
    samples: int
    metrics: dict[str, float]
    bytes_down: float
    bytes_up: float
    seconds: float


@dataclass(frozen=True)
class EvaluationRecord:
    """Accuracy in percent on each task seen, after a task's last round."""

    round: int
    task: int
    accuracies: list[float]
    samples: list[int]
    seconds: float


class Observer:
    """Override what is of interest; the default is to ignore it."""

    def round_started(self, round_: int, task: int, clients: list[int]) -> None:
        """`clients` (partition ids) were drawn for the round."""

    def client_replied(self, round_: int, done: int, expected: int) -> None:
        """`done` of the round's `expected` clients have answered."""

    def round_finished(self, record: RoundRecord) -> None:
        """The round's answers were merged."""

    def task_evaluated(self, record: EvaluationRecord) -> None:
        """The model was tested at the end of a task."""

    def run_finished(self, arrays: dict[str, NDArray[Any]]) -> None:
        """The last round is over; `arrays` are the final global model."""
