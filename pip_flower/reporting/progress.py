"""Where a run is: as lines in the log, and as a small file that the command line shows live."""

import time
from collections.abc import Sequence
from typing import Any

from pip_flower.arrays import NamedArrays
from pip_flower.method.round import Round
from pip_flower.reporting.run_directory import RunDirectory
from pip_flower.rounds.observer import EvaluationRecord, Observer, RoundRecord
from pip_flower.rounds.schedule import Schedule
from pip_flower.storage.files import write_json

_PACE_ROUNDS = 5


class _Position(Observer):
    """Keeps count; `changed` is called after every event."""

    def __init__(self, schedule: Schedule, rounds_done: int = 0) -> None:
        self.schedule = schedule
        self._finished_at: list[float] = []
        self.round = rounds_done
        self.rounds_done = rounds_done
        self.clients_done = 0
        self.clients = 0
        self.accuracy: float | None = None

    def changed(self) -> None:
        """Show the position."""

    def round_started(self, round_: Round) -> None:
        """A new round."""
        self.round, self.clients_done, self.clients = round_.number, 0, len(round_.asked)
        self.changed()

    def client_replied(self, round_: Round, done: int, expected: int) -> None:  # noqa: ARG002
        """One more client is done."""
        self.clients_done = done
        self.changed()

    def round_finished(self, record: RoundRecord) -> None:
        """The round is merged."""
        self.rounds_done = record.round
        self._finished_at.append(time.monotonic())
        self.changed()

    def task_evaluated(self, record: EvaluationRecord) -> None:
        """A new accuracy."""
        self.accuracy = record.accuracy
        self.changed()

    def seconds_left(self) -> float | None:
        """At the pace of the latest rounds; the first is left out, as it pays for start-up."""
        latest = self._finished_at[-_PACE_ROUNDS - 1 :]
        if len(latest) < 2:
            return None
        pace = (latest[-1] - latest[0]) / (len(latest) - 1)
        return pace * (self.schedule.rounds - self.rounds_done)

    def as_mapping(self) -> dict[str, Any]:
        """What progress.json holds."""
        return {
            "task": self.schedule.task_of(max(1, self.round)) + 1,
            "task_done": self.schedule.task_of(max(1, self.rounds_done)) + 1,
            "tasks": self.schedule.tasks,
            "round": self.round,
            "rounds": self.schedule.rounds,
            "rounds_done": self.rounds_done,
            "clients_done": self.clients_done,
            "clients": self.clients,
            "accuracy": self.accuracy,
            "seconds_left": self.seconds_left(),
        }


class ProgressFile(_Position):
    """Rewrites progress.json after every event."""

    def __init__(self, directory: RunDirectory, schedule: Schedule, rounds_done: int = 0) -> None:
        super().__init__(schedule, rounds_done)
        self.path = directory.progress
        self.changed()

    def changed(self) -> None:
        """Replace the file."""
        write_json(self.path, self.as_mapping())

    def run_finished(self, arrays: NamedArrays) -> None:  # noqa: ARG002
        """The last word."""
        self.changed()


class ProgressLines(_Position):
    """Prints a line per round, for `flwr run --stream`."""

    def round_finished(self, record: RoundRecord) -> None:
        """One line."""
        super().round_finished(record)
        print(describe(self.as_mapping()), flush=True)

    def task_evaluated(self, record: EvaluationRecord) -> None:
        """One line with every task's accuracy."""
        super().task_evaluated(record)
        text = f"after task {record.task + 1}: {_listed(record.accuracies)}"
        if record.own_accuracies:
            text += f"; clients' own classes: {_listed(record.own_accuracies)}"
        print(text, flush=True)


def _listed(accuracies: Sequence[float]) -> str:
    listed = " ".join(f"{accuracy:.1f}" for accuracy in accuracies)
    return f"{sum(accuracies) / len(accuracies):.1f} % (by task: {listed})"


def describe(progress: dict[str, Any]) -> str:
    """One line for a person."""
    text = (
        f"task {progress['task']}/{progress['tasks']}  round {progress['round']}/{progress['rounds']}"
        f"  clients {progress['clients_done']}/{progress['clients']}"
    )
    if progress["accuracy"] is not None:
        text += f"  accuracy {progress['accuracy']:.1f} %"
    if progress["seconds_left"] is not None:
        minutes, seconds = divmod(round(progress["seconds_left"]), 60)
        text += f"  left {minutes}:{seconds:02d}"
    return text
