"""What a strategy tells those who watch it: progress, figures of a round, accuracies of a task."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from pip_flower.checkpoint import RunState


@dataclass(frozen=True)
class Failure:
    """A client whose answer was not used, and why."""

    client: int
    attempt: int
    reason: str

    def __str__(self) -> str:
        return f"client {self.client}: {self.reason}"


@dataclass(frozen=True)
class RoundRecord:
    """One round. Bytes are means per client, counted from the serialised messages; failures are those of all
    attempts."""

    round: int
    task: int
    clients: list[int]
    failed: int
    samples: int
    metrics: dict[str, float]
    bytes_down: float
    bytes_up: float
    seconds: float
    attempts: int = 1
    failures: list[Failure] = field(default_factory=list)


@dataclass(frozen=True)
class EvaluationRecord:
    """Accuracy in percent on each task seen, after a task's last round."""

    round: int
    task: int
    accuracies: list[float]
    samples: list[int]
    seconds: float
    failures: list[Failure] = field(default_factory=list)


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

    def round_closed(self, state: RunState) -> None:
        """The round, with whatever evaluation it brought, is over: a run can go on from `state`."""

    def run_stopped(self, round_: int, reason: str, failures: list[Failure]) -> None:
        """The round could not be finished, in any attempt."""

    def run_finished(self, arrays: dict[str, NDArray[Any]]) -> None:
        """The last round is over; `arrays` are the final global model."""


class Observers(Observer):
    """Several as one, told in their order."""

    def __init__(self, members: Sequence[Observer]) -> None:
        self.members = tuple(members)

    def round_started(self, round_: int, task: int, clients: list[int]) -> None:
        """Passed on, as all of them."""
        for member in self.members:
            member.round_started(round_, task, clients)

    def client_replied(self, round_: int, done: int, expected: int) -> None:
        """Passed on."""
        for member in self.members:
            member.client_replied(round_, done, expected)

    def round_finished(self, record: RoundRecord) -> None:
        """Passed on."""
        for member in self.members:
            member.round_finished(record)

    def task_evaluated(self, record: EvaluationRecord) -> None:
        """Passed on."""
        for member in self.members:
            member.task_evaluated(record)

    def round_closed(self, state: RunState) -> None:
        """Passed on."""
        for member in self.members:
            member.round_closed(state)

    def run_stopped(self, round_: int, reason: str, failures: list[Failure]) -> None:
        """Passed on."""
        for member in self.members:
            member.run_stopped(round_, reason, failures)

    def run_finished(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Passed on."""
        for member in self.members:
            member.run_finished(arrays)
