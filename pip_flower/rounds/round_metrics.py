"""The metrics of a round, of the end of a task and of an evaluation, as they are told to observers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pip_flower.method.evaluation import ClientScores, Score
from pip_flower.method.exchange import ClientUpdate
from pip_flower.method.round import Round
from pip_flower.rounds.observer import ConclusionRecord, EvaluationRecord, RoundRecord, Traffic


def round_record(round_: Round, updates: Mapping[int, ClientUpdate]) -> RoundRecord:
    """What clients (by partition) replied, as means over them."""
    return RoundRecord(
        round=round_.number,
        task=round_.task,
        clients=list(updates),
        failed=len(round_.failures),
        samples=sum(update.samples for update in updates.values()),
        metrics=_mean_metrics(updates),
        traffic_down=_traffic(round_.bytes_down),
        traffic_up=_traffic(round_.bytes_up),
        seconds=round_.seconds(),
        attempts=round_.attempt + 1,
        failures=round_.failures,
    )


def conclusion_record(round_: Round, updates: Mapping[int, ClientUpdate]) -> ConclusionRecord:
    """What clients did at the end of a task, as means over them."""
    return ConclusionRecord(
        round=round_.number,
        task=round_.task,
        clients=list(updates),
        samples=sum(update.samples for update in updates.values()),
        metrics=_mean_metrics(updates),
        traffic_down=_traffic(round_.bytes_down),
        traffic_up=_traffic(round_.bytes_up),
        seconds=round_.seconds(),
        failures=round_.failures,
    )


def evaluation_record(round_: Round, scores: Sequence[Score]) -> EvaluationRecord:
    """Accuracies on the tasks seen."""
    return EvaluationRecord(
        round=round_.number,
        task=round_.task,
        accuracies=[score.accuracy for score in scores],
        samples=[score.total for score in scores],
        seconds=round_.seconds(),
        failures=round_.failures,
        traffic_down=_traffic(round_.bytes_down),
        traffic_up=_traffic(round_.bytes_up),
    )


def clients_evaluation_record(round_: Round, scores: Sequence[ClientScores]) -> EvaluationRecord:
    """What clients recognised: with one model for all added up, with their own models the mean over them."""
    record = evaluation_record(round_, _added([found.all for found in scores]))
    if not any(found.own for found in scores):
        return record
    return replace(
        record,
        accuracies=_mean_accuracies([found.all for found in scores]),
        own_accuracies=_mean_accuracies([found.own for found in scores]),
    )


def _added(scores: Sequence[Sequence[Score]]) -> list[Score]:
    """Several clients' scores of each task as one."""
    return [
        Score(sum(s.correct for s in found), sum(s.total for s in found))
        for found in zip(*scores, strict=True)
    ]


def _mean_accuracies(scores: Sequence[Sequence[Score]]) -> list[float]:
    """The mean of several clients' accuracies on each task; those without test samples of it do not count."""
    tested = [[score.accuracy for score in found if score.total] for found in zip(*scores, strict=True)]
    return [sum(found) / len(found) if found else 0.0 for found in tested]


def _mean_metrics(updates: Mapping[int, ClientUpdate]) -> dict[str, float]:
    """Means of the metrics that all clients report."""
    reported = [update.metrics for update in updates.values()]
    names = sorted(set.intersection(*map(set, reported))) if reported else []
    return {name: sum(metrics[name] for metrics in reported) / len(reported) for name in names}


def _traffic(sizes: Sequence[int]) -> Traffic:
    return Traffic(len(sizes), sum(sizes))
