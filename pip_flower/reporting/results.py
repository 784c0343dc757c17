"""A finished run read back from its directory."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import flat, is_neutral
from pip_flower.fidelity import fidelity_named
from pip_flower.metrics import AccuracyMatrix
from pip_flower.reporting.run_directory import RunDirectory
from pip_flower.reporting.traffic import RunTraffic

# What the configuration only names a file of.
WEIGHTS = "weights of the backbone"
_DAMAGED = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, yaml.YAMLError)


class UnusableRunError(ConfigError):
    """A directory that is no run, no finished one, or none that can be read."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__("RUN_DIR", problem, remedy)


@dataclass(frozen=True)
class RunResult:
    """What tables and plots show of a run; `own` are accuracies on clients' own classes, where they predict
    with private heads."""

    path: Path
    experiment: str
    method: str
    seed: int
    selection: str
    matrix: AccuracyMatrix
    own: AccuracyMatrix | None
    traffic: RunTraffic
    seconds: float
    failures: Counter[str]
    # The share of a client's samples that it keeps for rehearsal, if it keeps any.
    kept_share: float | None = None
    # All that the result depends on, but the seed and the images; what identifies those, if the server had
    # them, and where they were; when it began; and the row of a table that it belongs to.
    settings: Mapping[str, Any] = field(default_factory=dict)
    images: str = ""
    data_dir: str = ""
    started: str = ""
    row: str = ""

    @classmethod
    def read(cls, path: Path) -> "RunResult":
        """From a run directory; an error tells what is missing or wrong."""
        directory = RunDirectory(path)
        needed = (
            directory.config,
            directory.environment,
            directory.metrics,
            directory.matrix,
            directory.model,
        )
        for file in needed:
            if not file.is_file():
                raise UnusableRunError(
                    f"{path} is not a finished run: it has no {file.name}",
                    "Give the directories of runs; one that was interrupted goes on with "
                    "`pip-flower run --resume`",
                )
        try:
            return cls._read(directory)
        except _DAMAGED as error:
            told = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'nothing more'}"
            raise UnusableRunError(
                f"{path} is damaged ({told})", "Restore its files, or run it again"
            ) from None

    @classmethod
    def _read(cls, directory: RunDirectory) -> "RunResult":
        config = yaml.safe_load(directory.config.read_text(encoding="utf-8"))
        lines = directory.lines()
        if not any(line["kind"] == "round" for line in lines):
            raise ValueError(f"{directory.metrics.name} has no round")
        about = directory.read_environment()
        tasks = config["schedule"]["tasks"]
        remembers = fidelity_named(config["fidelity"]).remembers_accuracies
        stored = json.loads(directory.matrix.read_text(encoding="utf-8"))
        own = stored.get("own_classes")
        return cls(
            path=directory.path,
            experiment=config["experiment"],
            method=config["method"]["label"],
            seed=config["seed"],
            selection=_selection(config),
            matrix=AccuracyMatrix(_rows(stored, tasks), remembers),
            own=AccuracyMatrix(_rows(own, tasks), remembers) if own else None,
            traffic=RunTraffic.of(lines),
            seconds=sum(line["seconds"] for line in lines),
            failures=_failures(lines),
            kept_share=_kept_share(lines),
            settings=_settings(config) | {WEIGHTS: about["backbone"]},
            images=str(about.get("data", "")),
            data_dir=config["dataset"]["data_dir"],
            started=str(about["started"]),
            row=config["method"]["label"],
        )


def _rows(stored: dict[str, Any], tasks: int) -> list[list[float]]:
    rows = [[float(accuracy) for accuracy in row] for row in stored["matrix"]]
    if [len(row) for row in rows] != list(range(1, tasks + 1)):
        raise ValueError(f"accuracy.json does not hold the accuracies of {tasks} tasks")
    return rows


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in flat(config) if not is_neutral(key) and key != "seed"}


def _failures(lines: list[dict[str, Any]]) -> Counter[str]:
    """How often a reply was not used, by reason; numbers in a reason make no new one."""
    reasons = (failure["reason"] for line in lines for failure in line.get("failures", []))
    return Counter(re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "#", reason) for reason in reasons)


def _kept_share(lines: list[dict[str, Any]]) -> float | None:
    """How much of their data clients keep as exemplars in the end; None if they keep none."""
    metrics = [line["metrics"] for line in lines if line["kind"] == "round"]
    shares: list[float] = [found["kept_share"] for found in metrics if "kept_share" in found]
    return shares[-1] if shares else None


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
    """Results grouped by the row they belong to (a method, or one of several settings of it), in order of
    first appearance."""
    groups: dict[str, list[RunResult]] = {}
    for result in results:
        groups.setdefault(result.row, []).append(result)
    return groups
