"""A whole run inside the test process."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pip_flower.config.compose import Selection
from pip_flower.method.configuration import load_config
from pip_flower.method.registry import make_method
from pip_flower.method.round import Round
from pip_flower.method.workspace import shared_workspace
from pip_flower.rounds.observer import EvaluationRecord, Observer, RoundRecord
from pip_flower.rounds.strategy import TaskStrategy
from pip_flower.storage.checksummed import read_checksummed
from support.local_grid import LocalGrid


@dataclass
class Notes(Observer):
    """Keeps what a strategy tells."""

    rounds: list[RoundRecord] = field(default_factory=list)
    evaluations: list[EvaluationRecord] = field(default_factory=list)
    replies: list[tuple[int, int, int]] = field(default_factory=list)
    final: dict[str, NDArray[Any]] = field(default_factory=dict)

    def client_replied(self, round_: Round, done: int, expected: int) -> None:
        self.replies.append((round_.number, done, expected))

    def round_finished(self, record: RoundRecord) -> None:
        self.rounds.append(record)

    def task_evaluated(self, record: EvaluationRecord) -> None:
        self.evaluations.append(record)

    def run_finished(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.final = dict(arrays)


def strategy_for(run_config: dict[str, Any]) -> TaskStrategy:
    config = load_config(Selection.from_run_config(run_config))
    return TaskStrategy(make_method(shared_workspace(config)))


def play(run_config: dict[str, Any], grid: LocalGrid | None = None, notes: Notes | None = None) -> Notes:
    """All rounds on an in-process grid."""
    strategy = strategy_for(run_config)
    notes = notes or Notes()
    strategy.observer = notes
    strategy.run(grid or LocalGrid(strategy.config.federation.clients, run_config))
    return notes


def kept_by_clients(state_dir: Path) -> list[dict[str, NDArray[Any]]]:
    """What each client of the only run below `state_dir` keeps after its last round."""
    clients = sorted(state_dir.glob("*/client-*"))
    return [read_checksummed(max(client.glob("round-*.state"))).arrays for client in clients]


def digest(arrays: dict[str, NDArray[Any]]) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in arrays.items()}
