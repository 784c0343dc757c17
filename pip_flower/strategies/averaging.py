"""Federated averaging: every array a client returns, weighted by its samples."""

from pip_flower.aggregation import merged_model
from pip_flower.methods.base import pick
from pip_flower.strategies.base import Contribution, TaskStrategy


class AveragingStrategy(TaskStrategy):
    """Serves methods whose answer is a trained model and nothing else."""

    def merge(self, task: int, contributions: list[Contribution]) -> None:
        """sum_l n_l x_l / sum_l n_l, or the configured rule."""
        names = self.method.returned(task)
        updates = [pick(contribution.update.arrays, names) for contribution in contributions]
        weights = [float(contribution.update.samples) for contribution in contributions]
        self.arrays |= merged_model(updates, weights, self.arrays, self.config.aggregation)
