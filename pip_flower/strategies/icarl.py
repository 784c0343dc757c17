"""Averages the model, keeps the one of the previous task as teacher, adds up the class means."""

import numpy as np

from pip_flower.aggregation import weighted_mean
from pip_flower.methods.base import pick
from pip_flower.strategies.base import Contribution, TaskStrategy

OLD = "old."
MEANS = ("mean.sum", "mean.count")


class ICaRLStrategy(TaskStrategy):
    """Serves iCaRL."""

    def merge(self, task: int, contributions: list[Contribution]) -> None:
        """The model weighted by samples; sums and counts of exemplars of this round's clients."""
        updates = [contribution.update.arrays for contribution in contributions]
        weights = [float(contribution.update.samples) for contribution in contributions]
        names = self.method.returned(task)
        model = [name for name in names if name not in MEANS]
        self.arrays |= weighted_mean([pick(update, model) for update in updates], weights)
        for name in set(names) & set(MEANS):
            self.arrays[name] = np.sum([update[name] for update in updates], axis=0)

    def end_task(self, task: int) -> None:
        """What has been learnt so far teaches the next task."""
        names = [name for name in self.method.returned(task) if name not in MEANS]
        self.arrays |= {f"{OLD}{name}": self.arrays[name].copy() for name in names}
