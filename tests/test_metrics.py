import pytest
from hypothesis import given
from hypothesis import strategies as st

from pip_flower.metrics import AccuracyMatrix

percent = st.floats(0, 100)


@st.composite
def matrices(draw: st.DrawFn, least: int = 1) -> list[list[float]]:
    tasks = draw(st.integers(least, 6))
    return [draw(st.lists(percent, min_size=t, max_size=t)) for t in range(1, tasks + 1)]


def test_figures_of_a_known_matrix() -> None:
    matrix = AccuracyMatrix()
    for row in ([90.0], [70.0, 80.0], [80.0, 50.0, 60.0]):
        matrix.add(row)
    assert matrix.after_task() == [90.0, 75.0, pytest.approx(190 / 3)]
    assert matrix.average() == pytest.approx((90 + 75 + 190 / 3) / 3)
    assert matrix.performance_drop() == pytest.approx(90 - 190 / 3)
    # After task 3: task 1 fell from its best 90 to 80, task 2 from 80 to 50.
    assert matrix.forgetting_by_task() == [[20.0], [10.0, 30.0]]
    assert matrix.forgetting() == [20.0, 20.0]
    assert matrix.backward_transfer() == pytest.approx((80 - 90 + 50 - 80) / 2)


def test_a_task_that_gains_is_forgotten_by_less_than_nothing() -> None:
    matrix = AccuracyMatrix()
    matrix.add([50.0])
    assert matrix.forgetting() == []
    assert matrix.summary()["forgetting"] == 0.0
    matrix.add([60.0, 10.0])
    assert matrix.forgetting() == [-10.0]
    # From its best so far, not from when it was just learnt.
    matrix.add([55.0, 10.0, 0.0])
    assert matrix.summary()["forgetting_by_task"] == [[-10.0], [5.0, 0.0]]
    assert matrix.summary()["forgetting_after_task"] == [-10.0, 2.5]
    assert matrix.summary()["forgetting"] == -3.75


@given(matrices())
def test_forgetting_is_the_best_of_earlier_evaluations_minus_the_present(rows: list[list[float]]) -> None:
    found = AccuracyMatrix(rows).forgetting_by_task()
    assert [len(lost) for lost in found] == list(range(1, len(rows)))
    for now, lost in enumerate(found, start=1):
        for task, value in enumerate(lost):
            earlier = [rows[then][task] for then in range(task, now)]
            assert value == max(earlier) - rows[now][task]
            assert -100 <= value <= 100


@given(matrices(least=2))
def test_forgetting_is_negative_exactly_where_a_task_beats_all_that_it_had(rows: list[list[float]]) -> None:
    matrix = AccuracyMatrix(rows)
    for now, lost in enumerate(matrix.forgetting_by_task(), start=1):
        for task, value in enumerate(lost):
            beaten = all(rows[now][task] > rows[then][task] for then in range(task, now))
            assert (value < 0) == beaten


@given(matrices(least=2), st.floats(-50, 50))
def test_forgetting_ignores_the_last_task_and_a_common_shift(rows: list[list[float]], shift: float) -> None:
    matrix = AccuracyMatrix(rows)
    other = AccuracyMatrix([[value + shift for value in row] for row in rows])
    other.rows[-1][-1] = 0.0
    assert other.forgetting() == pytest.approx(matrix.forgetting(), abs=1e-9)


@given(percent, percent, percent)
def test_of_two_tasks_forgetting_is_backward_transfer_turned_round(a: float, b: float, c: float) -> None:
    matrix = AccuracyMatrix([[a], [b, c]])
    assert matrix.forgetting() == [-matrix.backward_transfer()]


@given(matrices())
def test_the_released_code_zeroes_its_matrix_and_finds_no_forgetting(rows: list[list[float]]) -> None:
    assert not any(AccuracyMatrix(rows, memory=False).forgetting())


def test_a_row_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 1 accuracies"):
        AccuracyMatrix().add([1.0, 2.0])


def test_a_summary_names_every_figure() -> None:
    matrix = AccuracyMatrix([[90.0], [70.0, 80.0]])
    assert matrix.summary() == {
        "after_task": [90.0, 75.0],
        "average": 82.5,
        "last": 75.0,
        "performance_drop": 15.0,
        "forgetting": 20.0,
        "forgetting_after_task": [20.0],
        "forgetting_by_task": [[20.0]],
        "backward_transfer": -20.0,
    }


def test_rows_are_copies_of_what_is_added() -> None:
    matrix, row = AccuracyMatrix(), [50.0]
    matrix.add(row)
    row[0] = 0.0
    assert matrix.rows == [[50.0]]
    with pytest.raises(ValueError, match="expected 2 accuracies, got 1"):
        matrix.add([1.0])


def test_one_task_has_no_transfer() -> None:
    assert AccuracyMatrix([[40.0]]).backward_transfer() == 0.0
