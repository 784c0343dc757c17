"""A head for one round of local training, in closed form from the Gaussians of the task's classes."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pip_flower.prototypes import Prototypes

# How far the logit of the own class is above another's, on average over the class means.
_GAP = 4.0
# How far variances are moved towards their mean.
_SHRINKAGE = 0.3

Rows = NDArray[np.float32]


def starting_head(known: Prototypes, classes: Sequence[int]) -> tuple[Rows, Rows]:
    """Weight [C, D] and bias [C] of linear discriminant analysis with a diagonal covariance that all classes
    share, scaled to probabilities that training can still change; a class that nobody knows has a weight of
    zero and the smallest bias."""
    mean = known.mean.astype(np.float64)
    variance = np.average(known.variance.astype(np.float64), axis=0, weights=known.count)
    size = variance.mean() or 1.0
    variance = (1 - _SHRINKAGE) * variance / size + _SHRINKAGE
    centre = mean.mean(axis=0)
    apart = mean - centre
    weight = apart / variance
    bias = -weight @ centre - 0.5 * (weight * apart).sum(axis=1)
    weight, bias = (_scale(weight, bias, mean) * found for found in (weight, bias))
    rows = [list(classes).index(label) for label in known.classes.tolist()]
    all_weights = np.zeros((len(classes), mean.shape[1]), dtype=np.float32)
    all_biases = np.full(len(classes), bias.min(), dtype=np.float32)
    all_weights[rows], all_biases[rows] = weight, bias
    return all_weights, all_biases


def _scale(weight: NDArray[np.float64], bias: NDArray[np.float64], mean: NDArray[np.float64]) -> float:
    """What makes the average gap what it should be; one class alone has none."""
    others = len(mean) * (len(mean) - 1)
    if not others:
        return 1.0
    logits = mean @ weight.T + bias
    gaps = np.diag(logits)[:, None] - logits
    return float(_GAP / max(gaps.sum() / others, 1e-9))
