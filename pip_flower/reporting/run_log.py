"""Writes a run's metrics as they come: metrics.jsonl, the accuracy matrix, the model, the plot."""

import json
from dataclasses import asdict
from typing import Any

import numpy as np
from safetensors.numpy import save

from pip_flower.arrays import NamedArrays
from pip_flower.config.sections import Config
from pip_flower.fidelity import fidelity_named
from pip_flower.method.round import Round
from pip_flower.metrics import AccuracyMatrix
from pip_flower.reporting.plots import plot_accuracy
from pip_flower.reporting.results import RunResult
from pip_flower.reporting.run_directory import RunDirectory
from pip_flower.rounds.observer import ConclusionRecord, EvaluationRecord, Observer, RoundRecord
from pip_flower.storage.files import write_bytes, write_json
from pip_flower.storage.twin_lines import LinesPosition, TwinLines


class RunLog(Observer):
    """A line is appended and flushed per event; the other files are replaced as a whole."""

    def __init__(self, directory: RunDirectory, config: Config) -> None:
        self.directory = directory
        self.config = config
        remembers = fidelity_named(config.fidelity).remembers_accuracies
        self.matrix = AccuracyMatrix(memory=remembers)
        self.own = AccuracyMatrix(memory=remembers)
        self._lines = TwinLines(directory.metrics, directory.metrics_copy)

    @property
    def position(self) -> LinesPosition:
        """How far metrics.jsonl goes."""
        return self._lines.position

    def go_back(self, position: LinesPosition) -> None:
        """Hold what was held then: nothing that was written since, and all that was lost since."""
        records = [json.loads(line) for line in self._lines.go_back(position)]
        evaluations = [record for record in records if record["kind"] == "evaluation"]
        self.matrix.rows = [record["accuracies"] for record in evaluations]
        self.own.rows = [record["own_accuracies"] for record in evaluations if record.get("own_accuracies")]
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
        if record.own_accuracies:
            self.own.add(record.own_accuracies)
        self._write_matrix()

    def task_concluded(self, record: ConclusionRecord) -> None:
        """One line."""
        self._append({"kind": "conclusion", **asdict(record)})

    def run_stopped(self, round_: Round, reason: str) -> None:
        """One line, which a resumed run replaces by those of the round it then plays."""
        listed = [asdict(failure) for failure in round_.failures]
        self._append({"kind": "stopped", "round": round_.number, "reason": reason, "failures": listed})

    def run_finished(self, arrays: NamedArrays) -> None:
        """The final model and the plot."""
        contiguous = {name: np.ascontiguousarray(value) for name, value in sorted(arrays.items())}
        about = {"config": self.config.digest(), "method": self.config.method.name}
        # One entry: safetensors writes several in an order that changes from process to process.
        metadata = {"pip-flower": json.dumps(about, sort_keys=True)}
        write_bytes(self.directory.model, save(contiguous, metadata=metadata))
        plot_accuracy([RunResult.read(self.directory.path)], self.directory.plot)

    def _append(self, values: dict[str, Any]) -> None:
        self._lines.append(json.dumps(values))

    def _write_matrix(self) -> None:
        found: dict[str, Any] = {"matrix": self.matrix.rows, **self.matrix.summary()}
        if self.own.rows:
            found["own_classes"] = {"matrix": self.own.rows, **self.own.summary()}
        write_json(self.directory.matrix, found)
