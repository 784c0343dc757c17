"""Class prototypes: merging in any order and grouping gives the statistics of the pooled samples."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pip_flower import prototypes
from pip_flower.fidelity import Paper
from pip_flower.prototypes import Prototypes

PAPER = Paper()


def drawn(seed: int, count: int, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(shift, 2, (count, 3)), rng.integers(0, 4, count)


def table(label: int, mean: float, variance: float, count: int = 5) -> Prototypes:
    return Prototypes(np.array([label]), np.full((1, 3), mean), np.full((1, 3), variance), np.array([count]))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(1, 40), cuts=st.lists(st.integers(0, 40), max_size=4))
def test_any_grouping_gives_the_statistics_of_all_samples(seed: int, count: int, cuts: list[int]) -> None:
    features, labels = drawn(seed, count)
    rows = np.random.default_rng(seed + 1).permutation(count)
    parts = [part for part in np.split(rows, sorted(min(cut, count) for cut in cuts)) if len(part)]
    tables = [prototypes.summarise(features[part], labels[part], PAPER) for part in parts]
    merged = prototypes.pool(tables)
    assert merged.classes.tolist() == sorted(set(labels.tolist()))
    for row, label in enumerate(merged.classes):
        group = features[labels == label]
        assert merged.count[row] == len(group)
        assert np.allclose(merged.mean[row], group.mean(axis=0), atol=1e-12)
        assert np.allclose(merged.variance[row], group.var(axis=0), atol=1e-12)


def test_float32_features_far_from_zero_keep_their_variance() -> None:
    features, labels = drawn(0, 400, shift=3000.0)
    stored = features.astype(np.float32)
    parts = [prototypes.summarise(stored[i::7], labels[i::7], PAPER) for i in range(7)]
    merged = prototypes.pool(parts)
    for row, label in enumerate(merged.classes):
        exact = stored[labels == label].astype(np.float64).var(axis=0)
        assert np.allclose(merged.variance[row], exact, rtol=1e-9)


def test_one_sample_has_variance_zero() -> None:
    single = prototypes.summarise(np.ones((1, 3), np.float32), np.array([2]), PAPER)
    assert single.variance.tolist() == [[0, 0, 0]]


@settings(max_examples=50, deadline=None)
@given(
    means=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=5),
    weights=st.lists(st.floats(0.1, 50), min_size=5, max_size=5),
)
def test_the_global_table_follows_equations_14_and_15(means: list[float], weights: list[float]) -> None:
    tables = [table(7, mean, 0.5 + i) for i, mean in enumerate(means)]
    used = np.array(weights[: len(means)])
    merged = prototypes.merge(tables, list(used), PAPER)
    mu = (used * means).sum() / used.sum()
    exact = (used * (np.square(means) + 0.5 + np.arange(len(means)))).sum() / used.sum() - mu**2
    assert np.allclose(merged.mean, mu)
    assert np.allclose(merged.variance, exact, rtol=1e-6, atol=1e-6)
    assert (merged.variance >= 0).all()


def test_only_clients_that_hold_a_class_count_for_it() -> None:
    merged = prototypes.merge([table(1, 2.0, 0.0), table(2, 5.0, 0.0), table(2, 8.0, 0.0)], [9, 1, 2], PAPER)
    assert merged.mean[:, 0].tolist() == [2, 7]


def test_a_class_nobody_reported_keeps_its_last_value() -> None:
    old = prototypes.update(table(5, 1.0, 1.0), table(3, 2.0, 1.0))
    new = prototypes.update(old, table(5, 9.0, 4.0))
    assert new.classes.tolist() == [3, 5]
    assert new.mean[:, 0].tolist() == [2, 9]


def test_classes_with_few_samples_can_be_left_out() -> None:
    both = prototypes.update(table(1, 0.0, 1.0, count=2), table(2, 0.0, 1.0, count=3))
    assert both.at_least(3).classes.tolist() == [2]


def test_injected_prototypes_lie_between_the_mean_and_one_sigma_above() -> None:
    both = prototypes.update(table(1, 0.0, 4.0), table(2, 10.0, 9.0))
    rng = np.random.default_rng(0)
    features, labels = prototypes.augmented(both, np.array([2, 3]), rng, PAPER)
    assert labels.tolist() == [1, 2, 1, 1, 2, 2, 2]
    assert np.array_equal(features[:2], both.mean)
    beta = (features[2:, 0] - [0, 0, 10, 10, 10]) / [2, 2, 3, 3, 3]
    assert ((beta > 0) & (beta < 1)).all()
    assert len(set(beta)) == 5
    assert np.allclose(features, features[:, :1])


def test_tables_survive_the_wire() -> None:
    features, labels = drawn(3, 30)
    sent = prototypes.summarise(features, labels, PAPER)
    received = Prototypes.from_arrays(sent.as_arrays())
    assert np.array_equal(received.classes, sent.classes)
    assert np.allclose(received.variance, sent.variance, rtol=1e-6)


def test_an_empty_table_has_no_rows() -> None:
    assert len(prototypes.update(prototypes.empty(3), prototypes.empty(3))) == 0
