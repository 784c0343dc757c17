"""Weighted averaging of prompts and head, and merging of class prototypes (Eq. 12-15)."""

import numpy as np
from numpy.typing import NDArray

from pip_flower import prototypes
from pip_flower.aggregation import weighted_mean
from pip_flower.methods.base import pick
from pip_flower.methods.prompted import PromptedMethod
from pip_flower.prototypes import Prototypes
from pip_flower.strategies.base import Contribution, TaskStrategy


class PromptStrategy(TaskStrategy):
    """Serves PIP and, with uniform weights and no prototypes, its baselines."""

    method: PromptedMethod

    def __init__(self, method: PromptedMethod) -> None:
        super().__init__(method)
        if method.options.prototypes.share:
            self.arrays |= prototypes.empty(method.bench.backbone.dim).as_arrays()

    def to_send(self, task: int) -> dict[str, NDArray[np.generic]]:
        """What the task trains, and the prototypes of the task's classes only."""
        arrays = super().to_send(task)
        if self.method.options.prototypes.share:
            known = Prototypes.from_arrays(self.arrays)
            arrays |= known.select(self.method.bench.tasks.classes[task]).as_arrays()
        return arrays

    def merge(self, task: int, contributions: list[Contribution]) -> None:
        """Prompts, keys and head by weighted mean; each class's Gaussian over those who hold it."""
        weights = [self.weight(contribution) for contribution in contributions]
        updates = [contribution.update.arrays for contribution in contributions]
        trained = self.method.trained(task)
        self.arrays |= weighted_mean([pick(update, trained) for update in updates], weights)
        if self.method.options.prototypes.share:
            merged = prototypes.merge([Prototypes.from_arrays(u) for u in updates], weights)
            self.arrays |= prototypes.update(Prototypes.from_arrays(self.arrays), merged).as_arrays()

    def weight(self, contribution: Contribution) -> float:
        """w_l = rho_l * n_l, or the same for everybody."""
        if self.method.options.weighting == "uniform":
            return 1.0
        return float(contribution.participations * contribution.update.samples)
