"""Gaussians that move, and the head that they give."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from pip_flower.methods.moments import Moments, moments_of
from pip_flower.methods.pip.discriminant import (
    Gaussians,
    best_ridge,
    best_shrinkage,
    covariance,
    discriminant,
    linear_drift,
    mean_drift,
)


def gaussians(moments: Moments) -> Gaussians:
    return Gaussians(moments.count, moments.mean, moments.scatter)


def drawn(seed: int, count: int = 400, dim: int = 6, classes: int = 4) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    mix = rng.normal(size=(dim, dim))
    targets = rng.integers(0, classes, count)
    centres = rng.normal(size=(classes, dim)) * 3
    return centres[targets] + rng.normal(size=(count, dim)) @ mix, targets


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([0.05, 0.3, 0.9]))
def test_the_head_is_that_of_scikit_learn(seed: int, shrinkage: float) -> None:
    features, targets = drawn(seed)
    weight, bias = discriminant(gaussians(moments_of(features, targets, 4)), shrinkage)
    reference = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(features, targets)
    np.testing.assert_allclose(weight, reference.coef_, rtol=1e-6, atol=1e-8)
    # All classes are alike likely here.
    np.testing.assert_allclose(bias, reference.intercept_ - np.log(reference.priors_), rtol=1e-6, atol=1e-8)


@given(st.integers(0, 1000), st.floats(1e-3, 1e3))
def test_features_that_did_not_move_are_not_moved(seed: int, ridge: float) -> None:
    features, targets = drawn(seed, 50)
    moments = moments_of(features, targets, 4, features.copy())
    assert moments.drift is not None
    known = gaussians(moments)
    for by in (mean_drift(moments.drift), linear_drift(moments.drift, ridge)):
        assert np.array_equal(by.shift, np.zeros(6))
        assert by.linear is None or np.array_equal(by.linear, np.zeros((6, 6)))
        moved = known.moved(by)
        assert np.array_equal(moved.mean, known.mean)
        assert np.array_equal(moved.scatter, known.scatter)


def test_a_linear_drift_is_recovered() -> None:
    rng = np.random.default_rng(5)
    by, shift = np.eye(6) + 0.3 * rng.normal(size=(6, 6)), rng.normal(size=6)
    old, targets = drawn(1, 3000)
    earlier, labels = drawn(2, 3000)
    drift = moments_of(old @ by + shift, targets, 4, old).drift
    assert drift is not None
    moved = gaussians(moments_of(earlier, labels, 4)).moved(linear_drift(drift, 1e-9))
    wanted = moments_of(earlier @ by + shift, labels, 4)
    np.testing.assert_allclose(moved.mean, wanted.mean, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(moved.scatter, wanted.scatter, rtol=1e-5, atol=1e-2)


def test_a_strong_ridge_leaves_the_mean_drift() -> None:
    old, targets = drawn(1)
    drift = moments_of(old * 1.5 + 2, targets, 4, old).drift
    assert drift is not None
    probe = np.random.default_rng(0).normal(size=(5, 6))
    found = linear_drift(drift, 1e9).apply(probe)
    np.testing.assert_allclose(found, mean_drift(drift).apply(probe), atol=1e-6)
    assert np.abs(linear_drift(drift, 1e-6).apply(probe) - found).max() > 0.1


def test_fewer_images_than_dimensions() -> None:
    features, targets = drawn(3, 5, dim=20)
    moments = moments_of(features, targets, 4, features + 1.0)
    assert moments.drift is not None
    assert np.isfinite(linear_drift(moments.drift, 1.0).apply(features)).all()
    for shrinkage in (0.0, 0.2):
        weight, bias = discriminant(gaussians(moments), shrinkage)
        assert np.isfinite(weight).all()
        assert np.isfinite(bias).all()
    assert ((features @ weight.T + bias).argmax(axis=1) == targets).mean() >= 0.8


def test_a_class_without_samples_never_wins() -> None:
    features, targets = drawn(4)
    moments = moments_of(features, targets, 5)
    weight, bias = discriminant(gaussians(moments), 0.1)
    assert not np.any((features @ weight.T + bias).argmax(axis=1) == 4)


def test_one_image_in_all_is_enough_to_go_on() -> None:
    moments = moments_of(np.ones((1, 3)), np.array([0]), 1, np.zeros((1, 3)))
    weight, bias = discriminant(gaussians(moments), 0.2)
    assert np.isfinite(weight).all()
    assert np.isfinite(bias).all()
    assert moments.drift is not None
    np.testing.assert_allclose(linear_drift(moments.drift, 1.0).apply(np.zeros((1, 3))), np.ones((1, 3)))


def test_shrinkage_moves_towards_the_mean_variance() -> None:
    known = Gaussians(np.array([10.0]), np.zeros((1, 2)), np.array([[40.0, 10.0], [10.0, 20.0]]))
    np.testing.assert_allclose(covariance(known, 0.0), [[4.0, 1.0], [1.0, 2.0]])
    np.testing.assert_allclose(covariance(known, 0.5), [[3.5, 0.5], [0.5, 2.5]])
    np.testing.assert_allclose(covariance(known, 1.0), 3 * np.eye(2))


def test_the_ridge_is_chosen_for_the_held_part() -> None:
    rng = np.random.default_rng(0)
    old = rng.normal(size=(40, 30))
    by = rng.normal(size=(30, 30)) * 0.2
    signal, noise = old @ by, rng.normal(size=(40, 30)) * 5
    targets = np.zeros(40, dtype=np.int64)

    def parts(change: Any) -> list[Any]:
        return [moments_of((old + change)[rows], targets[rows], 1, old[rows]).drift for rows in _halves(40)]

    ridges = (0.001, 0.1, 10.0, 1000.0)
    assert best_ridge(*parts(noise), ridges) == 1000.0
    assert best_ridge(*parts(signal), ridges) < 1000.0

    def error(ridge: float) -> float:
        fitted, held = (np.arange(40)[rows] for rows in _halves(40))
        found = linear_drift(moments_of((old + signal)[fitted], targets[fitted], 1, old[fitted]).drift, ridge)
        return float(((found.apply(old[held]) - (old + signal)[held]) ** 2).sum())

    assert best_ridge(*parts(signal), ridges) == min(ridges, key=error)


def test_the_shrinkage_is_the_likeliest_for_the_held_part() -> None:
    features, targets = drawn(7, 60, dim=20)
    rows = _halves(60)
    fitted, held = (moments_of(features[r], targets[r], 4) for r in rows)
    values = (0.01, 0.1, 0.3, 0.6, 0.9)

    def likelihood(value: float) -> float:
        common = covariance(gaussians(fitted), value)
        apart = features[rows[1]] - fitted.mean[targets[rows[1]]]
        return float(
            -np.einsum("nd,de,ne->", apart, np.linalg.inv(common), apart)
            - len(apart) * np.linalg.slogdet(common)[1]
        )

    assert best_shrinkage(gaussians(fitted), held, 0, values) == max(values, key=likelihood)
    before = Gaussians(np.array([9.0]), np.zeros((1, 20)), np.zeros((20, 20)))
    assert best_shrinkage(before.joined(fitted), held, 1, values) in values


def _halves(count: int) -> tuple[slice, slice]:
    return slice(0, count // 2), slice(count // 2, count)


def test_a_transport_moves_every_sample_behind_a_gaussian() -> None:
    features, targets = drawn(9)
    old, labels = drawn(10)
    drift = moments_of(old * 0.7 + 1, labels, 4, old).drift
    assert drift is not None
    by = linear_drift(drift, 0.5)
    moved = gaussians(moments_of(features, targets, 4)).moved(by)
    direct = moments_of(by.apply(features), targets, 4)
    np.testing.assert_allclose(moved.mean, direct.mean, atol=1e-9)
    np.testing.assert_allclose(moved.scatter, direct.scatter, rtol=1e-9, atol=1e-7)
    with pytest.raises(ValueError, match="operands"):
        by.apply(np.zeros((2, 3)))
