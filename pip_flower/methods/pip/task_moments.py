"""The end of a task on pip-drift's clients: sums over the features of their images of the task."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.config.schema import Bounds
from pip_flower.data.samples import Samples
from pip_flower.method.exchange import ClientJob, ClientUpdate, Contribution, Exchange
from pip_flower.method.reply_checks import ArraySpec
from pip_flower.method.round import Round
from pip_flower.method.workspace import Workspace
from pip_flower.methods import moments as sums
from pip_flower.methods.moments import Moments
from pip_flower.methods.pip.moments_wire import MomentsWire
from pip_flower.models.prompts import PromptStructure
from pip_flower.runtime.streams import stream

# Features [n, D] of samples with the prompts of a task.
Features = Callable[[Mapping[str, Tensor], Samples, int], Tensor]


@dataclass(frozen=True)
class DriftOptions:
    """How Gaussians are moved, what is kept of their covariance, how both are regularised, and how sums
    travel."""

    transport: Literal["none", "shift", "linear"]
    covariance: Literal["diagonal", "low-rank", "full"]
    rank: Annotated[int, Bounds(1)]
    tuning: Literal["fixed", "held-out"]
    ridge: Annotated[float, Bounds(0, exclusive_minimum=True)]
    shrinkage: Annotated[float, Bounds(0, 1)]
    held_out: Annotated[float, Bounds(0, 0.9, exclusive_minimum=True)]
    dtype: Literal["float32", "float16"]

    @property
    def parts(self) -> tuple[str, ...]:
        """The disjoint parts of a client's samples that sums are taken over."""
        return ("fitted", "held") if self.tuning == "held-out" else ("all",)


class TaskMoments(Exchange):
    """The end of a task on a client: sums over the features of its images of the task."""

    def __init__(
        self, workspace: Workspace, structure: PromptStructure, features: Features, options: DriftOptions
    ) -> None:
        super().__init__(workspace)
        self.structure, self.features, self.options = structure, features, options
        self.wire = MomentsWire(workspace.backbone.dim, options)

    def received(self, task: int) -> tuple[str, ...]:
        """The prompts of now and, where drift is measured, of the task before."""
        read = self.structure.read
        old = tuple(f"old.{name}" for name in read(task - 1)) if self._measures_drift(task) else ()
        return read(task) + old

    def returned(self, task: int) -> tuple[str, ...]:
        """The sums of each part."""
        return self.wire.names(self._measures_drift(task))

    def fit(self, job: ClientJob) -> ClientUpdate:
        """Each image goes once through the prompts of now and, from the second task on, of before."""
        samples, tasks = job.samples, self.workspace.tasks
        new = self._features(job.arrays, samples, job.task)
        old = None
        if self._measures_drift(job.task):
            before = {name: job.arrays[f"old.{name}"] for name in self.structure.read(job.task - 1)}
            old = self._features(before, samples, job.task - 1)
        targets, classes = tasks.targets(samples.labels, job.task), len(tasks.classes[job.task])
        arrays: NamedArrays = {}
        for part, rows in self._parts(samples):
            found = sums.moments_of(new[rows], targets[rows], classes, None if old is None else old[rows])
            arrays |= self.wire.encoded(part, found)
        return ClientUpdate(arrays, len(samples), {}, job.memory)

    def expected(self, task: int, arrays: Arrays, samples: int) -> dict[str, ArraySpec]:  # noqa: ARG002
        """As the wire format says."""
        return self.wire.specs(len(self.workspace.tasks.classes[task]), self._measures_drift(task))

    def inspect(self, task: int, reply: Arrays, samples: int) -> None:  # noqa: ARG002
        """Counts of the client's samples, and second moments that features can have."""
        self.wire.inspect(reply, samples)

    def merge(self, round_: Round, contributions: Sequence[Contribution], arrays: Arrays) -> NamedArrays:  # noqa: ARG002
        """The moments of everybody's samples together."""
        found: NamedArrays = {}
        for part in self.options.parts:
            decoded = [self.wire.decoded(part, c.update.arrays) for c in contributions]
            filled = [moments for moments in decoded if moments.count.sum() > 0] or decoded[:1]
            found |= _as_arrays(part, sums.robust_pool(filled, self.config.aggregation))
        return found

    def _measures_drift(self, task: int) -> bool:
        return task > 0 and self.options.transport != "none"

    def _features(self, arrays: Arrays, samples: Samples, task: int) -> sums.Floats:
        device = self.workspace.device
        state = {name: torch.as_tensor(value, device=device) for name, value in arrays.items()}
        return self.features(state, samples, task).cpu().numpy().astype(np.float64)

    def _parts(self, samples: Samples) -> list[tuple[str, np.ndarray]]:
        """Rows of each part; a sample's part depends on its id alone."""
        if self.options.tuning == "fixed":
            return [("all", np.arange(len(samples)))]
        seed = self.config.seed
        drawn = np.array([stream(seed, "held-out", int(id_)).random() for id_ in samples.ids])
        held = drawn < self.options.held_out
        return [("fitted", np.flatnonzero(~held)), ("held", np.flatnonzero(held))]


def _as_arrays(part: str, moments: Moments) -> NamedArrays:
    found = {"count": moments.count, "mean": moments.mean, "scatter": moments.scatter}
    if moments.drift is not None:
        drift = moments.drift
        found |= {"moved": np.array([drift.count]), "old": drift.old, "change": drift.change}
        found |= {"spread": drift.spread, "cross": drift.cross}
    return {f"pooled.{part}.{name}": value for name, value in found.items()}


def pooled(arrays: Arrays, part: str) -> Moments:
    """The inverse of `_as_arrays`."""

    def get(name: str) -> sums.Floats:
        return np.asarray(arrays[f"pooled.{part}.{name}"])

    moved = arrays.get(f"pooled.{part}.moved")
    drift = None
    if moved is not None and len(moved):
        drift = sums.Drift(float(moved[0]), get("old"), get("change"), get("spread"), get("cross"))
    return Moments(get("count"), get("mean"), get("scatter"), drift)
