"""What a strategy tells those who watch it: progress, metrics of a round, accuracies of a task."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pip_flower.arrays import NamedArrays
from pip_flower.method.round import Failure, Round
from pip_flower.storage.checkpoints import RunState


@dataclass(frozen=True)
class Traffic:
    """Messages in one direction, and the bytes of their contents as Flower serialises them."""

    messages: int = 0
    bytes: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.messages + other.messages, self.bytes + other.bytes)

    @property
    def per_message(self) -> float:
        """The mean; 0 if there is none."""
        return self.bytes / self.messages if self.messages else 0.0


@dataclass(frozen=True)
class RoundRecord:
    """One round; traffic and failures are those of all attempts."""

    round: int
    task: int
    clients: list[int]
    failed: int
    samples: int
    metrics: dict[str, float]
    traffic_down: Traffic
    traffic_up: Traffic
    seconds: float
    attempts: int = 1
    failures: list[Failure] = field(default_factory=list)


@dataclass(frozen=True)
class ConclusionRecord:
    """The clients' work at the end of a task; its traffic is apart from that of the round."""

    round: int
    task: int
    clients: list[int]
    samples: int
    metrics: dict[str, float]
    traffic_down: Traffic
    traffic_up: Traffic
    seconds: float
    failures: list[Failure] = field(default_factory=list)


@dataclass(frozen=True)
class EvaluationRecord:
    """Accuracy in percent on each task seen, after a task's last round.

    Where clients predict with what only they have, `accuracies` are means over them, `own_accuracies` the
    same on the classes that a client has training samples of; otherwise there are no own ones. `samples`
    counts an image as often as it was tested. There is traffic only where clients test.
    """

    round: int
    task: int
    accuracies: list[float]
    samples: list[int]
    seconds: float
    failures: list[Failure] = field(default_factory=list)
    own_accuracies: list[float] = field(default_factory=list)
    traffic_down: Traffic = Traffic()
    traffic_up: Traffic = Traffic()

    @property
    def accuracy(self) -> float:
        """The mean over tasks."""
        return sum(self.accuracies) / len(self.accuracies)


class Observer:
    """Override what is of interest; the default is to ignore it."""

    def round_started(self, round_: Round) -> None:
        """Clients (`round_.asked`) were drawn for the round; again for each attempt."""

    def client_replied(self, round_: Round, done: int, expected: int) -> None:
        """`done` of the round's `expected` clients have replied."""

    def round_finished(self, record: RoundRecord) -> None:
        """The round's replies were merged."""

    def task_concluded(self, record: ConclusionRecord) -> None:
        """Clients did their work at the end of a task; only of methods that have such."""

    def task_evaluated(self, record: EvaluationRecord) -> None:
        """The model was tested at the end of a task."""

    def round_closed(self, state: RunState) -> None:
        """The round, with whatever evaluation it brought, is over: a run can go on from `state`."""

    def run_stopped(self, round_: Round, reason: str) -> None:
        """The round could not be finished, in any attempt."""

    def run_finished(self, arrays: NamedArrays) -> None:
        """The last round is over; `arrays` are the final global model."""


class Observers(Observer):
    """Several as one: whatever is told, all of them are told, in their order."""

    def __init__(self, members: Sequence[Observer]) -> None:
        self.members = tuple(members)

    def _tell(self, event: str, *about: Any) -> None:
        for member in self.members:
            getattr(member, event)(*about)

    def round_started(self, round_: Round) -> None:
        self._tell("round_started", round_)

    def client_replied(self, round_: Round, done: int, expected: int) -> None:
        self._tell("client_replied", round_, done, expected)

    def round_finished(self, record: RoundRecord) -> None:
        self._tell("round_finished", record)

    def task_concluded(self, record: ConclusionRecord) -> None:
        self._tell("task_concluded", record)

    def task_evaluated(self, record: EvaluationRecord) -> None:
        self._tell("task_evaluated", record)

    def round_closed(self, state: RunState) -> None:
        self._tell("round_closed", state)

    def run_stopped(self, round_: Round, reason: str) -> None:
        self._tell("run_stopped", round_, reason)

    def run_finished(self, arrays: NamedArrays) -> None:
        self._tell("run_finished", arrays)
