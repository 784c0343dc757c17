"""PIP's aggregation and, after each task, a head refitted on the Gaussians of all classes seen."""

import numpy as np

from pip_flower.alignment import align_head
from pip_flower.methods.aligned import AlignedMethod, aligned_names
from pip_flower.models import classifier
from pip_flower.prototypes import Prototypes
from pip_flower.runtime import torch_stream
from pip_flower.strategies.prompts import PromptStrategy


class AlignStrategy(PromptStrategy):
    """The averaged rows stay as they are; predictions read refitted copies."""

    method: AlignedMethod

    def end_task(self, task: int) -> None:
        """Start from the averaged rows and let all classes seen compete."""
        classes = self.method.bench.tasks.seen(task + 1)
        known = Prototypes.from_arrays(self.arrays).select(classes)
        # A class whose holders were never drawn has no Gaussian; its rows stay as averaged.
        columns = np.array([i for i, label in enumerate(classes) if label in known.classes])
        order = np.searchsorted(known.classes, np.array(classes)[columns])
        weights, biases = zip(
            *([self.arrays[name] for name in classifier.row_names(t)] for t in range(task + 1)), strict=True
        )
        weight, bias = np.concatenate(weights), np.concatenate(biases)
        generator = torch_stream(self.config.seed, "align", task)
        refitted = align_head(
            weight[columns], bias[columns], known.at(order), self.method.options.align, generator
        )
        weight[columns], bias[columns] = refitted
        ends = np.cumsum([len(rows) for rows in biases])[:-1]
        parts = zip(np.split(weight, ends), np.split(bias, ends), strict=True)
        for earlier, pair in enumerate(parts):
            self.arrays |= dict(zip(aligned_names(earlier), pair, strict=True))
