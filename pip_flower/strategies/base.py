"""The task-aware Flower strategy that every method plugs into.

Flower's own round loop drives it. The base class knows the task of a round, draws clients from a named
random stream, and hands answers to `merge` in partition order, so that neither node ids nor the order
of arrival can change a result.
"""

import time
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from pip_flower.evaluation import Score, evaluate
from pip_flower.methods.base import ClientUpdate, Method, pick
from pip_flower.records import ARRAYS, METRICS, content, from_record, to_record
from pip_flower.runtime import stream
from pip_flower.schedule import Schedule
from pip_flower.strategies.observer import EvaluationRecord, Observer, RoundRecord
from pip_flower.strategies.roster import FederationError, Roster, find_clients
from pip_flower.strategies.watched_grid import WatchedGrid, ignore_reply

SAMPLES = "num-examples"


@dataclass(frozen=True)
class Contribution:
    """A client's answer, and how often it has taken part in the task (this round included)."""

    partition: int
    participations: int
    update: ClientUpdate


class TaskStrategy(Strategy):
    """Holds the global arrays of a run; subclasses say how answers are merged into them."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.config = method.bench.config
        self.schedule = Schedule.from_config(self.config.schedule)
        self.arrays: dict[str, NDArray[Any]] = {}
        self.observers: list[Observer] = []
        where = self.config.evaluation.where
        self._clients_evaluate = where == "clients" or method.predicts_on_clients()
        self._participations: dict[int, int] = {}
        self._roster = Roster({})
        self._round_began = 0.0
        self._drawn: list[int] = []

    @abstractmethod
    def merge(self, task: int, contributions: list[Contribution]) -> None:
        """Merge the answers of a round, sorted by partition, into `self.arrays`."""

    def addressed(self, drawn: list[int]) -> list[int]:
        """Those of the drawn clients that this round needs; by default all of them."""
        return drawn

    def end_task(self, task: int) -> None:
        """After a task's last round, before it is evaluated: whatever the server does on its own."""

    def to_send(self, task: int) -> dict[str, NDArray[Any]]:
        """What a client gets in order to train `task`."""
        return pick(self.arrays, self.method.sent_down(task))

    def run(self, grid: Grid) -> Result:
        """Find the clients and play all rounds."""
        if not self._clients_evaluate:
            self.method.bench.check_data()
        self._grid = WatchedGrid(grid)
        expected = {"config": self.config.digest(), "backbone": self.method.fingerprint()}
        self._roster = find_clients(self._grid, self.config.federation, expected)
        result = self.start(
            grid=self._grid,
            initial_arrays=to_record(self.arrays),
            num_rounds=self.schedule.rounds,
            timeout=self.config.federation.round_timeout,
            evaluate_fn=self._evaluate_on_server,
        )
        for observer in self.observers:
            observer.run_finished(self.arrays)
        return result

    def draw_clients(self, round_: int) -> list[int]:
        """L of the partitions that hold samples of the round's task; depends on the seed and the round."""
        task = self.schedule.task_of(round_)
        able = self._roster.able(self.config, task, self.method.bench.tasks.classes[task])
        rng = stream(self.config.seed, "sampling", round_)
        drawn = rng.choice(able, min(len(able), self.config.federation.clients_per_round), replace=False)
        return sorted(int(partition) for partition in drawn)

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,  # noqa: ARG002
        config: ConfigRecord,  # noqa: ARG002
        grid: Grid,  # noqa: ARG002
    ) -> list[Message]:
        """Start a task when its first round comes, draw clients and address them."""
        task = self.schedule.task_of(server_round)
        if self.schedule.starts_task(server_round):
            self.arrays |= self.method.start_task(task, self.arrays)
            self._participations = {}
        self._round_began = time.monotonic()
        self._drawn = self.addressed(self.draw_clients(server_round))
        self._grid.reset_counts()
        for observer in self.observers:
            observer.round_started(server_round, task, self._drawn)
        self._grid.on_reply = lambda done, expected: self._tell_reply(server_round, done, expected)
        return self._messages(MessageType.TRAIN, self._drawn, server_round, task, self.to_send(task))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Merge the answers in partition order, whatever the order they came in."""
        task = self.schedule.task_of(server_round)
        contributions, failures = self._contributions(replies)
        if self._drawn and not contributions:
            reasons = "; ".join(failures) or "nobody answered in time"
            raise FederationError(f"round {server_round}: no client finished ({reasons})")
        if contributions:
            self.merge(task, contributions)
        if self.schedule.ends_task(server_round):
            self.end_task(task)
        record = self._record(server_round, task, contributions)
        for observer in self.observers:
            observer.round_finished(record)
        return to_record(self.arrays), MetricRecord(dict(record.metrics))

    def configure_evaluate(
        self,
        server_round: int,
        arrays: ArrayRecord,  # noqa: ARG002
        config: ConfigRecord,  # noqa: ARG002
        grid: Grid,  # noqa: ARG002
    ) -> list[Message]:
        """After a task, all clients, where evaluation is theirs."""
        if not self._clients_evaluate or not self.schedule.ends_task(server_round):
            return []
        self._round_began = time.monotonic()
        task = self.schedule.task_of(server_round)
        needed = pick(self.arrays, self.method.predicting(task + 1))
        everybody = sorted(self._roster.nodes)
        self._grid.on_reply = ignore_reply
        return self._messages(MessageType.EVALUATE, everybody, server_round, task, needed)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Add up what the clients recognised of their own test samples."""
        answers = [reply.content.metric_records[METRICS] for reply in replies if reply.has_content()]
        if not answers:
            return None
        scores = [
            Score(
                sum(int(str(answer[f"correct.{task}"])) for answer in answers),
                sum(int(str(answer[f"total.{task}"])) for answer in answers),
            )
            for task in range(self.schedule.task_of(server_round) + 1)
        ]
        return self._tell_scores(server_round, scores)

    def summary(self) -> None:
        """Flower asks for this before the first round; the run directory holds the configuration."""

    def _evaluate_on_server(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if self._clients_evaluate or server_round == 0 or not self.schedule.ends_task(server_round):
            return None
        self._round_began = time.monotonic()
        task = self.schedule.task_of(server_round)
        tests = [self.method.bench.test_samples(earlier) for earlier in range(task + 1)]
        needed = pick(from_record(arrays), self.method.predicting(task + 1))
        return self._tell_scores(server_round, evaluate(self.method, needed, tests))

    def _tell_scores(self, server_round: int, scores: list[Score]) -> MetricRecord:
        record = EvaluationRecord(
            round=server_round,
            task=self.schedule.task_of(server_round),
            accuracies=[score.accuracy for score in scores],
            samples=[score.total for score in scores],
            seconds=time.monotonic() - self._round_began,
        )
        for observer in self.observers:
            observer.task_evaluated(record)
        return MetricRecord({"accuracy": sum(record.accuracies) / len(record.accuracies)})

    def _tell_reply(self, round_: int, done: int, expected: int) -> None:
        for observer in self.observers:
            observer.client_replied(round_, done, expected)

    def _messages(
        self,
        kind: str,
        partitions: list[int],
        round_: int,
        task: int,
        arrays: dict[str, NDArray[Any]],
    ) -> list[Message]:
        ttl = self.config.federation.round_timeout
        return [
            Message(
                content(arrays, config={"round": round_, "task": task}),
                self._roster.nodes[partition],
                kind,
                ttl=ttl,
                group_id=str(round_),
            )
            for partition in partitions
        ]

    def _contributions(self, replies: Iterable[Message]) -> tuple[list[Contribution], list[str]]:
        found: dict[int, Message] = {}
        failures: list[str] = []
        for reply in replies:
            if reply.has_error():
                failures.append(str(reply.error.reason))
            else:
                found[self._roster.partition_of(reply.metadata.src_node_id)] = reply
        contributions = []
        for partition, reply in sorted(found.items()):
            self._participations[partition] = self._participations.get(partition, 0) + 1
            figures = dict(reply.content.metric_records[METRICS])
            samples = int(str(figures.pop(SAMPLES)))
            update = ClientUpdate(
                from_record(reply.content.array_records[ARRAYS]),
                samples,
                {name: float(str(value)) for name, value in figures.items()},
            )
            contributions.append(Contribution(partition, self._participations[partition], update))
        return contributions, failures

    def _record(self, round_: int, task: int, contributions: list[Contribution]) -> RoundRecord:
        figures = [contribution.update.metrics for contribution in contributions]
        names = sorted(figures[0]) if figures else []
        return RoundRecord(
            round=round_,
            task=task,
            clients=[contribution.partition for contribution in contributions],
            failed=len(self._drawn) - len(contributions),
            samples=sum(contribution.update.samples for contribution in contributions),
            metrics={name: sum(f[name] for f in figures) / len(figures) for name in names},
            bytes_down=_mean(self._grid.bytes_down),
            bytes_up=_mean(self._grid.bytes_up),
            seconds=time.monotonic() - self._round_began,
        )


def _mean(values: list[int]) -> float:
    return sum(values) / len(values) if values else 0.0
