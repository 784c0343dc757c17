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


def test_copies_make_up_for_what_a_batch_lacks() -> None:
    labels = np.array([0] * 12 + [1] * 4)
    # A batch of 8 has 6 of class 0 and 2 of class 1: 4 each on average. Class 1 lacks 4 - 2 - 1 (its mean),
    # class 2, which the client does not hold, 4 - 0 - 1.
    assert prototypes.balanced_copies(np.array([0, 1, 2]), labels, 8).tolist() == [0, 1, 3]
    # One batch holds all 16 samples, however large it may be: 8 each on average.
    for size in (16, 100):
        assert prototypes.balanced_copies(np.array([0, 1, 2]), labels, size).tolist() == [0, 3, 7]
    found = prototypes.balanced_copies(np.array([2]), labels, 8)
    assert found.dtype == np.int64


@given(seed=st.integers(0, 1000), held=st.integers(1, 5), count=st.integers(5, 60), size=st.integers(1, 64))
def test_with_its_copies_no_class_appears_less_often_than_the_average(
    seed: int, held: int, count: int, size: int
) -> None:
    labels = np.random.default_rng(seed).integers(0, held, count)
    classes = np.arange(6)
    copies = prototypes.balanced_copies(classes, labels, size)
    batch = min(size, count)
    appears = batch * np.bincount(labels, minlength=6) / count + 1 + copies
    average = batch / len(np.unique(labels))
    assert (copies >= 0).all()
    assert (appears >= average - 0.5).all()
    assert (appears[copies > 0] <= average + 0.5).all()


def rows(*values: tuple[int, float, float, int]) -> Prototypes:
    """A table of (class, mean, variance, count) in two dimensions, the second ten times the first."""
    labels, means, variances, counts = (np.array(column) for column in zip(*values, strict=True))
    scale = np.array([1.0, 10.0])
    return Prototypes(labels, means[:, None] * scale, variances[:, None] * scale, counts)


def test_rows_are_chosen_by_class() -> None:
    known = rows((1, 1.0, 4.0, 2), (4, 2.0, 5.0, 3), (6, 3.0, 6.0, 4))
    assert known.select([6, 1, 9]).mean.tolist() == [[1, 10], [3, 30]]
    assert known.without([6, 1, 9]).variance.tolist() == [[5, 50]]
    assert known.at_least(3).count.tolist() == [3, 4]
    assert len(known) == 3


def test_the_wire_has_fixed_names_and_types() -> None:
    sent = rows((1, 1.0, 4.0, 2)).as_arrays()
    assert tuple(sent) == prototypes.ARRAY_NAMES
    assert [value.dtype for value in sent.values()] == [np.int64, np.float32, np.float32, np.int64]
    narrow = {name: value.astype(np.float32) for name, value in sent.items()}
    received = Prototypes.from_arrays(narrow)
    assert [received.classes.dtype, received.mean.dtype] == [np.int64, np.float64]
    assert [received.variance.dtype, received.count.dtype] == [np.float64, np.int64]
    assert (received.mean.tolist(), received.variance.tolist()) == ([[1, 10]], [[4, 40]])
    assert (received.classes.tolist(), received.count.tolist()) == ([1], [2])


def test_no_sample_and_no_class_make_tables_of_the_right_width() -> None:
    none = prototypes.summarise(np.zeros((0, 3), np.float32), np.zeros(0, np.int64), PAPER)
    for found in (none, prototypes.empty(3)):
        assert (found.mean.shape, found.variance.shape) == ((0, 3), (0, 3))
        assert (found.classes.shape, found.count.shape) == ((0,), (0,))
        assert found.classes.dtype == found.count.dtype == np.int64


def test_a_summary_of_two_classes() -> None:
    features = np.array([[1.0, 0.0], [3.0, 0.0], [5.0, 7.0]], np.float32)
    found = prototypes.summarise(features, np.array([4, 4, 2]), PAPER)
    assert found.classes.tolist() == [2, 4]
    assert found.mean.tolist() == [[5, 7], [2, 0]]
    assert found.variance.tolist() == [[0, 0], [1, 0]]
    assert found.count.tolist() == [1, 2]
    assert (found.mean.dtype, found.classes.dtype, found.count.dtype) == (np.float64, np.int64, np.int64)


def test_merging_adds_counts_and_weighs_by_client() -> None:
    merged = prototypes.merge(
        [rows((1, 0.0, 1.0, 4)), rows((1, 4.0, 1.0, 6), (3, 2.0, 2.0, 5))], [3, 1], PAPER
    )
    assert merged.classes.tolist() == [1, 3]
    assert merged.count.tolist() == [10, 5]
    assert merged.mean.tolist() == [[1, 10], [2, 20]]
    # Within: 1 and 10; between: 3/4 * 1^2 + 1/4 * 3^2 = 3 and a hundredfold.
    assert merged.variance.tolist() == [[4, 310], [2, 20]]
    assert merged.count.dtype == np.int64


def test_an_update_keeps_order_counts_and_variances() -> None:
    found = prototypes.update(
        rows((2, 1.0, 1.0, 1), (5, 2.0, 2.0, 2)), rows((1, 3.0, 3.0, 3), (5, 4.0, 4.0, 4))
    )
    assert found.classes.tolist() == [1, 2, 5]
    assert found.count.tolist() == [3, 1, 4]
    assert found.variance[:, 1].tolist() == [30, 10, 40]
