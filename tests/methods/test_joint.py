from typing import Any

from support.runs import play, strategy_for


def test_one_place_sees_the_data_of_all_tasks(small_run: dict[str, Any]) -> None:
    method = strategy_for(small_run | {"method": "joint"}).method
    assert [len(method.samples(task, 0, 1)) for task in range(3)] == [32, 64, 96]
    notes = play(small_run | {"method": "joint"})
    assert [record.clients for record in notes.rounds] == [[0]] * 6
    assert sum(notes.evaluations[-1].accuracies) / 3 > 60


def test_all_tasks_are_one_to_the_prompts(small_run: dict[str, Any]) -> None:
    method = strategy_for(small_run | {"method": "joint"}).method
    assert set(method.start_task(1, {})) == {"head.1.weight", "head.1.bias"}
    later = set(method.predicting(3)) - set(method.predicting(1))
    assert later == {f"head.{task}.{kind}" for task in (1, 2) for kind in ("weight", "bias")}
    assert {"general", "expert.0", "key.0"} <= set(method.predicting(3))
