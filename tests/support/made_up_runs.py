"""Run directories as the server writes them, from made-up rounds."""

from pathlib import Path
from typing import Any

import numpy as np

from pip_flower.reporting.run_directory import RunDirectory
from pip_flower.reporting.run_log import RunLog
from pip_flower.rounds.observer import EvaluationRecord, RoundRecord, Traffic
from support.runs import strategy_for


def made_up_run(
    parent: Path, overrides: str = "", seed: int = 7, method: str = "ncm", data: str = "", drop: float = 10.0
) -> Path:
    """A finished run on digits that starts at 90 % and loses `drop` points with every task."""
    run_config: dict[str, Any] = {"method": method, "overrides": overrides, "seed": seed}
    strategy = strategy_for(run_config)
    directory = RunDirectory.create(parent, strategy.config, 42, strategy.method, run_config, data=data)
    log = RunLog(directory, strategy.config)
    for number in range(1, strategy.schedule.rounds + 1):
        round_ = strategy.schedule.round(number)
        sizes = Traffic(1, 30_000), Traffic(1, 20_000)
        log.round_finished(RoundRecord(number, round_.task, [0], 0, 50, {"x": 1.0}, *sizes, 1.5))
        if round_.ends_task:
            accuracies = [90.0 - drop * round_.task] * (round_.task + 1)
            tested = [9] * len(accuracies)
            log.task_evaluated(EvaluationRecord(number, round_.task, accuracies, tested, 0.5))
    log.run_finished({"general": np.ones((2, 3), np.float32)})
    return directory.path
