"""Writes a run's figures as they come: metrics.jsonl, the accuracy matrix, the model, the plot."""

import json
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from pip_flower.storage.checkpoints import LogState
from pip_flower.config.sections import Config
from pip_flower.fidelity import fidelity_named
from pip_flower.storage.files import append_line, write_bytes, write_json, write_text
from pip_flower.metrics import AccuracyMatrix
from pip_flower.reporting.plots import plot_accuracy
from pip_flower.reporting.results import RunResult
from pip_flower.reporting.run_directory import RunDirectory
from pip_flower.rounds.observer import EvaluationRecord, Failure, Observer, RoundRecord


class RunLog(Observer):
    """A line is appended and flushed per event; the other files are replaced as a whole."""

    def __init__(self, directory: RunDirectory, config: Config) -> None:
        self.directory = directory
        self.config = config
        self.matrix = AccuracyMatrix(memory=fidelity_named(config.fidelity).remembers_accuracies)

    @property
    def state(self) -> LogState:
        """What the files hold."""
        written = self.directory.metrics.is_file()
        return LogState(
            self.directory.metrics.read_text(encoding="utf-8") if written else "", self.matrix.rows
        )

    def go_back(self, state: LogState) -> None:
        """Hold what was held then: nothing that was written since, and all that was lost since."""
        write_text(self.directory.metrics, state.metrics)
        self.matrix.rows = [list(row) for row in state.matrix]
        if self.matrix.rows:
            self._write_matrix()
        else:
            self.directory.matrix.unlink(missing_ok=True)

    def round_finished(self, record: RoundRecord) -> None:
        """One line."""
        self._append({"kind": "round", **asdict(record)})

    def task_evaluated(self, record: EvaluationRecord) -> None:
        """One line, and the matrix so far."""
        self._append({"kind": "evaluation", **asdict(record)})
        self.matrix.add(record.accuracies)
        self._write_matrix()

    def run_stopped(self, round_: int, reason: str, failures: list[Failure]) -> None:
        """One line, which a resumed run replaces by those of the round it then plays."""
        listed = [asdict(failure) for failure in failures]
        self._append({"kind": "stopped", "round": round_, "reason": reason, "failures": listed})

    def run_finished(self, arrays: dict[str, NDArray[Any]]) -> None:
        """The final model and the plot."""
        contiguous = {name: np.ascontiguousarray(value) for name, value in sorted(arrays.items())}
        about = {"config": self.config.digest(), "method": self.config.method.name}
        # One entry: safetensors writes several in an order that changes from process to process.
        metadata = {"pip-flower": json.dumps(about, sort_keys=True)}
        write_bytes(self.directory.model, save(contiguous, metadata=metadata))
        plot_accuracy([RunResult.read(self.directory.path)], self.directory.plot)

    def _append(self, values: dict[str, Any]) -> None:
        append_line(self.directory.metrics, json.dumps(values))

    def _write_matrix(self) -> None:
        write_json(self.directory.matrix, {"matrix": self.matrix.rows, **self.matrix.summary()})
