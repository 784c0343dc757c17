"""PIP that is told an image's task when it predicts: what finding the task would be worth. Not a rival, but a
diagnosis; nobody knows the task of a new image."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pip_flower.data.batches import batches
from pip_flower.data.samples import Samples
from pip_flower.methods.pip.pip import PIP, PIPOptions


@dataclass(frozen=True)
class OracleOptions(PIPOptions):
    """PIP's options, and what is told: the `slot` of prompts, or the `task`, whose classes alone compete."""

    oracle: Literal["slot", "task"]


class OraclePIP(PIP):
    """Trained as PIP, to the byte."""

    options: OracleOptions
    has_released_code = False

    @torch.inference_mode()
    def scores(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:
        """Logits of the classes seen, or of those of the image's task."""
        logits = super().scores(arrays, samples, tasks)
        if self.options.oracle == "slot":
            return logits
        ends = np.cumsum([len(self.workspace.tasks.classes[task]) for task in range(tasks)])
        task_of_column = torch.from_numpy(np.searchsorted(ends, np.arange(ends[-1]), side="right"))
        own = torch.from_numpy(self._tasks_of(samples, tasks))[:, None]
        return logits.masked_fill((task_of_column != own).to(logits.device), -torch.inf)

    @torch.inference_mode()
    def features(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:
        """With the prompts of the image's own task [n, D]."""
        own, found = self._tasks_of(samples, tasks), torch.empty(0)
        for task in np.unique(own):
            for rows in batches(np.flatnonzero(own == task), self.config.evaluation.batch_size):
                images = self.workspace.views.test(samples.images[rows])
                prompted = self.structure.forward(arrays, images, None, task=int(task), tasks=tasks).features
                if not len(found):
                    found = prompted.new_empty(len(samples), prompted.shape[1])
                found[torch.from_numpy(rows).to(found.device)] = prompted
        return found

    def _tasks_of(self, samples: Samples, tasks: int) -> NDArray[np.int64]:
        """The task [n] that brought each sample's class."""
        found = np.empty(len(samples), dtype=np.int64)
        for task in range(tasks):
            found[self.workspace.tasks.rows(samples.labels, task)] = task
        return found
