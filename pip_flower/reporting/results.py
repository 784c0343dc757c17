"""A finished run read back from its directory."""

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pip_flower.fidelity import fidelity_named
from pip_flower.metrics import AccuracyMatrix
from pip_flower.reporting.run_directory import RunDirectory


@dataclass(frozen=True)
class RunResult:
    """What tables and plots show of a run."""

    path: Path
    experiment: str
    method: str
    seed: int
    selection: str
    matrix: AccuracyMatrix
    bytes_up: float
    bytes_down: float
    seconds: float
    failures: Counter[str]

    @classmethod
    def read(cls, path: Path) -> "RunResult":
        """From a run directory; an error names what is missing."""
        directory = RunDirectory(path)
        for needed in (directory.config, directory.metrics, directory.matrix):
            if not needed.is_file():
                raise FileNotFoundError(
                    f"{path} is not a finished run: it has no {needed.name}. Give the directories of runs; "
                    "one that was interrupted goes on with `pip-flower run --resume`"
                )
        config = yaml.safe_load(directory.config.read_text(encoding="utf-8"))
        lines = directory.lines()
        rounds = [line for line in lines if line["kind"] == "round"]
        return cls(
            path=path,
            experiment=config["experiment"],
            method=config["method"]["label"],
            seed=config["seed"],
            selection=_selection(config),
            matrix=AccuracyMatrix(
                json.loads(directory.matrix.read_text())["matrix"],
                memory=fidelity_named(config["fidelity"]).remembers_accuracies,
            ),
            bytes_up=sum(line["bytes_up"] for line in rounds) / len(rounds),
            bytes_down=sum(line["bytes_down"] for line in rounds) / len(rounds),
            seconds=sum(line["seconds"] for line in lines),
            failures=_failures(lines),
        )


def _failures(lines: list[dict[str, Any]]) -> Counter[str]:
    """How often a reply was not used, by reason; numbers in a reason make no new one."""
    reasons = (failure["reason"] for line in lines for failure in line.get("failures", []))
    return Counter(re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "#", reason) for reason in reasons)


def _selection(config: dict[str, Any]) -> str:
    """How prompts were chosen at test time (a vote over the batch gives the task away); empty without any."""
    prompt = config["method"].get("prompt")
    if prompt is None or "selection" not in prompt:
        return ""
    if config["method"]["name"] == "joint" and prompt["structure"] == "dualprompt":
        # All tasks share one slot: there is nothing to choose.
        return ""
    return "batch" if config["fidelity"] == "released" else str(prompt["selection"])


def by_method(results: list[RunResult]) -> dict[str, list[RunResult]]:
    """Results grouped by method, in order of first appearance."""
    groups: dict[str, list[RunResult]] = {}
    for result in results:
        groups.setdefault(result.method, []).append(result)
    return groups
