"""The Flower NumPyClient: one client of the federation, usable on its own.

Arrays travel as lists. Those of an exchange (training, or the work at the end of a task) are, by name,
`sent_down(task)` and then `constant(task)` on the way in and `sent_up(task)` on the way out; those of
`evaluate` are `method.predicting(task + 1)`.
"""

import json
import time
from collections.abc import Sequence

import numpy as np
from flwr.client import NumPyClient
from flwr.common import Config as FlowerConfig
from flwr.common import NDArrays, Scalar

from pip_flower.arrays import Arrays
from pip_flower.data.samples import Samples
from pip_flower.flower.records import CONCLUDE, PHASE
from pip_flower.method.base import Method
from pip_flower.method.evaluation import OWN, Score, recognised
from pip_flower.method.exchange import ClientJob, Exchange
from pip_flower.method.registry import entry
from pip_flower.models.backbone import backbone_loads


class FederatedClient(NumPyClient):
    """Client `partition`: trains a method on the samples that this partition holds.

    `memory` is what the method keeps on this client between rounds; whoever drives the client saves it.
    """

    def __init__(self, method: Method, partition: int, memory: Arrays | None = None) -> None:
        self.method = method
        self.partition = partition
        self.memory: Arrays = memory or {}
        clients = method.workspace.config.federation.clients
        if not 0 <= partition < clients:
            raise ValueError(f"partition {partition} does not exist: there are {clients} clients")

    def get_properties(self, config: FlowerConfig) -> dict[str, Scalar]:  # noqa: ARG002
        """Who this client is, what it must have in common with the server and, where the server cannot
        know it, how many samples of which classes it holds."""
        workspace = self.method.workspace
        properties: dict[str, Scalar] = {
            "partition": self.partition,
            "config": workspace.config.digest(),
            "backbone": self.method.fingerprint(),
            "method": entry(workspace.config.method.name).package,
        }
        if self.method.tests_on_clients():
            # The server may have no data to find out with.
            workspace.check_partition()
        if workspace.reports_holdings():
            properties["held"] = json.dumps(workspace.holdings(self.partition))
        return properties

    def exchange(self, phase: str = "") -> Exchange:
        """What a message of that phase is part of: training, or the work at the end of a task."""
        if phase != CONCLUDE:
            return self.method
        if self.method.conclusion is None:
            raise ValueError(f"{type(self.method).__name__} has nothing to do at the end of a task")
        return self.method.conclusion

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """One round's work; `config` gives "task" (from 0), "round" (from 1), whether that is the
        first or last one of the task ("starts_task", "ends_task") and, at the end of a task, "phase"."""
        began = time.monotonic()
        task, round_ = int(config["task"]), int(config["round"])
        exchange = self.exchange(str(config.get(PHASE, "")))
        names = (*exchange.sent_down(task), *exchange.constant(task))
        arrays = dict(zip(names, parameters, strict=True))
        samples = self.method.samples(task, self.partition, round_)
        first, last = (bool(config.get(name, False)) for name in ("starts_task", "ends_task"))
        job = ClientJob(round_, task, self.partition, arrays, samples, self.memory, first, last)
        update = exchange.fit(job)
        if update.memory and not self.method.keeps_memory():
            raise ValueError(f"{type(self.method).__name__} has a memory that keeps_memory() denies")
        self.memory = update.memory
        metrics: dict[str, Scalar] = {
            **update.metrics,
            "backbone_loads": backbone_loads(),
            "fit_seconds": time.monotonic() - began,
        }
        reply = [np.asarray({**arrays, **update.arrays}[name]) for name in exchange.sent_up(task)]
        return reply, update.samples, metrics

    def evaluate(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Test on all tasks up to `config["task"]`: on this client's share of the test samples or, where it
        alone can predict with what it has learnt, on all test samples that there are on its machine.

        The loss is the error rate, which every method has; the metrics count per task and, where the client
        predicts in its own way, once more for the classes that it has training samples of.
        """
        tasks = int(config["task"]) + 1
        arrays = dict(zip(self.method.predicting(tasks), parameters, strict=True))
        arrays |= self.method.own_arrays(tasks, self.memory)
        tests = [self._tests(task) for task in range(tasks)]
        hits = recognised(self.method, arrays, tests)
        scores = [Score.of(found) for found in hits]
        metrics = _counts(scores)
        if self.method.predicts_on_clients():
            known = list(self.method.workspace.holdings(self.partition))
            pairs = zip(hits, tests, strict=True)
            own = [Score.of(found[np.isin(samples.labels, known)]) for found, samples in pairs]
            metrics |= _counts(own, OWN)
        total = sum(score.total for score in scores)
        correct = sum(score.correct for score in scores)
        return (1.0 - correct / total if total else 0.0), total, metrics

    def _tests(self, task: int) -> Samples:
        workspace = self.method.workspace
        if self.method.predicts_on_clients():
            return workspace.test_samples(task)
        return workspace.client_samples(task, self.partition, "test")


def _counts(scores: Sequence[Score], prefix: str = "") -> dict[str, Scalar]:
    """Scores of each task as metrics of a reply."""
    metrics: dict[str, Scalar] = {}
    for task, score in enumerate(scores):
        metrics |= {f"{prefix}correct.{task}": score.correct, f"{prefix}total.{task}": score.total}
    return metrics
