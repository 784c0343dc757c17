import pytest

from pip_flower.metrics import AccuracyMatrix


def test_figures_of_a_known_matrix() -> None:
    matrix = AccuracyMatrix()
    for row in ([90.0], [70.0, 80.0], [80.0, 50.0, 60.0]):
        matrix.add(row)
    assert matrix.after_task() == [90.0, 75.0, pytest.approx(190 / 3)]
    assert matrix.average() == pytest.approx((90 + 75 + 190 / 3) / 3)
    assert matrix.performance_drop() == pytest.approx(90 - 190 / 3)
    # After task 3: task 1 fell from its best 90 to 80, task 2 from 80 to 50.
    assert matrix.forgetting() == [20.0, 20.0]
    assert matrix.backward_transfer() == pytest.approx((80 - 90 + 50 - 80) / 2)


def test_forgetting_is_never_negative_and_zero_for_one_task() -> None:
    matrix = AccuracyMatrix()
    matrix.add([50.0])
    assert matrix.forgetting() == []
    assert matrix.summary()["forgetting"] == 0.0
    matrix.add([60.0, 10.0])
    assert matrix.forgetting() == [0.0]


def test_the_released_code_zeroes_its_matrix_and_finds_no_forgetting() -> None:
    rows = [[90.0], [70.0, 80.0], [80.0, 50.0, 60.0]]
    assert AccuracyMatrix(rows).summary()["forgetting"] == 20.0
    assert AccuracyMatrix(rows, memory=False).forgetting() == [0.0, 0.0]


def test_a_row_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 1 accuracies"):
        AccuracyMatrix().add([1.0, 2.0])
