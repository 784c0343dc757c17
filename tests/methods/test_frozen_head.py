from typing import Any

from support.runs import play


def test_only_head_rows_exist_and_they_learn(small_run: dict[str, Any]) -> None:
    notes = play(small_run | {"method": "frozen-head"})
    assert set(notes.final) == {f"head.{task}.{kind}" for task in range(3) for kind in ("weight", "bias")}
    for record in notes.rounds:
        assert record.metrics["last_epoch_loss"] < record.metrics["first_epoch_loss"]
