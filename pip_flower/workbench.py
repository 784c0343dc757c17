"""What a process needs to work on a run: configuration, data, tasks, backbone, views; loaded once."""

from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pip_flower.config import Config
from pip_flower.data.partition import partition_task, require_samples
from pip_flower.data.sources import ImageData, Samples, load_data
from pip_flower.data.tasks import TaskSplit, split_tasks
from pip_flower.data.views import Views
from pip_flower.models.backbone import Backbone, shared_backbone
from pip_flower.runtime import once_per_process, prepare_process


class Workbench:
    """Everything is loaded on first use, so a server without data or a query about a node stays cheap."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.device: torch.device = prepare_process(config.runtime)
        self.tasks: TaskSplit = split_tasks(config)

    @cached_property
    def data(self) -> ImageData:
        """The whole data set."""
        return once_per_process(("data", self.config.dataset), lambda: load_data(self.config.dataset))

    @cached_property
    def backbone(self) -> Backbone:
        """The frozen ViT of this process."""
        return shared_backbone(self.config.backbone, self.device)

    @cached_property
    def views(self) -> Views:
        """Training and test views for this data set and backbone."""
        b = self.backbone
        return Views(self.config.dataset, b.image_size, b.mean, b.std, self.device)

    def client_samples(self, task: int, partition: int, part: str) -> Samples:
        """A client's own samples of a task; `part` is "train" or "test"."""
        samples = self.data.train if part == "train" else self.data.test
        parts = partition_task(self.config, self.tasks, samples.labels, task, part)
        if part == "train":
            require_samples(parts, task)
        return samples.take(parts[partition])

    def test_samples(self, task: int) -> Samples:
        """All test samples of a task."""
        return self.data.test.take(self.tasks.rows(self.data.test.labels, task))

    def queries(self, samples: Samples) -> Tensor:
        """q(x) of the deterministic view of each sample [n, D], computed once per process."""
        key = ("queries", self.config.dataset, self.backbone.digest)
        known: dict[int, Tensor] = once_per_process(key, dict)
        missing = np.array([i for i, id_ in enumerate(samples.ids) if int(id_) not in known])
        for rows in batches(missing, self.config.evaluation.batch_size):
            found = self.backbone.query(self.views.test(samples.images[rows]))
            known |= {int(samples.ids[row]): q for row, q in zip(rows, found, strict=True)}
        return torch.stack([known[int(id_)] for id_ in samples.ids])


def shared_workbench(config: Config) -> Workbench:
    """The workbench of this process for `config`."""
    return once_per_process(("workbench", config), lambda: Workbench(config))


def batches(rows: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """`rows` cut into pieces of at most `size`."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]
