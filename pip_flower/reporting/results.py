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
from pip_flower.reporting.traffic import RunTraffic


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
    kept_share: float | None

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
        accuracies = json.loads(directory.matrix.read_text(encoding="utf-8"))
        remembers = fidelity_named(config["fidelity"]).remembers_accuracies
        own = accuracies.get("own_classes")
        return cls(
            path=path,
            experiment=config["experiment"],
            method=config["method"]["label"],
            seed=config["seed"],
            selection=_selection(config),
            matrix=AccuracyMatrix(accuracies["matrix"], remembers),
            own=AccuracyMatrix(own["matrix"], remembers) if own else None,
            traffic=RunTraffic.of(lines),
            seconds=sum(line["seconds"] for line in lines),
            failures=_failures(lines),
            kept_share=_kept_share(lines),
        )


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
    if prompt is None:
        return ""
    return "batch" if config["fidelity"] == "released" else str(prompt["selection"])


def by_method(results: list[RunResult]) -> dict[str, list[RunResult]]:
    """Results grouped by method, in order of first appearance."""
    groups: dict[str, list[RunResult]] = {}
    for result in results:
        groups.setdefault(result.method, []).append(result)
    return groups
