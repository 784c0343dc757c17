"""How arrays of several clients become one, rule by rule."""

from typing import Any

import numpy as np
import pytest

from pip_flower.config.sections import AggregationConfig
from pip_flower.method.merging import Kept, Mean, Merge, Sum, merged

PLAIN = AggregationConfig("mean", 0.2, 0.0, 0.0)
MEDIAN = AggregationConfig("median", 0.2, 0.0, 0.0)


def merge(updates: list[Any], rules: dict[str, Merge], arrays: Any, config: Any = PLAIN) -> dict[str, Any]:
    weights = [1.0, 3.0, 1.0][: len(updates)]
    return {name: value.tolist() for name, value in merged(arrays, updates, weights, rules, config).items()}


def test_means_are_weighted_sums_run_on_or_replace_and_kept_arrays_stay() -> None:
    updates = [{name: np.array([value]) for name in "abcd"} for value in (2.0, 6.0)]
    arrays = {name: np.array([10.0]) for name in "abcd"}
    rules = {"a": Mean(), "b": Sum(), "c": Sum(running=False), "d": Kept()}
    assert merge(updates, rules, arrays) == {"a": [5.0], "b": [18.0], "c": [8.0]}


def test_a_sum_that_replaces_needs_nothing_to_replace() -> None:
    assert merge([{"s": np.array([1.0, 2.0])}], {"s": Sum(running=False)}, {}) == {"s": [1.0, 2.0]}


@pytest.mark.parametrize(("axis", "shape"), [(0, (2, 3)), (1, (3, 2))])
def test_a_robust_sum_is_the_median_of_the_clients_means_times_all_samples(
    axis: int, shape: tuple[int, int]
) -> None:
    counts = np.array([[2.0, 1.0], [2.0, 1.0], [4.0, 2.0]])
    means = (1.0, 2.0, 100.0)
    along = (slice(None), None) if axis == 0 else (None, slice(None))
    updates = [
        {"s": np.ones(shape) * mean * count[along], "n": count}
        for mean, count in zip(means, counts, strict=True)
    ]
    arrays = {"s": np.full(shape, 5.0), "n": np.zeros(2)}
    rules: dict[str, Merge] = {"s": Sum("n", axis=axis), "n": Sum()}
    found = merged(arrays, updates, [1.0] * 3, rules, MEDIAN)
    # Two is the median; the groups have 8 and 4 samples in all.
    assert np.array_equal(found["s"], 5.0 + np.ones(shape) * 2.0 * np.array([8.0, 4.0])[along])
    assert found["n"].tolist() == [8.0, 4.0]


def test_counts_are_added_up_whatever_the_rule() -> None:
    updates = [{"n": np.array([float(value)])} for value in (1, 1, 10)]
    assert merge(updates, {"n": Sum()}, {"n": np.zeros(1)}, MEDIAN) == {"n": [12.0]}


def test_one_group_in_all_without_an_axis() -> None:
    counts = (1.0, 2.0, 1.0)
    updates = [
        {"s": np.full((2, 2), mean * count), "n": np.array([count])}
        for mean, count in zip((1.0, 3.0, 50.0), counts, strict=True)
    ]
    arrays = {"s": np.array([[1.0, 2.0], [3.0, 4.0]]), "n": np.array([5.0])}
    rules: dict[str, Merge] = {"s": Sum("n"), "n": Sum()}
    # The median mean is 3, of four samples in all.
    assert merge(updates, rules, arrays, MEDIAN) == {"s": [[13.0, 14.0], [15.0, 16.0]], "n": [9.0]}


def test_a_robust_sum_that_replaces_looks_at_nothing_earlier() -> None:
    updates = [{"s": np.array([[value]]), "n": np.array([1.0])} for value in (1.0, 2.0, 60.0)]
    rules: dict[str, Merge] = {"s": Sum("n", axis=0, running=False)}
    assert merge(updates, rules, {"s": np.array([[7.0]]), "n": np.array([1.0])}, MEDIAN) == {"s": [[6.0]]}
    assert merge(updates, rules, {}, MEDIAN) == {"s": [[6.0]]}


def test_clipped_sums_compare_with_what_earlier_rounds_added_up_to() -> None:
    clip = AggregationConfig("mean", 0.2, 0.0, 1.0)
    updates = [{"s": np.array([[20.0]]), "n": np.array([2.0])}]
    rules: dict[str, Merge] = {"s": Sum("n", axis=0)}
    # Known: a mean of 4. The reply's mean of 10 is cut to 5, of two samples.
    assert merge(updates, rules, {"s": np.array([[12.0]]), "n": np.array([3.0])}, clip) == {"s": [[22.0]]}
    assert merge(updates, rules, {"s": np.array([[12.0]]), "n": np.array([3.0])}) == {"s": [[32.0]]}


def test_what_is_averaged_is_clipped_towards_what_was_sent() -> None:
    clip = AggregationConfig("mean", 0.2, 2.0, 0.0)
    assert merge([{"a": np.array([9.0])}], {"a": Mean()}, {"a": np.array([5.0])}, clip) == {"a": [7.0]}
