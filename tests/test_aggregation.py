"""Weighted means of named arrays."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pip_flower.aggregation import weighted_mean


def test_weights_are_normalised() -> None:
    updates = [{"a": np.array([0.0, 1.0])}, {"a": np.array([4.0, 1.0])}]
    mean = weighted_mean(updates, [3, 1])
    assert mean["a"].tolist() == [1, 1]
    assert mean["a"].dtype == np.float32


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=6), st.floats(0.01, 100))
def test_scaling_all_weights_changes_nothing(weights: list[float], factor: float) -> None:
    rng = np.random.default_rng(len(weights))
    updates = [{"x": rng.normal(size=(3, 2)).astype(np.float32)} for _ in weights]
    scaled = weighted_mean(updates, [factor * weight for weight in weights])
    assert np.allclose(weighted_mean(updates, weights)["x"], scaled["x"], atol=1e-6)


def test_equal_updates_are_their_own_mean() -> None:
    update = {"x": np.array([0.1, 1e8, -3.3], dtype=np.float32)}
    assert np.array_equal(weighted_mean([update] * 3, [1, 5, 2])["x"], update["x"])


@pytest.mark.parametrize("weights", [[], [1.0], [0.0, 0.0], [2.0, -1.0]])
def test_weights_that_make_no_mean_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="cannot be averaged"):
        weighted_mean([{"x": np.zeros(1)}, {"x": np.ones(1)}], weights)


def test_a_client_of_weight_nothing_changes_nothing() -> None:
    updates = [{"x": np.array([1.0])}, {"x": np.array([9.0])}]
    assert weighted_mean(updates, [0.5, 0.0])["x"].tolist() == [1.0]
