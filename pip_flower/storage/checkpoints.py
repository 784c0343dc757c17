"""Where a run stands after a round, on disk: everything needed to go on as if it had never stopped.

There is no state of random generators to keep: every stream is named after its purpose, round and client and
derives from the seed, which the configuration holds.
"""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pip_flower.config.sections import CheckpointConfig
from pip_flower.storage.checksummed import Checksummed, TornFileError, read_checksummed, write_checksummed
from pip_flower.storage.files import sweep
from pip_flower.storage.twin_lines import LinesPosition

# So that a torn newest one has a predecessor.
NEWEST_KEPT = 2
_NAME = re.compile(r"round-(\d+)\.ckpt")


@dataclass(frozen=True)
class RunState:
    """A strategy between two rounds: the global arrays, how often each client took part in the present task,
    and the last round in which each client's reply was merged."""

    round: int
    arrays: dict[str, NDArray[Any]]
    participations: dict[int, int]
    last_rounds: dict[int, int]


@dataclass(frozen=True)
class Checkpoint:
    """A run after a round; `config` is the whole configuration, `lengths` the rounds of each task, `metrics`
    how far metrics.jsonl went."""

    run: str
    config: dict[str, Any]
    lengths: tuple[int, ...]
    state: RunState
    metrics: LinesPosition

    def facts(self) -> dict[str, Any]:
        """Everything but the arrays, as JSON has it."""
        return {
            "run": self.run,
            "round": self.state.round,
            "lengths": list(self.lengths),
            "participations": {str(k): v for k, v in self.state.participations.items()},
            "last_rounds": {str(k): v for k, v in self.state.last_rounds.items()},
            "metrics": asdict(self.metrics),
            "config": self.config,
        }

    @classmethod
    def from_file(cls, stored: Checksummed) -> "Checkpoint":
        """The inverse of `facts`, with the arrays."""
        facts = stored.facts
        state = RunState(
            round=facts["round"],
            arrays=stored.arrays,
            participations={int(k): v for k, v in facts["participations"].items()},
            last_rounds={int(k): v for k, v in facts["last_rounds"].items()},
        )
        metrics = LinesPosition(**facts["metrics"])
        return cls(facts["run"], facts["config"], tuple(facts["lengths"]), state, metrics)


class CheckpointStore:
    """The checkpoints of one run: `round-000012.ckpt` and so on."""

    def __init__(self, directory: Path, config: CheckpointConfig) -> None:
        self.directory = directory
        self.config = config
        directory.mkdir(exist_ok=True)
        sweep(directory)

    def save(self, checkpoint: Checkpoint) -> int:
        """Write one and drop those that need not be kept; returns its size in bytes."""
        path = self.directory / f"round-{checkpoint.state.round:06}.ckpt"
        size = write_checksummed(path, checkpoint.state.arrays, checkpoint.facts())
        for round_ in self.rounds()[:-NEWEST_KEPT]:
            if not self._kept(round_):
                self._path(round_).unlink()
        return size

    def rounds(self) -> list[int]:
        """The rounds there are checkpoints of, torn ones included, oldest first."""
        found = (_NAME.fullmatch(path.name) for path in self.directory.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def intact(self) -> Iterator[Checkpoint]:
        """Whole checkpoints, newest first; says which ones are not."""
        for round_ in reversed(self.rounds()):
            try:
                yield Checkpoint.from_file(read_checksummed(self._path(round_)))
            except TornFileError as error:
                print(f"pip-flower: warning: {error}; the checkpoint before it is used", flush=True)

    def forget_after(self, round_: int) -> None:
        """Drop the checkpoints of a future that will be played again."""
        for later in self.rounds():
            if later > round_:
                self._path(later).unlink()

    def _path(self, round_: int) -> Path:
        return self.directory / f"round-{round_:06}.ckpt"

    def _kept(self, round_: int) -> bool:
        every = {"last": 0, "all": 1, "every": self.config.every}[self.config.keep]
        return every > 0 and round_ % every == 0
