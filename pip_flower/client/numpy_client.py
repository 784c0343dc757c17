"""The Flower NumPyClient: one client of the federation, usable on its own.

Arrays travel as lists; their names are `method.sent_down(task)` on the way in and `method.sent_up(task)` on
the way out (`method.predicting(task + 1)` for `evaluate`).
"""

import json
import time

import numpy as np
from flwr.client import NumPyClient
from flwr.common import Config as FlowerConfig
from flwr.common import NDArrays, Scalar

from pip_flower.method.evaluation import evaluate
from pip_flower.arrays import Arrays
from pip_flower.method.base import ClientJob, Method
from pip_flower.models.backbone import backbone_loads


class FederatedClient(NumPyClient):
    """Client `partition`: trains a method on the samples that this partition holds.

    `memory` is what the method keeps on this client between rounds; whoever drives the client saves it.
    """

    def __init__(self, method: Method, partition: int, memory: Arrays | None = None) -> None:
        self.method = method
        self.partition = partition
        self.memory: Arrays = memory or {}
        clients = method.bench.config.federation.clients
        if not 0 <= partition < clients:
            raise ValueError(f"partition {partition} does not exist: there are {clients} clients")

    def get_properties(self, config: FlowerConfig) -> dict[str, Scalar]:  # noqa: ARG002
        """Who this client is, what it must have in common with the server and, where the server cannot
        know it, how many samples of which classes it holds."""
        bench = self.method.bench
        properties: dict[str, Scalar] = {
            "partition": self.partition,
            "config": bench.config.digest(),
            "backbone": self.method.fingerprint(),
        }
        if bench.reports_holdings():
            properties["held"] = json.dumps(bench.holdings(self.partition))
        return properties

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Train one round; `config` gives "task" (from 0) and "round" (from 1)."""
        began = time.monotonic()
        task, round_ = int(config["task"]), int(config["round"])
        arrays = dict(zip(self.method.sent_down(task), parameters, strict=True))
        samples = self.method.samples(task, self.partition, round_)
        job = ClientJob(round_, task, self.partition, arrays, samples, self.memory)
        update = self.method.fit(job)
        if update.memory and not self.method.keeps_memory():
            raise ValueError(f"{type(self.method).__name__} has a memory that keeps_memory() denies")
        self.memory = update.memory
        metrics: dict[str, Scalar] = {
            **update.metrics,
            "backbone_loads": backbone_loads(),
            "fit_seconds": time.monotonic() - began,
        }
        answer = [np.asarray({**arrays, **update.arrays}[name]) for name in self.method.sent_up(task)]
        return answer, update.samples, metrics

    def evaluate(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Test on this client's own test samples of all tasks up to `config["task"]`.

        The loss is the error rate, which every method has; the metrics count per task.
        """
        tasks = int(config["task"]) + 1
        arrays = dict(zip(self.method.predicting(tasks), parameters, strict=True))
        arrays |= self.method.own_arrays(tasks, self.memory)
        tests = [self.method.bench.client_samples(task, self.partition, "test") for task in range(tasks)]
        scores = evaluate(self.method, arrays, tests)
        total = sum(score.total for score in scores)
        correct = sum(score.correct for score in scores)
        metrics: dict[str, Scalar] = {}
        for task, score in enumerate(scores):
            metrics |= {f"correct.{task}": score.correct, f"total.{task}": score.total}
        return (1.0 - correct / total if total else 0.0), total, metrics
