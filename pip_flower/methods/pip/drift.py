"""pip-drift: prompts that keep learning, Gaussians that move along with them, a head in closed form.

Clients train as PIP's do. When a task ends, each sends sums over its own images once: class means and
scatter with the prompts as they are now, and how its features have moved since the task before ended. The
server moves what it knows of earlier classes in the same way; a linear discriminant of all classes seen is
the head.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.config.schema import Bounds, ConfigError
from pip_flower.config.sections import Config
from pip_flower.data.batches import batches
from pip_flower.data.samples import Samples
from pip_flower.method.exchange import ClientJob, ClientUpdate, Contribution, Exchange
from pip_flower.method.reply_checks import ArraySpec
from pip_flower.method.round import Round
from pip_flower.method.workspace import Workspace
from pip_flower.methods import moments as sums
from pip_flower.methods.moments import Moments
from pip_flower.methods.pip.discriminant import (
    Gaussians,
    Transport,
    best_ridge,
    best_shrinkage,
    discriminant,
    linear_drift,
    mean_drift,
)
from pip_flower.methods.pip.moments_wire import MomentsWire
from pip_flower.methods.pip.pip import PIP, PIPOptions
from pip_flower.prototypes import Prototypes
from pip_flower.runtime.streams import stream

_RIDGES = tuple(10.0 ** np.arange(-3, 4, 0.5))
_SHRINKAGES = (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)


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


@dataclass(frozen=True)
class DriftingPIPOptions(PIPOptions):
    """PIP's options and those of the end of a task."""

    drift: DriftOptions


class DriftingPIP(PIP):
    """`gaussian.count` [K], `gaussian.mean` [K, D], `gaussian.scatter` [D, D] of the classes seen;
    `discriminant.weight` [K, D], `discriminant.bias` [K]; `old.x`: prompts x as the task before left them."""

    options: DriftingPIPOptions
    has_released_code = False

    @classmethod
    def check(cls, config: Config) -> None:
        """The server computes the head."""
        super().check(config)
        if config.method.options.head == "private":
            raise ConfigError(
                "method.head",
                "'private' has no meaning: the server computes the head",
                "Give method.head=shared",
            )

    def __init__(self, workspace: Workspace, options: DriftingPIPOptions) -> None:
        super().__init__(workspace, options)
        self.conclusion = TaskMoments(self)

    def end_task(self, task: int, arrays: Arrays) -> NamedArrays:
        """Move what is known of earlier classes, add the task's own, solve for the head."""
        options = self.options.drift
        parts = [_pooled(arrays, part) for part in options.parts]
        everything = sums.pool(parts)
        before, ridge = self._moved(task, arrays, parts, everything)
        known = before.joined(self._with_prototypes(task, everything, arrays))
        shrinkage = options.shrinkage
        if options.tuning == "held-out":
            first = len(before.count)
            shrinkage = best_shrinkage(before.joined(parts[0]), parts[1], first, _SHRINKAGES)
        weight, bias = discriminant(known, shrinkage)
        return {
            "gaussian.count": known.count,
            "gaussian.mean": known.mean,
            "gaussian.scatter": known.scatter,
            "discriminant.weight": weight.astype(np.float32),
            "discriminant.bias": bias.astype(np.float32),
            "discriminant.regularisation": np.array([ridge, shrinkage]),
            **{f"old.{name}": arrays[name].copy() for name in self.structure.read(task)},
            # Used up; not to be stored with every checkpoint.
            **{name: np.zeros(0) for name in arrays if name.startswith("pooled.")},
        }

    def predicting(self, tasks: int) -> tuple[str, ...]:
        """The latest prompts, and the head of all classes seen."""
        return (*self.structure.read(tasks - 1), "discriminant.weight", "discriminant.bias")

    @torch.inference_mode()
    def scores(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:
        """Of all classes seen, from the features that the latest prompts give."""
        features = self.latest_features(arrays, samples, tasks - 1)
        return F.linear(features, arrays["discriminant.weight"], arrays["discriminant.bias"])

    @torch.inference_mode()
    def latest_features(self, arrays: Mapping[str, Tensor], samples: Samples, task: int) -> Tensor:
        """Features [n, D] of the deterministic view with the prompts of `task`."""
        queries = self.workspace.queries(samples) if self.structure.needs_query(task) else None
        found = []
        for rows in batches(np.arange(len(samples)), self.config.evaluation.batch_size):
            images = self.workspace.views.test(samples.images[rows])
            query = None if queries is None else queries[rows]
            prompted = self.structure.forward(arrays, images, query, task=task, tasks=task + 1)
            found.append(prompted.features.float())
        return torch.cat(found)

    def _moved(
        self, task: int, arrays: Arrays, parts: Sequence[Moments], everything: Moments
    ) -> tuple[Gaussians, float]:
        """The Gaussians of earlier classes where their features are now, and the ridge that was used."""
        options, dim = self.options.drift, self.workspace.backbone.dim
        if task == 0:
            return Gaussians(np.zeros(0), np.zeros((0, dim)), np.zeros((dim, dim))), options.ridge
        names = ("gaussian.count", "gaussian.mean", "gaussian.scatter")
        known = Gaussians(*(np.asarray(arrays[name]) for name in names))
        by, ridge = self._transport(parts, everything)
        moved = known if by is None else known.moved(by)
        if options.covariance == "diagonal":
            moved = Gaussians(moved.count, moved.mean, np.diag(np.diag(moved.scatter)))
        return moved, ridge

    def _transport(self, parts: Sequence[Moments], everything: Moments) -> tuple[Transport | None, float]:
        options, drift = self.options.drift, everything.drift
        if drift is None:
            return None, options.ridge
        if options.transport == "shift":
            return mean_drift(drift), options.ridge
        ridge = options.ridge
        if options.tuning == "held-out" and parts[0].drift and parts[1].drift:
            ridge = best_ridge(parts[0].drift, parts[1].drift, _RIDGES)
        return linear_drift(drift, ridge), ridge

    def _with_prototypes(self, task: int, found: Moments, arrays: Arrays) -> Moments:
        """A class whose holders were all away when the task ended has the mean that training left, if any."""
        if not self.options.prototypes.share or np.all(found.count > 0):
            return found
        count, mean = found.count.copy(), found.mean.copy()
        table = Prototypes.from_arrays(arrays)
        for row, label in enumerate(self.workspace.tasks.classes[task]):
            last = table.select([label])
            if not count[row] and len(last):
                count[row], mean[row] = 1.0, last.mean[0]
        return Moments(count, mean, found.scatter)


class TaskMoments(Exchange):
    """The end of a task on a client: sums over the features of its images of the task."""

    def __init__(self, method: DriftingPIP) -> None:
        super().__init__(method.workspace)
        self.method = method
        self.options = method.options.drift
        self.wire = MomentsWire(method.workspace.backbone.dim, self.options)

    def received(self, task: int) -> tuple[str, ...]:
        """The prompts of now and, where drift is measured, of the task before."""
        read = self.method.structure.read
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
            before = {name: job.arrays[f"old.{name}"] for name in self.method.structure.read(job.task - 1)}
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
        return self.method.latest_features(state, samples, task).cpu().numpy().astype(np.float64)

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


def _pooled(arrays: Arrays, part: str) -> Moments:
    """The inverse of `_as_arrays`."""

    def get(name: str) -> sums.Floats:
        return np.asarray(arrays[f"pooled.{part}.{name}"])

    moved = arrays.get(f"pooled.{part}.moved")
    drift = None
    if moved is not None and len(moved):
        drift = sums.Drift(float(moved[0]), get("old"), get("change"), get("spread"), get("cross"))
    return Moments(get("count"), get("mean"), get("scatter"), drift)
