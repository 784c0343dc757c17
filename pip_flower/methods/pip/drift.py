"""pip-drift: prompts that keep learning, Gaussians that move along with them, a head in closed form.

Clients train as PIP's do. When a task ends, each sends sums over its own images once: class means and
scatter with the prompts as they are now, and how its features have moved since the task before ended. The
server moves what it knows of earlier classes in the same way; a linear discriminant of all classes seen is
the head.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from pip_flower.method.exchange import ClientJob, Contribution
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
from pip_flower.methods.pip.local_head import starting_head
from pip_flower.methods.pip.pip import PIP, PIPOptions
from pip_flower.methods.pip.task_moments import DriftOptions, TaskMoments, pooled
from pip_flower.methods.pip.training import PromptTrainer
from pip_flower.prototypes import Prototypes

_RIDGES = tuple(10.0 ** np.arange(-3, 4, 0.5))
_SHRINKAGES = (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True)
class DriftingPIPOptions(PIPOptions):
    """PIP's options and those of the end of a task."""

    drift: DriftOptions
    local_head: Literal["averaged", "closed-form"]
    server_rate: Annotated[float, Bounds(0, exclusive_minimum=True)]


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
        self.conclusion = TaskMoments(workspace, self.structure, self.latest_features, options.drift)

    def merge(self, round_: Round, contributions: Sequence[Contribution], arrays: Arrays) -> NamedArrays:
        """As PIP; then the prompts go `server_rate` times as far as clients went on average."""
        found, rate = super().merge(round_, contributions, arrays), self.options.server_rate
        if rate != 1:
            for name in self.structure.trained(round_.task):
                before = arrays[name].astype(np.float64)
                found[name] = (before + rate * (found[name] - before)).astype(np.float32)
        return found

    def end_task(self, task: int, arrays: Arrays) -> NamedArrays:
        """Move what is known of earlier classes, add the task's own, solve for the head."""
        options = self.options.drift
        parts = [pooled(arrays, part) for part in options.parts]
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

    def _sends_head(self) -> bool:
        """A head in closed form is the clients' own business: it follows from the prototypes."""
        return self.options.local_head == "averaged"

    def _begin(self, job: ClientJob) -> tuple[PromptTrainer, Prototypes]:
        """With a head in closed form, a client that is sent no prototypes begins with its own."""
        if self._sends_head():
            return super()._begin(job)
        classes, dim = self.workspace.tasks.classes[job.task], self.workspace.backbone.dim
        rows = self.head.names(job.task)
        zeros = (np.zeros((len(classes), dim), dtype=np.float32), np.zeros(len(classes), dtype=np.float32))
        trainer = self._trainer(replace(job, arrays={**job.arrays, **dict(zip(rows, zeros, strict=True))}))
        known = self.sharing.known(job)
        if not len(known):
            known = self.sharing.own(trainer, job)
        with torch.no_grad():
            for name, value in zip(rows, starting_head(known, classes), strict=True):
                trainer.state[name].copy_(torch.from_numpy(value))
        return trainer, known

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
