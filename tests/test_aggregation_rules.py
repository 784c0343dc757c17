import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pip_flower import prototypes
from pip_flower.aggregation import clipped, clipped_rows, is_plain, merged_model, robust_total, weighted_mean
from pip_flower.config.sections import AggregationConfig
from pip_flower.fidelity import Paper
from pip_flower.prototypes import Prototypes
from support.runs import play

MEAN = AggregationConfig("mean", 0.2, 0.0, 0.0)
MEDIAN = AggregationConfig("median", 0.2, 0.0, 0.0)
TRIMMED = AggregationConfig("trimmed-mean", 0.2, 0.0, 0.0)
CLIPPED = AggregationConfig("mean", 0.2, 1.5, 2.0)


def model(*values: float) -> dict[str, np.ndarray]:
    return {"a": np.array(values, np.float32), "b": np.full((2, 2), values[0], np.float32)}


def table(label: int, mean: float, variance: float, count: int = 5) -> Prototypes:
    row = np.ones((1, 3))
    return Prototypes(np.array([label]), mean * row, variance * row, np.array([count]))


def test_the_plain_rule_is_the_weighted_mean_bit_for_bit() -> None:
    rng = np.random.default_rng(0)
    updates = [{"a": rng.normal(size=50).astype(np.float32)} for _ in range(5)]
    weights = [1.0, 2.0, 3.0, 5.0, 7.0]
    merged = merged_model(updates, weights, updates[0], MEAN)
    assert np.array_equal(merged["a"], weighted_mean(updates, weights)["a"])


@pytest.mark.parametrize("rule", [MEDIAN, TRIMMED])
@settings(max_examples=40, deadline=None)
@given(bad=st.lists(st.floats(-1e30, 1e30), min_size=2, max_size=2), seed=st.integers(0, 999))
def test_a_fifth_of_the_replies_cannot_leave_the_range_of_the_rest(
    rule: AggregationConfig, bad: list[float], seed: int
) -> None:
    honest = np.random.default_rng(seed).normal(size=(8, 4)).astype(np.float32)
    updates = [{"a": row} for row in honest] + [{"a": np.full(4, value, np.float32)} for value in bad]
    merged = merged_model(updates, [1.0] * 8 + [1e9] * 2, updates[0], rule)["a"]
    assert (merged >= honest.min(axis=0)).all()
    assert (merged <= honest.max(axis=0)).all()


def test_a_change_is_scaled_down_over_all_arrays_together() -> None:
    sent = model(0, 0)
    near = clipped(model(3, 4), sent, longest=1.0)
    length = np.sqrt(sum(float((value**2).sum()) for value in near.values()))
    assert length == pytest.approx(1.0)
    assert near["a"][1] / near["a"][0] == pytest.approx(4 / 3)
    assert clipped(model(0.1, 0.1), sent, longest=1.0)["a"].tolist() == model(0.1, 0.1)["a"].tolist()


def test_rows_without_a_known_centre_are_held_near_their_median() -> None:
    rows = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 0.0], [1e6, 1e6]])
    near = clipped_rows(rows, None, longest=2.0)
    assert np.abs(near[:3] - rows[:3]).max() == 0
    assert np.linalg.norm(near[3] - np.median(rows, axis=0)) == pytest.approx(2.0)


@pytest.mark.parametrize("rule", [MEDIAN, TRIMMED, CLIPPED])
def test_prototypes_of_few_liars_do_little(rule: AggregationConfig) -> None:
    honest = [table(4, 1.0 + 0.01 * i, 0.25) for i in range(8)]
    liars = [table(4, 900.0, 1e6), table(4, -900.0, 1e6)]
    merged = prototypes.robust_merge(honest + liars, [1.0] * 10, prototypes.empty(3), Paper(), rule)
    assert merged.classes.tolist() == [4]
    assert merged.mean == pytest.approx(np.ones((1, 3)), abs=0.6)
    assert (merged.variance < 4).all()
    plain = prototypes.robust_merge(honest + liars, [1.0] * 10, prototypes.empty(3), Paper(), MEAN)
    assert (plain.variance > 1e5).all()


def test_robust_rules_on_equal_replies_change_nothing() -> None:
    same = [table(2, 1.5, 0.5) for _ in range(5)]
    for rule in (MEAN, MEDIAN, TRIMMED, CLIPPED):
        merged = prototypes.robust_merge(same, [1.0] * 5, prototypes.empty(3), Paper(), rule)
        assert merged.mean == pytest.approx(np.full((1, 3), 1.5))
        assert merged.variance == pytest.approx(np.full((1, 3), 0.5))


def test_a_robust_total_counts_only_those_who_hold_a_class() -> None:
    counts = [np.array([4.0, 0.0]), np.array([2.0, 3.0]), np.array([5.0, 0.0])]
    sums = [np.outer(count, [1.0, 2.0]) for count in counts]
    sums[2] = sums[2] * -1000
    nothing = (np.zeros((2, 2)), np.zeros(2))
    total = robust_total(sums, counts, nothing, MEDIAN)
    assert total[0].tolist() == [11.0, 22.0]
    assert total[1].tolist() == [3.0, 6.0]
    # Two honest means of the class are on the way already: the liar is pulled towards them.
    clip = AggregationConfig("mean", 0.2, 0.0, 1.0)
    held = robust_total(sums, counts, (np.array([[6.0, 12.0], [3.0, 6.0]]), np.array([6.0, 3.0])), clip)
    assert np.linalg.norm(held[0] / 11 - [1.0, 2.0]) < 1.0


@pytest.mark.parametrize("method", ["pip-dualprompt", "pip-align", "ncm", "ranpac", "frozen-head"])
@pytest.mark.parametrize("rule", ["median", "trimmed-mean"])
def test_every_kind_of_method_runs_with_robust_rules(small_run: dict, method: str, rule: str) -> None:
    small = "method.features=40" if method == "ranpac" else ""
    robust = f"aggregation.rule={rule} aggregation.clip_norm=2 aggregation.clip_prototypes=5"
    overrides = f"{small_run['overrides']} {small} {robust} schedule.rounds=3 federation.clients_per_round=4"
    notes = play(small_run | {"method": method, "overrides": f"{overrides} training.epochs=1"})
    assert all(np.isfinite(value).all() for value in notes.final.values())
    assert notes.evaluations[0].accuracies[0] > 60


def two(label: int, mean: tuple[float, float], variance: float, count: int) -> Prototypes:
    """A table of one class in two dimensions."""
    return Prototypes(np.array([label]), np.array([mean]), np.full((1, 2), variance), np.array([count]))


def test_a_median_of_gaussians_by_hand() -> None:
    tables = [two(3, (0.0, 1.0), 1.0, 2), two(3, (1.0, 5.0), 2.0, 3), two(3, (9.0, 2.0), 0.5, 4)]
    other = two(7, (4.0, 4.0), 3.0, 6)
    found = prototypes.robust_merge([*tables, other], [1.0] * 4, prototypes.empty(2), Paper(), MEDIAN)
    assert found.classes.tolist() == [3, 7]
    assert found.mean.tolist() == [[1, 2], [4, 4]]
    # Medians of 1 + 1, 2 + 0, 0.5 + 64 and of 1 + 1, 2 + 9, 0.5 + 0.
    assert found.variance.tolist() == [[2, 2], [3, 3]]
    assert found.count.tolist() == [9, 6]
    assert found.count.dtype == np.int64


def test_gaussians_are_clipped_towards_what_is_known_of_their_class() -> None:
    rule = AggregationConfig("mean", 0.2, 0.0, 5.0)
    known = prototypes.update(two(1, (0.0, 0.0), 1.0, 1), two(2, (50.0, 50.0), 1.0, 1))
    tables = [two(1, (6.0, 8.0), 1.0, 3), two(1, (3.0, 0.0), 25.0, 5)]
    found = prototypes.robust_merge(tables[:1], [1.0], known, Paper(), rule)
    # Ten away in the mean, nowhere in the deviation: halved.
    assert found.mean == pytest.approx(np.array([[3.0, 4.0]]))
    assert found.variance == pytest.approx(np.ones((1, 2)))
    found = prototypes.robust_merge(tables[1:], [1.0], known, Paper(), rule)
    # (3, 0) in the mean and (4, 4) in the deviation: a vector of length sqrt(41), cut to 5.
    cut = 5 / np.sqrt(41)
    assert found.mean == pytest.approx(np.array([[3 * cut, 0.0]]))
    assert found.variance == pytest.approx(np.full((1, 2), (1 + 4 * cut) ** 2))
    both = prototypes.robust_merge(tables, [1.0, 3.0], known, Paper(), rule)
    assert both.mean == pytest.approx(np.array([[0.25 * 3 + 0.75 * 3 * cut, 1.0]]))
    assert both.count.tolist() == [8]


def test_clipping_keeps_each_clients_rows_with_its_weight() -> None:
    rule = AggregationConfig("mean", 0.2, 0.0, 1000.0)
    wide = prototypes.update(two(1, (2.0, 2.0), 4.0, 1), two(2, (6.0, 6.0), 9.0, 1))
    tables = [wide, two(2, (10.0, 10.0), 9.0, 2), two(1, (4.0, 8.0), 4.0, 7)]
    clipped_, plain = (
        prototypes.robust_merge(tables, [1.0, 3.0, 2.0], prototypes.empty(2), Paper(), used)
        for used in (rule, MEAN)
    )
    assert clipped_.mean == pytest.approx(plain.mean)
    assert clipped_.variance == pytest.approx(plain.variance)
    assert clipped_.count.tolist() == plain.count.tolist() == [8, 3]


def test_a_trimmed_mean_leaves_out_as_many_on_either_side() -> None:
    values = [{"a": np.array([value], np.float32)} for value in (100.0, 1.0, 3.0, 2.0, -50.0)]
    assert merged_model(values, [1.0] * 5, values[0], TRIMMED)["a"].tolist() == [2.0]
    # A fifth of four is less than one: nobody is left out.
    assert merged_model(values[:4], [1.0] * 4, values[0], TRIMMED)["a"].tolist() == [26.5]
    # Ten of which two go on either side.
    ten = [{"a": np.array([value], np.float32)} for value in (0, 90, 1, 2, 3, 4, 5, 6, 7, 80)]
    found = merged_model(ten, [1.0] * 10, ten[0], TRIMMED)["a"]
    assert found.tolist() == [pytest.approx(4.5)]
    assert found.dtype == np.float32


def test_changes_are_clipped_before_they_are_averaged() -> None:
    sent = {"a": np.array([1.0, 1.0], np.float32), "b": np.array([2.0], np.float32)}
    far = {"a": np.array([1.0, 5.0], np.float32), "b": np.array([5.0], np.float32)}
    # (0, 4) and 3: a change of length 5, cut to 2.5.
    rule = AggregationConfig("mean", 0.2, 2.5, 0.0)
    found = merged_model([far, sent], [1.0, 1.0], sent, rule)
    assert found["a"].tolist() == [1.0, 2.0]
    assert found["b"].tolist() == [2.75]
    exact = clipped(far, sent, longest=5.0)
    assert exact["a"] is far["a"]
    assert clipped(far, sent, longest=4.0)["a"].dtype == np.float32


def test_rows_are_cut_to_their_distance_from_the_known_centre() -> None:
    found = clipped_rows(np.array([[4.0, 5.0], [1.0, 1.0], [1.0, 1.5]]), np.array([1.0, 1.0]), 2.5)
    assert found.tolist() == [[2.5, 3.0], [1.0, 1.0], [1.0, 1.5]]


def test_a_plain_total_of_clipped_means_by_hand() -> None:
    rule = AggregationConfig("mean", 0.2, 0.0, 1.0)
    sums, counts = (
        [np.array([[8.0], [0.0]]), np.array([[30.0], [4.0]])],
        [np.array([2.0, 0.0]), np.array([6.0, 1.0])],
    )
    # Means 4 and 5 of the first group, known to be at 4.5: nothing is cut, and the sums add up.
    assert robust_total(sums, counts, (np.array([[9.0], [0.0]]), np.array([2.0, 0.0])), rule).tolist() == [
        [38.0],
        [4.0],
    ]
    # Known to be at 3: means 4 and 4.
    assert robust_total(sums, counts, (np.array([[3.0], [0.0]]), np.array([1.0, 0.0])), rule).tolist() == [
        [32.0],
        [4.0],
    ]
    # Of the second group 6 is known: the mean 4 is cut to 5.
    assert robust_total(sums, counts, (np.array([[3.0], [12.0]]), np.array([1.0, 2.0])), rule)[
        1
    ].tolist() == [5.0]


def test_a_group_that_nobody_holds_does_not_end_the_total() -> None:
    sums, counts = [np.array([[0.0], [3.0]])] * 3, [np.array([0.0, 1.0])] * 3
    nothing = (np.zeros((2, 1)), np.zeros(2))
    assert robust_total(sums, counts, nothing, MEDIAN).tolist() == [[0.0], [9.0]]


def test_sums_are_plain_only_without_clipping() -> None:
    assert is_plain(MEAN)
    assert not is_plain(MEDIAN)
    assert not is_plain(AggregationConfig("mean", 0.2, 0.0, 1.0))
    assert is_plain(AggregationConfig("mean", 0.2, 1.0, 0.0))
