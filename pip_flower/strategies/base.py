"""The task-aware Flower strategy that every method plugs into.

`rounds.py` drives it. The base class knows the task of a round, draws clients from a named random stream, and
hands valid answers to `merge` in partition order, so that neither node ids nor the order of arrival can
change a result.
"""

import time
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from pip_flower.checkpoint import RunState
from pip_flower.evaluation import Score, evaluate
from pip_flower.methods.base import Arrays, ClientUpdate, Method, pick
from pip_flower.records import from_record, to_record
from pip_flower.runtime import stream
from pip_flower.schedule import Schedule
from pip_flower.strategies.answers import read_scores, read_update
from pip_flower.strategies.figures import added, evaluation_record, round_record
from pip_flower.strategies.inquiry import Inquiry
from pip_flower.strategies.observer import Failure, Observer
from pip_flower.strategies.roster import FederationError, Roster, TooFewAnswersError, able_clients
from pip_flower.strategies.rounds import ATTEMPT, play_round
from pip_flower.strategies.watched_grid import WatchedGrid, ignore_reply

T = TypeVar("T")


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
        self.observer = Observer()
        where = self.config.evaluation.where
        self._clients_evaluate = where == "clients" or method.predicts_on_clients()
        # What nodes say they hold, once they are met.
        self._held: dict[int, dict[int, int]] = {}
        self._rounds_done = 0
        self._participations: dict[int, int] = {}
        # The last round in which each client's answer was merged: what a client goes on from.
        self._merged: dict[int, int] = {}
        self._attempt = 0
        self._excused = 0
        self._failures: list[Failure] = []
        self._round_began = 0.0

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

    def run(self, grid: Grid) -> None:
        """Find the clients and play all rounds."""
        self.meet(grid, uuid.uuid4().hex)
        self.play()

    def meet(self, grid: Grid, run: str) -> Roster:
        """Find the clients; `run` identifies the run to them, also after an interruption."""
        if not self._clients_evaluate:
            self.method.bench.check_data()
        self._grid, self._run = WatchedGrid(grid), run
        expected = {"config": self.config.digest(), "backbone": self.method.fingerprint()}
        self._roster = Roster(self._grid, self.config.federation, expected, run, self._grid.poll_seconds)
        self._held = self._roster.held
        self._roster.gather()
        return self._roster

    def restore(self, state: RunState, schedule: Schedule) -> None:
        """Stand where a run stood after a round."""
        self.schedule = schedule
        self._rounds_done, self.arrays = state.round, dict(state.arrays)
        self._participations, self._merged = dict(state.participations), dict(state.merged)

    def play(self) -> None:
        """All rounds that are left."""
        federation = self.config.federation
        arrays = to_record(self.arrays)
        for round_ in range(self._rounds_done + 1, self.schedule.rounds + 1):
            try:
                arrays = play_round(
                    self,
                    self._grid,
                    round_,
                    arrays,
                    timeout=federation.round_timeout,
                    retries=federation.round_retries,
                    evaluate=self._evaluate_on_server,
                )
            except FederationError as error:
                self.observer.run_stopped(round_, str(error), self._failures)
                raise
            self._rounds_done = round_
            state = RunState(round_, dict(self.arrays), dict(self._participations), dict(self._merged))
            self.observer.round_closed(state)
        self.observer.run_finished(self.arrays)

    def draw_clients(self, round_: int, attempt: int = 0) -> list[int]:
        """L of the partitions that hold samples of the round's task; depends on the seed, the round and,
        where it is repeated, the attempt."""
        able = self._able(self.schedule.task_of(round_))
        rng = stream(self.config.seed, "sampling", round_, *([attempt] if attempt else []))
        drawn = rng.choice(able, min(len(able), self.config.federation.clients_per_round), replace=False)
        return sorted(int(partition) for partition in drawn)

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,  # noqa: ARG002
        config: ConfigRecord,
        grid: Grid,  # noqa: ARG002
    ) -> list[Message]:
        """Start a task when its first round comes, draw clients and address them."""
        task = self.schedule.task_of(server_round)
        self._attempt = int(str(config.get(ATTEMPT, 0)))
        if self._attempt == 0:
            self._failures, self._round_began = [], time.monotonic()
            self._grid.reset_counts()
            if self.schedule.starts_task(server_round):
                self.arrays |= self.method.start_task(task, self.arrays)
                self._participations = {}
        self._roster.require(self.config.federation.min_clients)
        rng = stream(self.config.seed, "stand-ins", server_round, self._attempt)
        wished = self.draw_clients(server_round, self._attempt)
        candidates = self._roster.present(wished, self._able(task), rng)
        drawn = self.addressed(candidates)
        # Drawn, but done with the task: as good as an answer.
        self._excused = len(candidates) - len(drawn)
        self.observer.round_started(server_round, task, drawn)
        self._grid.on_reply = partial(self.observer.client_replied, server_round)
        return self._ask(MessageType.TRAIN, drawn, server_round, self.to_send(task))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Merge the valid answers in partition order, whatever the order they came in."""
        task = self.schedule.task_of(server_round)
        limits = self.config.validation
        updates, failures = self._read(
            replies, lambda answer: read_update(answer, self.method, task, self.arrays, limits)
        )
        self._failures += failures
        self._require_enough(server_round, len(updates))
        contributions = []
        for partition, update in updates.items():
            self._participations[partition] = self._participations.get(partition, 0) + 1
            self._merged[partition] = server_round
            contributions.append(Contribution(partition, self._participations[partition], update))
        if contributions:
            self.merge(task, contributions)
        if self.schedule.ends_task(server_round):
            self.end_task(task)
        attempts, began = self._attempt + 1, self._round_began
        record = round_record(server_round, task, updates, self._failures, attempts, self._grid, began)
        self.observer.round_finished(record)
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
        self._roster.refresh()
        everybody = sorted(self._roster.nodes)
        self._grid.on_reply = ignore_reply
        return self._ask(MessageType.EVALUATE, everybody, server_round, needed)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord:
        """Add up what the clients recognised of their own test samples."""
        tasks = self.schedule.task_of(server_round) + 1
        limits = self.config.validation
        self._attempt = 0
        answers, self._failures = self._read(replies, lambda answer: read_scores(answer, tasks, limits))
        if not answers:
            raise FederationError(f"round {server_round}: no client could test ({_listed(self._failures)})")
        return self._tell_scores(server_round, added(list(answers.values())), self._failures)

    def summary(self) -> None:
        """Flower's own loop asks for this; the run directory holds the configuration."""

    def _able(self, task: int) -> list[int]:
        return able_clients(self._held, self.config, task, self.method.bench.tasks.classes[task])

    def _read(
        self, replies: Iterable[Message], read: Callable[[RecordDict], T]
    ) -> tuple[dict[int, T], list[Failure]]:
        arrived = list(replies)
        for partition in self._inquiry.silent(arrived):
            self._roster.doubt(partition)
        return self._inquiry.read(arrived, read, self._attempt)

    def _require_enough(self, round_: int, answers: int) -> None:
        needed = min(self.config.federation.min_clients, len(self._inquiry) + self._excused)
        if answers + self._excused >= needed:
            return
        count = f"only {answers} of {needed} needed clients" if answers else "no client"
        attempts = f" in {self._attempt + 1} attempts" if self._attempt else ""
        raise TooFewAnswersError(f"round {round_}: {count} finished{attempts} ({_listed(self._failures)})")

    def _evaluate_on_server(self, server_round: int, arrays: ArrayRecord) -> None:
        if self._clients_evaluate or not self.schedule.ends_task(server_round):
            return
        self._round_began = time.monotonic()
        task = self.schedule.task_of(server_round)
        tests = [self.method.bench.test_samples(earlier) for earlier in range(task + 1)]
        needed = pick(from_record(arrays), self.method.predicting(task + 1))
        self._tell_scores(server_round, evaluate(self.method, needed, tests), [])

    def _tell_scores(self, round_: int, scores: list[Score], failures: list[Failure]) -> MetricRecord:
        task = self.schedule.task_of(round_)
        record = evaluation_record(round_, task, scores, failures, self._round_began)
        self.observer.task_evaluated(record)
        return MetricRecord({"accuracy": sum(record.accuracies) / len(record.accuracies)})

    def _ask(self, kind: str, partitions: list[int], round_: int, arrays: Arrays) -> list[Message]:
        about = {"round": round_, "task": self.schedule.task_of(round_), "run": self._run}
        self._inquiry = Inquiry(
            kind,
            {partition: self._roster.nodes[partition] for partition in partitions},
            arrays,
            lambda partition: {**about, "since": self._merged.get(partition, 0)},
            group=str(round_),
            ttl=self.config.federation.round_timeout,
        )
        return self._inquiry.messages()


def _listed(failures: list[Failure]) -> str:
    return "; ".join(map(str, failures))
