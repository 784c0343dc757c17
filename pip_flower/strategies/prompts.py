"""Weighted averaging of prompts and head, and merging of class prototypes (Eq. 12-15)."""

from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, Message, MetricRecord
from numpy.typing import NDArray

from pip_flower import prototypes
from pip_flower.aggregation import merged_model
from pip_flower.methods.base import pick
from pip_flower.methods.prompted import PromptedMethod
from pip_flower.prototypes import Prototypes
from pip_flower.strategies.base import Contribution, TaskStrategy


class PromptStrategy(TaskStrategy):
    """Serves PIP and, with uniform weights and no prototypes, its baselines."""

    method: PromptedMethod

    def __init__(self, method: PromptedMethod) -> None:
        super().__init__(method)
        self._averages_head = True
        if method.options.prototypes.share:
            self.arrays |= prototypes.empty(method.bench.backbone.dim).as_arrays()

    def to_send(self, task: int) -> dict[str, NDArray[Any]]:
        """What the task trains, and the prototypes of the task's classes only."""
        self.arrays |= self.method.fidelity.start_round(task, self.arrays)
        arrays = super().to_send(task)
        if self.method.options.prototypes.share:
            known = Prototypes.from_arrays(self.arrays)
            arrays |= known.select(self.method.bench.tasks.classes[task]).as_arrays()
        return arrays

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """As the base class; notes which arrays this round averages."""
        self._averages_head = self.method.fidelity.averages_head(self.schedule.ends_task(server_round))
        return super().aggregate_train(server_round, replies)

    def merge(self, task: int, contributions: list[Contribution]) -> None:
        """Prompts, keys and head by weighted mean; each class's Gaussian over those who hold it."""
        weights = [self.weight(contribution) for contribution in contributions]
        updates = [contribution.update.arrays for contribution in contributions]
        averaged = self.method.averaged(task, with_head=self._averages_head)
        rule = self.config.aggregation
        models = [pick(update, averaged) for update in updates]
        self.arrays |= merged_model(models, weights, self.arrays, rule)
        if self.method.options.prototypes.share:
            reported = [Prototypes.from_arrays(update) for update in updates]
            known = Prototypes.from_arrays(self.arrays)
            merged = prototypes.robust_merge(reported, weights, known, self.method.fidelity, rule)
            self.arrays |= prototypes.update(known, merged).as_arrays()

    def weight(self, contribution: Contribution) -> float:
        """That of section 6, or the same for everybody."""
        if self.method.options.weighting == "uniform":
            return 1.0
        return self.method.fidelity.client_weight(contribution.participations, contribution.update.samples)
