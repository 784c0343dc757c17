import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pip_flower import prototypes
from pip_flower.aggregation import clipped, clipped_rows, merged_model, robust_total, weighted_mean
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
