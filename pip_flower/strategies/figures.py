"""The figures of a round and of an evaluation, as they are told to observers."""

import time
from collections.abc import Sequence

from pip_flower.evaluation import Score
from pip_flower.methods.base import ClientUpdate
from pip_flower.strategies.observer import EvaluationRecord, Failure, RoundRecord
from pip_flower.strategies.watched_grid import WatchedGrid


def round_record(
    round_: int,
    task: int,
    updates: dict[int, ClientUpdate],
    failures: list[Failure],
    attempts: int,
    grid: WatchedGrid,
    began: float,
) -> RoundRecord:
    """What clients (by partition) answered, as means over them."""
    figures = [update.metrics for update in updates.values()]
    names = sorted(set.intersection(*map(set, figures))) if figures else []
    return RoundRecord(
        round=round_,
        task=task,
        clients=list(updates),
        failed=len(failures),
        samples=sum(update.samples for update in updates.values()),
        metrics={name: sum(f[name] for f in figures) / len(figures) for name in names},
        bytes_down=_mean(grid.bytes_down),
        bytes_up=_mean(grid.bytes_up),
        seconds=time.monotonic() - began,
        attempts=attempts,
        failures=failures,
    )


def evaluation_record(
    round_: int, task: int, scores: Sequence[Score], failures: list[Failure], began: float
) -> EvaluationRecord:
    """Accuracies on the tasks seen."""
    return EvaluationRecord(
        round=round_,
        task=task,
        accuracies=[score.accuracy for score in scores],
        samples=[score.total for score in scores],
        seconds=time.monotonic() - began,
        failures=failures,
    )


def added(scores: Sequence[Sequence[Score]]) -> list[Score]:
    """Several clients' scores of each task as one."""
    return [
        Score(sum(s.correct for s in found), sum(s.total for s in found))
        for found in zip(*scores, strict=True)
    ]


def _mean(values: list[int]) -> float:
    return sum(values) / len(values) if values else 0.0
