"""The task-aware Flower strategy: the loop of `loop.py`, with Flower's own hooks.

`run` and `play` are ours: they repeat rounds and can begin in the middle of a run. Flower's loop
(`Strategy.start`), and what wraps a strategy, works with the hooks below; it plays every round once and from
the first. Pass it `evaluate_fn=strategy.evaluate_fn` where the server holds the test data.
"""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from pip_flower.flower.records import to_record
from pip_flower.method.base import Method
from pip_flower.method.round import Round
from pip_flower.rounds.loop import TaskLoop
from pip_flower.rounds.requests import Requests


class TaskStrategy(TaskLoop, Strategy):
    """The strategy of every method."""

    def __init__(self, method: Method) -> None:
        super().__init__(method)
        # Between two of Flower's calls: the round, and whom it asked for training or for testing.
        self._training: tuple[Round, Requests] | None = None
        self._testing: tuple[Round, Requests] | None = None

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,  # noqa: ARG002
        config: ConfigRecord,  # noqa: ARG002
        grid: Grid,
    ) -> list[Message]:
        """Meet the clients, if that has not been done, and address those of the round."""
        if self._met is None:
            self.meet(grid)
        round_ = self._begin(server_round)
        self._training = (round_, self._request_training(round_))
        return self._training[1].messages()

    def aggregate_train(
        self,
        server_round: int,  # noqa: ARG002
        replies: Iterable[Message],
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Merge the replies; at the end of a task, do what there is to do then."""
        if self._training is None:
            raise RuntimeError("aggregate_train was called before configure_train")
        round_, requests = self._training
        updates = self._merge_training(round_, requests, self.federation.completed(requests, list(replies)))
        self._finish(round_, updates)
        return to_record(self.arrays), MetricRecord({"clients": len(updates)})

    def configure_evaluate(
        self,
        server_round: int,  # noqa: ARG002
        arrays: ArrayRecord,  # noqa: ARG002
        config: ConfigRecord,  # noqa: ARG002
        grid: Grid,  # noqa: ARG002
    ) -> list[Message]:
        """After a task, all clients, where testing is theirs."""
        self._testing = None
        if self._training is None or not self._training[0].ends_task or not self._clients_evaluate:
            return []
        round_ = self._training[0]
        self._testing = (round_, self._request_evaluation(round_))
        return self._testing[1].messages()

    def aggregate_evaluate(
        self,
        server_round: int,  # noqa: ARG002
        replies: Iterable[Message],
    ) -> MetricRecord | None:
        """Add up what the clients recognised; the round is over then."""
        record = self._add_scores(*self._testing, list(replies)) if self._testing else None
        if self._training:
            self._close(self._training[0])
        return MetricRecord({"accuracy": record.accuracy}) if record else None

    def evaluate_fn(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:  # noqa: ARG002
        """For `Strategy.start`: test on the server after each task, unless that is the clients'."""
        if self._training is None or self._clients_evaluate or not self._training[0].ends_task:
            return None
        return MetricRecord({"accuracy": self._evaluate(self._training[0]).accuracy})

    def summary(self) -> None:
        """Flower's loop asks for this; the run directory holds the configuration."""
