"""The rounds of a run, from top to bottom: every method plugs into this one loop.

It knows the task of a round, draws clients from a named random stream, and hands valid replies to the method
in partition order, so that neither node ids nor the order of arrival can change a result.
"""

import uuid
from functools import partial
from typing import Any

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from pip_flower.arrays import NamedArrays, pick
from pip_flower.flower.records import CONCLUDE, CONSTANT, PHASE
from pip_flower.method.base import Method
from pip_flower.method.evaluation import evaluate
from pip_flower.method.exchange import ClientUpdate, Contribution, Exchange
from pip_flower.method.registry import entry
from pip_flower.method.round import Round
from pip_flower.rounds.federation import Federation
from pip_flower.rounds.observer import ConclusionRecord, EvaluationRecord, Observer
from pip_flower.rounds.replies import read_scores, read_update
from pip_flower.rounds.requests import Requests, Work
from pip_flower.rounds.roster import FederationError, Roster, TooFewRepliesError, able_clients
from pip_flower.rounds.round_metrics import (
    clients_evaluation_record,
    conclusion_record,
    evaluation_record,
    round_record,
)
from pip_flower.rounds.schedule import Schedule
from pip_flower.runtime.streams import stream
from pip_flower.storage.checkpoints import RunState
from pip_flower.storage.checksummed import digest_of


class TaskLoop:
    """Holds the global arrays of a run; the method says how they change."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.config = method.config
        self.schedule = Schedule.from_config(self.config.schedule)
        self.observer = Observer()
        self.arrays: NamedArrays = {}
        self._rounds_done = 0
        # How often each client has taken part in the present task.
        self._participations: dict[int, int] = {}
        # The last round in which each client's reply was merged: what a client goes on from.
        self._last_rounds: dict[int, int] = {}
        self._clients_evaluate = method.tests_on_clients()
        self._met: Federation | None = None
        # Digests of the arrays that travel once per task, by task and exchange.
        self._digests: dict[tuple[int, Exchange], str] = {}

    @property
    def federation(self) -> Federation:
        """The clients, once `meet` has found them."""
        if self._met is None:
            raise FederationError("the strategy has not met its clients yet: call meet(grid) first")
        return self._met

    def run(self, grid: Grid) -> None:
        """Find the clients and play all rounds."""
        self.meet(grid)
        self.play()

    def meet(self, grid: Grid, run: str = "") -> Roster:
        """Find the clients; `run` identifies the run to them, also after an interruption."""
        workspace = self.method.workspace
        if not self._clients_evaluate:
            workspace.check_data()
        expected = {
            "config": self.config.digest(),
            "backbone": self.method.fingerprint(),
            "method": entry(self.config.method.name).package,
        }
        self._met = Federation(grid, self.config.federation, expected, run or uuid.uuid4().hex)
        self._met.roster.gather()
        return self._met.roster

    def data_digest(self) -> str:
        """Identifies the images that the run is tested on; empty where the server has none."""
        return "" if self._clients_evaluate else self.method.workspace.data.digest

    def restore(self, state: RunState, schedule: Schedule) -> None:
        """Stand where a run stood after a round."""
        self.schedule = schedule
        self._rounds_done, self.arrays = state.round, dict(state.arrays)
        self._participations, self._last_rounds = dict(state.participations), dict(state.last_rounds)

    def play(self) -> None:
        """All rounds that are left."""
        for number in range(self._rounds_done + 1, self.schedule.rounds + 1):
            round_ = self._begin(number)
            try:
                updates = self._train(round_)
                self._finish(round_, updates)
                if round_.ends_task:
                    self._evaluate(round_)
            except FederationError as error:
                self.observer.run_stopped(round_, str(error))
                raise
            self._close(round_)
        self.observer.run_finished(self.arrays)

    def _begin(self, number: int) -> Round:
        """A new round; the first one of a task starts the task."""
        round_ = self.schedule.round(number)
        # What was said between the rounds belongs to none.
        self.federation.take_counts()
        if round_.starts_task:
            self.arrays |= self.method.start_task(round_.task, self.arrays)
            self._participations = {}
        self.arrays |= self.method.start_round(round_.task, self.arrays)
        return round_

    def _train(self, round_: Round) -> dict[int, ClientUpdate]:
        """Ask, and ask others if too few have replied; what is merged in the end."""
        while True:
            requests = self._request_training(round_)
            replies = self.federation.replies(requests, partial(self.observer.client_replied, round_))
            try:
                return self._merge_training(round_, requests, replies)
            except TooFewRepliesError:
                if round_.attempt == self.config.federation.round_retries:
                    raise
                round_.attempt += 1

    def _finish(self, round_: Round, updates: dict[int, ClientUpdate]) -> None:
        """The work at the end of a task, the clients' and then the server's; and tell how the round went."""
        round_.bytes_down, round_.bytes_up = self.federation.take_counts()
        concluded: ConclusionRecord | None = None
        if round_.ends_task:
            if self.method.conclusion is not None:
                concluded = self._conclude(round_, self.method.conclusion)
            self.arrays |= self.method.end_task(round_.task, self.arrays)
        self.observer.round_finished(round_record(round_, updates))
        if concluded is not None:
            self.observer.task_concluded(concluded)

    def _evaluate(self, round_: Round) -> EvaluationRecord:
        """Accuracy on every task seen, measured by the clients or here."""
        testing = self.schedule.round(round_.number)
        if self._clients_evaluate:
            requests = self._request_evaluation(testing)
            return self._add_scores(testing, requests, self.federation.replies(requests))
        tests = [self.method.workspace.test_samples(task) for task in range(testing.task + 1)]
        needed = pick(self.arrays, self.method.predicting(testing.task + 1))
        record = evaluation_record(testing, evaluate(self.method, needed, tests))
        self.observer.task_evaluated(record)
        return record

    def _close(self, round_: Round) -> None:
        """From here a run can be taken up again."""
        self._rounds_done = round_.number
        counts, last = dict(self._participations), dict(self._last_rounds)
        self.observer.round_closed(RunState(round_.number, dict(self.arrays), counts, last))

    def draw_clients(self, number: int, attempt: int = 0) -> list[int]:
        """L of the partitions that hold samples of the round's task; depends on the seed, the round and,
        where it is repeated, the attempt."""
        rng = stream(self.config.seed, "sampling", number, *([attempt] if attempt else []))
        able = self._able(self.schedule.task_of(number))
        return self.method.draw(able, self.config.federation.clients_per_round, rng)

    def _able(self, task: int) -> list[int]:
        holdings = self._met.roster.holdings if self._met else {}
        return able_clients(holdings, self.config, task, self.method.workspace.tasks.classes[task])

    def _request_training(self, round_: Round) -> Requests:
        """Draw clients and address those of them that the round needs."""
        rng = stream(self.config.seed, "stand-ins", round_.number, round_.attempt)
        wished = self.draw_clients(round_.number, round_.attempt)
        self.federation.roster.require(self.config.federation.min_clients)
        drawn = self.federation.roster.present(wished, self._able(round_.task), rng)
        done = self._participations.keys() if self.method.asks_once_per_task else ()
        round_.asked = [client for client in drawn if client not in done]
        # Drawn, but done with the task: as good as a reply.
        round_.excused = len(drawn) - len(round_.asked)
        self.observer.round_started(round_)
        return self.federation.requests(
            self._work(self.method, round_), round_.asked, informed=self._participations
        )

    def _merge_training(
        self, round_: Round, requests: Requests, replies: list[Message]
    ) -> dict[int, ClientUpdate]:
        """Merge the valid replies in partition order, whatever the order they came in."""
        updates = self._updates(self.method, round_, requests, replies)
        needed = min(self.config.federation.min_clients, len(round_.asked) + round_.excused)
        if len(updates) + round_.excused < needed:
            count = f"only {len(updates)} of {needed} needed clients" if updates else "no client"
            attempts = f" in {round_.attempt + 1} attempts" if round_.attempt else ""
            raise TooFewRepliesError(f"round {round_.number}: {count} finished{attempts} ({_listed(round_)})")
        for partition in updates:
            self._participations[partition] = self._participations.get(partition, 0) + 1
        self._merge(self.method, round_, updates)
        return updates

    def _conclude(self, round_: Round, conclusion: Exchange) -> ConclusionRecord:
        """The clients' work at the end of a task: everybody who is there and holds samples of it, once."""
        ending = self.schedule.round(round_.number)
        able = self._able(ending.task)
        ending.asked = [client for client in self.federation.everybody() if client in able]
        work = self._work(conclusion, ending, {PHASE: CONCLUDE})
        requests = self.federation.requests(work, ending.asked)
        updates = self._updates(conclusion, ending, requests, self.federation.replies(requests))
        if not updates:
            raise FederationError(f"task {ending.task + 1}: no client concluded it ({_listed(ending)})")
        self._merge(conclusion, ending, updates)
        ending.bytes_down, ending.bytes_up = self.federation.take_counts()
        return conclusion_record(ending, updates)

    def _request_evaluation(self, round_: Round) -> Requests:
        round_.asked = self.federation.everybody()
        arrays = pick(self.arrays, self.method.predicting(round_.task + 1))
        work = Work(MessageType.EVALUATE, arrays, partial(self._about, round_), str(round_.number))
        return self.federation.requests(work, round_.asked)

    def _add_scores(self, round_: Round, requests: Requests, replies: list[Message]) -> EvaluationRecord:
        """What the clients recognised of the test samples."""
        limits, own = self.config.validation, self.method.predicts_on_clients()
        scores, failures = self.federation.read(
            requests, replies, lambda reply: read_scores(reply, round_.task + 1, limits, own)
        )
        round_.failures += failures
        if not scores:
            raise FederationError(f"round {round_.number}: no client could test ({_listed(round_)})")
        round_.bytes_down, round_.bytes_up = self.federation.take_counts()
        record = clients_evaluation_record(round_, list(scores.values()))
        self.observer.task_evaluated(record)
        return record

    def _work(self, exchange: Exchange, round_: Round, about: dict[str, Any] | None = None) -> Work:
        """What clients get and are told in order to do their part of the exchange."""
        once = pick(self.arrays, exchange.constant(round_.task))
        told = dict(about or {})
        if once:
            key = (round_.task, exchange)
            self._digests[key] = self._digests.get(key) or digest_of(once)
            told[CONSTANT] = self._digests[key]
        return Work(
            MessageType.TRAIN,
            exchange.message(round_.task, self.arrays),
            lambda client: self._about(round_, client) | told,
            str(round_.number),
            once,
        )

    def _about(self, round_: Round, client: int) -> dict[str, Any]:
        since = self._last_rounds.get(client, 0)
        return {
            "round": round_.number,
            "task": round_.task,
            "starts_task": round_.starts_task,
            "ends_task": round_.ends_task,
            "run": self.federation.run,
            "since": since,
        }

    def _updates(
        self, exchange: Exchange, round_: Round, requests: Requests, replies: list[Message]
    ) -> dict[int, ClientUpdate]:
        """The valid replies by partition; the others are noted as failures."""
        limits = self.config.validation
        updates, failures = self.federation.read(
            requests,
            replies,
            lambda reply: read_update(reply, exchange, round_.task, self.arrays, limits),
            round_.attempt,
        )
        round_.failures += failures
        return updates

    def _merge(self, exchange: Exchange, round_: Round, updates: dict[int, ClientUpdate]) -> None:
        contributions = [
            Contribution(partition, self._participations.get(partition, 0), update)
            for partition, update in updates.items()
        ]
        self._last_rounds |= dict.fromkeys(updates, round_.number)
        if contributions:
            self.arrays |= exchange.merge(round_, contributions, self.arrays)


def _listed(round_: Round) -> str:
    """Who failed and why; a reason that several have in common is given once."""
    reasons: dict[str, set[int]] = {}
    for failure in round_.failures:
        reasons.setdefault(failure.reason, set()).add(failure.client)
    listed = [
        f"client{'s' if len(clients) > 1 else ''} {', '.join(map(str, sorted(clients)))}: {reason}"
        for reason, clients in reasons.items()
    ]
    return "; ".join(listed) or "nobody was there to be asked"
