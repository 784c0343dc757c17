"""Sums of sums are the sums of the pooled samples."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pip_flower.config.sections import AggregationConfig
from pip_flower.methods.moments import (
    Moments,
    factored,
    moments_of,
    nearest_moment,
    packed,
    pool,
    robust_pool,
    unfactored,
    unpacked,
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
