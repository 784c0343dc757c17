"""PIP with aligned heads: the server refits the head on the Gaussians of all classes seen, after each task.

Masked training never lets the rows of two tasks compete, so their logits need not be comparable. The server
holds a Gaussian per class anyway; refitting costs no byte on the wire. The averaged rows stay as they are;
predictions read refitted copies.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.config.schema import Bounds, ConfigError
from pip_flower.config.sections import Config
from pip_flower.data.samples import Samples
from pip_flower.method.workspace import Workspace
from pip_flower.methods.pip.pip import PIP, PIPOptions
from pip_flower.methods.refit import joined_rows, split_rows
from pip_flower.models.heads import LinearHead
from pip_flower.prototypes import Prototypes
from pip_flower.runtime.streams import torch_stream


@dataclass(frozen=True)
class AlignOptions:
    """Draws per class and step, Adam steps and rate, and how the variances are changed: shrunk towards the
    mean of all classes by a fraction, then multiplied by a factor."""

    draws: Annotated[int, Bounds(1)]
    steps: Annotated[int, Bounds(1)]
    learning_rate: Annotated[float, Bounds(0, exclusive_minimum=True)]
    shrinkage: Annotated[float, Bounds(0, 1)]
    variance: Annotated[float, Bounds(0)]


@dataclass(frozen=True)
class AlignedPIPOptions(PIPOptions):
    """PIP's options and those of the refit."""

    align: AlignOptions


class AlignedPIP(PIP):
    """Clients do what PIP's clients do; the server refits, and prediction reads what it refitted."""

    options: AlignedPIPOptions
    has_released_code = False

    @classmethod
    def check(cls, config: Config) -> None:
        """The server must have what it refits, and what it refits it on."""
        super().check(config)
        options: AlignedPIPOptions = config.method.options
        if not options.prototypes.share:
            raise ConfigError(
                "method.prototypes.share",
                "False leaves the server without the Gaussians that pip-align refits the head on",
                "Give true, or choose the method pip-dualprompt, which can do without",
            )
        if options.head != "shared":
            raise ConfigError(
                "method.head",
                f"{options.head!r} leaves the server without the head that pip-align refits",
                "Give shared, or choose the method pip-dualprompt",
            )

    def __init__(self, workspace: Workspace, options: AlignedPIPOptions) -> None:
        super().__init__(workspace, options)
        self.aligned = LinearHead(self.head.width, prefix="aligned")

    def predicting(self, tasks: int) -> tuple[str, ...]:
        """Prompts and keys, and the refitted rows of the tasks seen."""
        return (*self.structure.used(tasks), *self.aligned.names_of(range(tasks)))

    def scores(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:
        """As PIP, with the refitted rows."""
        plain, refitted = self.head.names_of(range(tasks)), self.aligned.names_of(range(tasks))
        rows = {name: arrays[aligned] for name, aligned in zip(plain, refitted, strict=True)}
        return super().scores({**arrays, **rows}, samples, tasks)

    def end_task(self, task: int, arrays: Arrays) -> NamedArrays:
        """Start from the averaged rows and let all classes seen compete. A class without a Gaussian (nobody
        with enough samples of it was drawn) does not take part: its rows stay as averaged."""
        classes = np.array(self.workspace.tasks.seen(task + 1))
        gaussians = Prototypes.from_arrays(arrays).select(classes)
        known = np.flatnonzero(np.isin(classes, gaussians.classes))
        weight, bias = joined_rows(self.head, arrays, task + 1)
        if len(known):
            order = np.searchsorted(gaussians.classes, classes[known])
            generator = torch_stream(self.config.seed, "align", task)
            weight[known], bias[known] = align_head(
                weight[known], bias[known], gaussians.at(order), self.options.align, generator
            )
        sizes = [len(labels) for labels in self.workspace.tasks.classes[: task + 1]]
        return split_rows(self.aligned, (weight, bias), sizes)


def align_head(
    weight: NDArray[Any],
    bias: NDArray[Any],
    gaussians: Prototypes,
    options: AlignOptions,
    generator: torch.Generator,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows weight [K, D] and bias [K], row i for class i of `gaussians`, after unmasked, class-balanced
    cross-entropy on fresh draws in every step."""
    parameters = [torch.tensor(value, dtype=torch.float32, requires_grad=True) for value in (weight, bias)]
    mean = torch.from_numpy(gaussians.mean).float()
    deviation = torch.from_numpy(np.sqrt(_variances(gaussians, options))).float()
    targets = torch.arange(len(mean)).repeat_interleave(options.draws)
    optimizer = torch.optim.Adam(parameters, lr=options.learning_rate)
    for _ in range(options.steps):
        noise = torch.randn(len(targets), mean.shape[1], generator=generator)
        features: Tensor = mean[targets] + deviation[targets] * noise
        loss = F.cross_entropy(F.linear(features, *parameters), targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return parameters[0].detach().numpy(), parameters[1].detach().numpy()


def _variances(gaussians: Prototypes, options: AlignOptions) -> NDArray[np.floating]:
    """[K, D], never negative."""
    own = gaussians.variance.clip(min=0)
    shrunk = own + options.shrinkage * (own.mean(axis=0) - own)
    return np.asarray(options.variance * shrunk)
