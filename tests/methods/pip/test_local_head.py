"""The head that a round of training starts from, against what can be said of it without computing it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pip_flower.methods.pip.local_head import starting_head
from pip_flower.prototypes import Prototypes

DIM = 6


def known(seed: int, classes: list[int], variance: float | None = None) -> Prototypes:
    rng = np.random.default_rng(seed)
    shape = (len(classes), DIM)
    spread = rng.uniform(0.1, 3, shape) if variance is None else np.full(shape, variance)
    mean = rng.normal(size=shape).astype(np.float32)
    return Prototypes(np.array(classes), mean, spread.astype(np.float32), rng.integers(1, 9, len(classes)))


@given(seed=st.integers(0, 1000), classes=st.integers(2, 8), variance=st.floats(1e-3, 1e3))
def test_with_one_variance_the_nearest_mean_wins(seed: int, classes: int, variance: float) -> None:
    table = known(seed, list(range(classes)), variance)
    weight, bias = starting_head(table, range(classes))
    points = np.random.default_rng(seed + 1).normal(size=(50, DIM))
    nearest = np.linalg.norm(points[:, None] - table.mean, axis=2).argmin(axis=1)
    assert np.array_equal((points @ weight.T + bias).argmax(axis=1), nearest)


@given(seed=st.integers(0, 1000), classes=st.integers(2, 8), scale=st.floats(1e-2, 1e2))
def test_it_is_as_sure_whatever_the_features_scale(seed: int, classes: int, scale: float) -> None:
    table = known(seed, list(range(classes)))
    scaled = Prototypes(table.classes, scale * table.mean, scale**2 * table.variance, table.count)
    for found in (table, scaled):
        weight, bias = starting_head(found, range(classes))
        logits = found.mean @ weight.T + bias
        gaps = (np.diag(logits)[:, None] - logits)[~np.eye(classes, dtype=bool)]
        assert gaps.mean() == pytest.approx(4, rel=1e-3)


def test_noisy_coordinates_count_less() -> None:
    mean = np.array([[1, 1], [-1, -1]], dtype=np.float32)
    variance = np.array([[0.1, 4], [0.1, 4]], dtype=np.float32)
    weight, _ = starting_head(Prototypes(np.array([3, 5]), mean, variance, np.array([1, 1])), [3, 5])
    # Variances 0.1 and 4 in units of their mean 2.05, moved towards 1 by 0.3.
    ratio = (0.7 * 4 / 2.05 + 0.3) / (0.7 * 0.1 / 2.05 + 0.3)
    assert weight[0, 0] / weight[0, 1] == pytest.approx(ratio, rel=1e-5)


def test_classes_weigh_in_the_common_variance_by_their_samples() -> None:
    mean = np.array([[1, 1], [-1, -1]], dtype=np.float32)
    variance = np.array([[1, 2], [1, 8]], dtype=np.float32)
    weight, _ = starting_head(Prototypes(np.array([0, 1]), mean, variance, np.array([3, 1])), [0, 1])
    # (3 * 2 + 1 * 8) / 4 = 3.5 beside 1; their mean is 2.25.
    assert weight[0, 0] / weight[0, 1] == pytest.approx(
        (0.7 * 3.5 + 0.3 * 2.25) / (0.7 + 0.3 * 2.25), rel=1e-5
    )


def test_a_class_that_nobody_knows_never_leads_at_the_centre() -> None:
    table = known(1, [4, 9])
    weight, bias = starting_head(table, [9, 2, 4])
    assert not weight[1].any()
    assert bias[1] == min(bias[0], bias[2])
    other, _ = starting_head(table, [4, 9])
    assert np.array_equal(weight[[2, 0]], other)


def test_one_class_alone_is_no_trouble() -> None:
    weight, bias = starting_head(known(2, [7]), [7, 8])
    assert np.isfinite(weight).all()
    assert np.isfinite(bias).all()
