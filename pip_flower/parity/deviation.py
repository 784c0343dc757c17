"""How far our arrays are from the reference's."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pip_flower.parity.fixtures import Fixture

TOLERANCE = 1e-5
TOLERANCE_AFTER_STEP = 2e-5


@dataclass(frozen=True)
class Deviation:
    """The largest absolute difference in one array."""

    file: str
    array: str
    largest: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether it is within its tolerance."""
        return self.largest <= self.tolerance


def compare(fixture: Fixture, array: str, ours: Any, tolerance: float = TOLERANCE) -> Deviation:
    """Our array against the fixture's of that name; NaN equals NaN, another shape is infinitely far."""
    return difference(fixture.name, array, ours, fixture[array], tolerance)


def difference(file: str, array: str, ours: Any, reference: Any, tolerance: float = TOLERANCE) -> Deviation:
    """As `compare`, with the reference given."""
    a, b = _plain(ours), _plain(reference)
    if a.shape != b.shape or (np.isnan(a) != np.isnan(b)).any():
        return Deviation(file, array, float("inf"), tolerance)
    apart = np.abs(a - b)[~np.isnan(b)]
    return Deviation(file, array, float(apart.max(initial=0.0)), tolerance)


def _plain(value: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    return np.asarray(value, dtype=np.float64)
