"""What a process needs to work on a run: configuration, data, tasks, backbone, views; loaded once."""

from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pip_flower.arrays import NamedArrays
from pip_flower.config.sections import Config
from pip_flower.data.batches import batches
from pip_flower.data.loading import load_data
from pip_flower.data.notices import say
from pip_flower.data.partition import drawn_classes, partition_task, require_samples
from pip_flower.data.population import active_clients
from pip_flower.data.samples import ImageData, Samples
from pip_flower.data.sources.listing import require_images
from pip_flower.data.tasks import TaskSplit, split_tasks
from pip_flower.data.views import Views
from pip_flower.models.backbone import Backbone, shared_backbone
from pip_flower.models.heads import Head
from pip_flower.models.query_cache import QueryCache, image_key
from pip_flower.runtime.devices import canonical_batch, numerics, prepare_process
from pip_flower.runtime.process import cache_directory, once_per_process
from pip_flower.runtime.streams import stream, torch_stream

_STORED_AT_ONCE = 256
Part = Literal["train", "test"]


class Workspace:
    """Everything is loaded on first use, so a server without data or a query about a node stays cheap."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.device: torch.device = prepare_process(config.runtime)
        self.tasks: TaskSplit = split_tasks(config)

    @cached_property
    def data(self) -> ImageData:
        """The whole data set."""
        return once_per_process(("data", self.config.dataset, self.is_local), self._load)

    def _load(self) -> ImageData:
        data = load_data(self.config.dataset, cache_directory(self.config.runtime))
        if not self.is_local:
            require_images(data.class_names, data.train.labels, "training")
            require_images(data.class_names, data.test.labels, "test")
        return data

    @cached_property
    def backbone(self) -> Backbone:
        """The frozen ViT of this process."""
        return shared_backbone(self.config.backbone, self.config.runtime, self.device)

    @cached_property
    def views(self) -> Views:
        """Training and test views for this data set and backbone."""
        b = self.backbone
        return Views(self.config.dataset, b.image_size, b.mean, b.std, self.device)

    def fresh_head(self, head: Head, task: int, generator: torch.Generator | None = None) -> NamedArrays:
        """The arrays that a head starts a task with, from the generator or from the run's own stream."""
        drawn = generator or torch_stream(self.config.seed, "start-task", task)
        fresh = head.start_task(task, len(self.tasks.classes[task]), drawn)
        return {name: value.numpy() for name, value in fresh.items()}

    @property
    def is_local(self) -> bool:
        """Whether every node's data are its own, so that nothing is dealt out."""
        return self.config.partition.scheme == "local"

    def client_samples(self, task: int, partition: int, part: Part) -> Samples:
        """A client's own samples of a task, to "train" or to "test" with."""
        samples = self._part(part)
        if self.is_local:
            return samples.take(self.tasks.rows(samples.labels, task))
        return samples.take(self._dealt(task, part)[partition])

    def _part(self, part: Part) -> Samples:
        if part == "train":
            return self.data.train
        return self.data.validation if self.config.evaluation.split == "validation" else self.data.test

    def pooled_samples(self, task: int, partition: int, round_: int) -> Samples:
        """All training samples of the classes that a client draws in a round of the released code."""
        drawn = drawn_classes(self.config, self.tasks, task, partition, round_)
        return self.data.train.take(np.flatnonzero(np.isin(self.data.train.labels, drawn)))

    def pool_size(self, task: int) -> int:
        """How many training samples of the task there are in all."""
        return len(self.tasks.rows(self.data.train.labels, task))

    def stream(self, *names: str | int) -> np.random.Generator:
        """The run's random stream of that name."""
        return stream(self.config.seed, *names)

    def check_data(self) -> None:
        """Fail now, not rounds later, if the data does not fit the configuration or leaves a client empty."""
        require_images(self.data.class_names, self._part("test").labels, self.config.evaluation.split)
        for task, parts in enumerate(self.check_partition()):
            idle = [int(p) for p in active_clients(self.config, task) if not len(parts[p])]
            if idle:
                say(f"clients {idle} hold no samples of task {task + 1} and sit it out")

    def check_partition(self) -> list[list[NDArray[np.int64]]]:
        """Fail now if a client is left empty that must not be; the rows of each client in each task, if data
        are dealt out."""
        return [] if self.is_local else [self._dealt(task, "train") for task in range(len(self.tasks))]

    def reports_holdings(self) -> bool:
        """Whether the server must ask clients what they hold, because it cannot know."""
        return self.is_local or self.config.partition.empty == "allow"

    def holdings(self, partition: int) -> dict[int, int]:
        """How many training samples of each class a client holds, over all tasks."""
        labels = [self.client_samples(task, partition, "train").labels for task in range(len(self.tasks))]
        found, counts = np.unique(np.concatenate(labels), return_counts=True)
        return dict(zip(found.tolist(), counts.tolist(), strict=True))

    def _dealt(self, task: int, part: Part) -> list[NDArray[np.int64]]:
        """Rows of each client; worked out once per process."""

        def deal() -> list[NDArray[np.int64]]:
            parts = partition_task(self.config, self.tasks, self._part(part).labels, task, part)
            if part == "train" and self.config.partition.empty == "refuse":
                require_samples(self.config, parts, task)
            return parts

        return once_per_process(("dealt", self.config, task, part), deal)

    def test_samples(self, task: int) -> Samples:
        """All test samples of a task, or its validation samples if those are configured."""
        samples = self._part("test")
        return samples.take(self.tasks.rows(samples.labels, task))

    @cached_property
    def query_cache(self) -> QueryCache:
        """Queries of deterministic views, shared with other processes and runs."""
        config, backbone = self.config, self.backbone
        recipe = (config.dataset.test_resize, config.dataset.test_interpolation, self.views.statistics)
        parts = (backbone.digest, backbone.image_size, recipe, numerics(config.runtime, self.device))
        return QueryCache(cache_directory(config.runtime), repr(parts), backbone.dim)

    def queries(self, samples: Samples) -> Tensor:
        """q(x) of the deterministic view of each sample [n, D]; computed once per image, ever."""
        keys = [self._image_key(samples, row) for row in range(len(samples))]
        cache = self.query_cache
        missing = np.array(cache.missing(keys), dtype=np.int64)
        for part in batches(missing, _STORED_AT_ONCE):
            found = self._fresh_queries(samples.images[part])
            cache.add({keys[row]: query for row, query in zip(part, found, strict=True)})
        return torch.from_numpy(cache.read(keys)).to(self.device)

    def _image_key(self, samples: Samples, row: int) -> bytes:
        known: dict[int, bytes] = once_per_process(("image-keys", self.config.dataset), dict)
        id_ = int(samples.ids[row])
        if id_ not in known:
            known[id_] = image_key(samples.images[row])
        return known[id_]

    def _fresh_queries(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Queries [n, D], each with the same bits whichever images it is computed with."""
        size = canonical_batch(self.device)
        found = []
        for rows in batches(np.arange(len(images)), size):
            filled = np.resize(rows, size)
            found.append(self.backbone.query(self.views.test(images[filled]))[: len(rows)].cpu())
        return torch.cat(found).numpy()


def shared_workspace(config: Config) -> Workspace:
    """The workspace of this process for `config`."""
    return once_per_process(("workspace", config), lambda: Workspace(config))
