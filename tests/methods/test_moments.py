"""Sums of sums are the sums of the pooled samples."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pip_flower.config.sections import AggregationConfig
from pip_flower.methods.moments import (
    Drift,
    Moments,
    factored,
    moments_of,
    nearest_moment,
    packed,
    pool,
    robust_pool,
    unfactored,
    unpacked,
    without_correlations,
)

DIM, CLASSES = 4, 3
PLAIN = AggregationConfig(rule="mean", trim=0.2, clip_norm=0.0, clip_prototypes=0.0)


def samples(seed: int, count: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    targets = rng.integers(0, CLASSES, count)
    new = rng.normal(size=(count, DIM)) * 3 + targets[:, None] + 50
    return new, targets, new + rng.normal(size=(count, DIM))


def close(found: Moments, wanted: Moments) -> None:
    assert found.drift is not None
    assert wanted.drift is not None
    pairs = [(found, wanted, ("count", "mean", "scatter"))]
    pairs += [(found.drift, wanted.drift, ("count", "old", "change", "spread", "cross"))]
    for one, other, names in pairs:
        for name in names:
            expected = np.asarray(getattr(other, name))
            scale = np.abs(expected).max() or 1.0
            np.testing.assert_allclose(np.asarray(getattr(one, name)) / scale, expected / scale, atol=1e-10)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1000), st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_any_partition_and_order_of_clients_gives_the_pooled_moments(seed: int, owners: list[int]) -> None:
    new, targets, old = samples(seed, len(owners))
    whole = moments_of(new, targets, CLASSES, old)
    held = [np.flatnonzero(np.array(owners) == client) for client in sorted(set(owners))]
    parts = [moments_of(new[rows], targets[rows], CLASSES, old[rows]) for rows in held]
    close(pool(parts), whole)
    close(pool(parts[::-1]), whole)
    close(pool([pool(parts[:1]), *parts[1:]]), whole)
    close(robust_pool(parts, PLAIN), whole)


def test_against_plain_sums() -> None:
    new, targets, old = samples(1, 30)
    found = moments_of(new, targets, CLASSES, old)
    second = sum(np.outer(z, z) for z in new)
    between = sum(n * np.outer(m, m) for n, m in zip(found.count, found.mean, strict=True))
    np.testing.assert_allclose(found.scatter, second - between)
    for label in range(CLASSES):
        np.testing.assert_allclose(found.mean[label], new[targets == label].mean(axis=0))
    assert found.drift is not None
    np.testing.assert_allclose(found.drift.change, (new - old).mean(axis=0))
    np.testing.assert_allclose(found.drift.spread, 30 * np.cov(old.T, bias=True))
    both = np.cov(old.T, (new - old).T, bias=True)
    np.testing.assert_allclose(found.drift.cross, 30 * both[:DIM, DIM:])


def test_one_image_per_class_has_no_scatter() -> None:
    found = moments_of(np.arange(12.0).reshape(3, 4), np.array([0, 1, 2]), CLASSES)
    assert np.array_equal(found.scatter, np.zeros((4, 4)))
    assert found.drift is None


@given(st.integers(0, 100))
def test_packing_loses_nothing(seed: int) -> None:
    matrix = np.random.default_rng(seed).normal(size=(5, 5))
    symmetric = matrix + matrix.T
    assert np.array_equal(unpacked(packed(symmetric), 5), symmetric)
    assert packed(symmetric).shape == (15,)


@pytest.mark.parametrize("rank", [1, 3, 6, 9])
def test_a_scatter_of_low_rank_keeps_its_variances(rank: int) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 6)) * np.array([5, 3, 1, 1, 0.5, 0.1])
    scatter = rows.T @ rows
    directions, rest = factored(scatter, rank)
    assert directions.shape == (rank, 6)
    kept = unfactored(directions, rest)
    np.testing.assert_allclose(np.diag(kept), np.diag(scatter))
    assert np.linalg.eigvalsh(kept).min() >= 0
    if rank >= 6:
        np.testing.assert_allclose(kept, scatter, atol=1e-9)
    else:
        less, left = factored(scatter, rank + 1)
        off = ~np.eye(6, dtype=bool)
        worse = np.linalg.norm((kept - scatter)[off])
        assert np.linalg.norm((unfactored(less, left) - scatter)[off]) <= worse + 1e-9


@pytest.mark.parametrize("rule", ["median", "trimmed-mean"])
def test_one_liar_among_five_moves_robust_moments_no_further_than_the_others_reach(rule: Any) -> None:
    config = AggregationConfig(rule=rule, trim=0.2, clip_norm=0.0, clip_prototypes=0.0)
    parts = []
    for seed in range(5):
        new, targets, old = samples(seed, 60)
        parts.append(moments_of(new, targets, CLASSES, old))
    liar = Moments(parts[4].count, parts[4].mean + 1e6, parts[4].scatter * 1e9, parts[4].drift)
    found = robust_pool([*parts[:4], liar], config)
    honest = np.stack([part.mean for part in parts[:4]])
    assert np.all(found.mean <= honest.max(axis=0) + 1e-9)
    assert np.all(found.mean >= honest.min(axis=0) - 1e-9)
    largest = max(np.trace(part.scatter) for part in parts[:4]) * 5
    assert 0 < np.trace(found.scatter) <= largest * 1.1
    assert np.linalg.eigvalsh(found.scatter).min() > -1e-6


def test_clipping_bounds_a_class_mean() -> None:
    config = AggregationConfig(rule="mean", trim=0.2, clip_norm=0.0, clip_prototypes=2.0)
    parts = [Moments(np.ones(1), np.full((1, 2), value), np.zeros((2, 2))) for value in (0.0, 0.1, 1000.0)]
    assert np.linalg.norm(robust_pool(parts, config).mean) < 2.0


def test_the_nearest_moment_has_no_negative_direction() -> None:
    matrix = np.array([[1.0, 2.0], [2.0, 1.0]])
    np.testing.assert_allclose(nearest_moment(matrix), np.full((2, 2), 1.5))


def test_a_client_without_a_sample_adds_nothing() -> None:
    new, targets, old = samples(0, 9)
    some = moments_of(new, targets, CLASSES, old)
    close(pool([some, moments_of(new[:0], targets[:0], CLASSES, old[:0])]), some)


@pytest.mark.parametrize("rule", ["mean", "median", "trimmed-mean"])
def test_what_nobody_holds_a_sample_of_is_nothing_under_every_rule(rule: Any) -> None:
    new, targets, old = samples(0, 0)
    none = moments_of(new, targets, CLASSES, old)
    found = robust_pool([none, none], replace(PLAIN, rule=rule))
    assert not found.count.any()
    assert not found.scatter.any()
    assert found.drift is not None
    assert not found.drift.change.any()


def test_a_robust_pool_by_hand() -> None:
    """Clients with 1, 1 and 2 samples of one class in one dimension; a second class that one client holds."""

    def part(count: tuple[float, float], mean: tuple[float, float], scatter: float, moved: float) -> Moments:
        n = sum(count)
        found = Drift(
            n, np.array([moved]), np.array([2 * moved]), np.array([[n * moved]]), np.array([[-n * moved]])
        )
        return Moments(np.array(count), np.array(mean)[:, None], np.array([[scatter]]), found)

    parts = [
        part((1, 0), (1.0, 0.0), 3.0, 1.0),
        part((1, 0), (2.0, 0.0), 5.0, 2.0),
        part((2, 2), (9.0, 7.0), 4.0, 6.0),
    ]
    found = robust_pool(parts, replace(PLAIN, rule="median"))
    assert found.count.tolist() == [4, 2]
    assert found.mean.tolist() == [[2.0], [7.0]]
    # Per sample 3, 5 and 1, of six samples in all.
    assert found.scatter == pytest.approx(np.array([[18.0]]))
    assert found.drift is not None
    assert found.drift.count == 6
    assert (found.drift.old.tolist(), found.drift.change.tolist()) == ([2.0], [4.0])
    assert found.drift.spread == pytest.approx(np.array([[12.0]]))
    assert found.drift.cross == pytest.approx(np.array([[-12.0]]))


def test_clipping_that_cuts_nothing_is_the_weighted_mean() -> None:
    parts = []
    for seed in range(3):
        new, targets, old = samples(seed, 20 + 10 * seed)
        parts.append(moments_of(new, targets, CLASSES, old))
    found = robust_pool(parts, replace(PLAIN, clip_prototypes=1e6))
    count = sum(part.count for part in parts)
    np.testing.assert_allclose(found.count, count)
    np.testing.assert_allclose(found.mean, sum(p.count[:, None] * p.mean for p in parts) / count[:, None])
    np.testing.assert_allclose(found.scatter, sum(part.scatter for part in parts))
    drifts = [part.drift for part in parts if part.drift is not None]
    assert found.drift is not None
    np.testing.assert_allclose(found.drift.old, sum(d.count * d.old for d in drifts) / count.sum())
    np.testing.assert_allclose(found.drift.spread, sum(d.spread for d in drifts))
    np.testing.assert_allclose(found.drift.cross, sum(d.cross for d in drifts))


def test_moments_without_drift_are_merged_without() -> None:
    new, targets, _ = samples(0, 12)
    parts = [moments_of(new[rows], targets[rows], CLASSES) for rows in (slice(6), slice(6, 12))]
    for config in (PLAIN, replace(PLAIN, rule="median")):
        assert robust_pool(parts, config).drift is None


def test_a_class_that_one_client_lacks_is_that_of_the_others_under_a_rule() -> None:
    new, targets, _ = samples(0, 30)
    some = moments_of(new, targets, CLASSES)
    less = moments_of(new[targets > 0], targets[targets > 0], CLASSES)
    found = robust_pool([some, less, less], replace(PLAIN, rule="median"))
    np.testing.assert_allclose(found.mean, some.mean)
    assert found.mean.dtype == np.float64


def test_the_nearest_moment_is_symmetric_and_leaves_moments_alone() -> None:
    rows = np.random.default_rng(0).normal(size=(9, 3))
    gram = rows.T @ rows
    np.testing.assert_allclose(nearest_moment(gram), gram)
    slanted = gram + np.array([[0.0, 0.2, 0.0], [-0.2, 0.0, 0.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(nearest_moment(slanted), gram)


def test_only_variances_are_left_without_correlations() -> None:
    new, targets, _ = samples(0, 12)
    some = moments_of(new, targets, CLASSES)
    found = without_correlations(some)
    assert np.array_equal(found.scatter, np.diag(np.diag(some.scatter)))
    assert np.array_equal(found.mean, some.mean)


def test_features_are_summed_in_double_precision() -> None:
    new = np.full((3, 1), 16777216.0, np.float32)
    new[1:] = 1.0
    found = moments_of(new, np.zeros(3, np.int64), 2, new + np.float32(0))
    assert found.mean.tolist() == [[16777218 / 3], [0.0]]
    assert found.count.tolist() == [3.0, 0.0]
    assert found.count.dtype == found.mean.dtype == np.float64
    assert found.drift is not None
    assert found.drift.old.tolist() == [16777218 / 3]


def test_directions_are_the_strongest_and_the_rest_is_no_less_than_nothing() -> None:
    directions, rest = factored(np.diag([1.0, 9.0, 4.0]), 2)
    assert np.abs(directions).tolist() == [[0, 3, 0], [0, 0, 2]]
    assert rest.tolist() == [1, 0, 0]
    directions, rest = factored(np.diag([4.0, 0.0, -1.0]), 5)
    assert np.abs(directions).tolist() == [[2, 0, 0], *[[0, 0, 0]] * 4]
    assert rest.tolist() == [0, 0, 0]
    assert unfactored(np.array([[1.0, 2.0]]), np.array([3.0, 5.0])).tolist() == [[4, 2], [2, 9]]
    assert packed(np.array([[1.0, 2.0], [2.0, 3.0]])).tolist() == [1, 2, 3]
