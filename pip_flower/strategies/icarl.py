"""Averages the model, keeps the one of the previous task as teacher, adds up the class means."""

import numpy as np

from pip_flower.aggregation import is_plain, merged_model, robust_total
from pip_flower.methods.base import pick
from pip_flower.strategies.base import Contribution, TaskStrategy

OLD = "old."
MEANS = ("mean.sum", "mean.count")


class ICaRLStrategy(TaskStrategy):
    """Serves iCaRL."""

    def merge(self, task: int, contributions: list[Contribution]) -> None:
        """The model weighted by samples; sums and counts of exemplars of this round's clients."""
        rule = self.config.aggregation
        updates = [contribution.update.arrays for contribution in contributions]
        weights = [float(contribution.update.samples) for contribution in contributions]
        names = self.method.returned(task)
        model = [name for name in names if name not in MEANS]
        self.arrays |= merged_model([pick(update, model) for update in updates], weights, self.arrays, rule)
        for name in set(names) & set(MEANS):
            self.arrays[name] = np.sum([update[name] for update in updates], axis=0)
        if "mean.sum" in names and not is_plain(rule):
            sums, counts = ([update[name] for update in updates] for name in MEANS)
            nothing = (np.zeros_like(sums[0]), np.zeros_like(counts[0]))
            self.arrays["mean.sum"] = robust_total(sums, counts, nothing, rule)

    def end_task(self, task: int) -> None:
        """What has been learnt so far teaches the next task."""
        names = [name for name in self.method.returned(task) if name not in MEANS]
        self.arrays |= {f"{OLD}{name}": self.arrays[name].copy() for name in names}
