"""Refit a head on features drawn from class Gaussians, so that rows learnt apart fit together."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pip_flower.prototypes import Prototypes
from pip_flower.config.schema import Bounds


@dataclass(frozen=True)
class AlignOptions:
    """Draws per class and step, Adam steps and rate, and how the variances are changed: shrunk towards the
    mean of all classes by a fraction, then multiplied by a factor."""

    draws: Annotated[int, Bounds(1)]
    steps: Annotated[int, Bounds(1)]
    learning_rate: Annotated[float, Bounds(0, exclusive_minimum=True)]
    shrinkage: Annotated[float, Bounds(0, 1)]
    variance: Annotated[float, Bounds(0)]


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
