from pip_flower.schedule import Schedule


def test_rounds_and_tasks() -> None:
    schedule = Schedule(tasks=3, rounds=6)
    assert [schedule.task_of(r) for r in range(1, 7)] == [0, 0, 1, 1, 2, 2]
    assert [r for r in range(1, 7) if schedule.starts_task(r)] == [1, 3, 5]
    assert [r for r in range(1, 7) if schedule.ends_task(r)] == [2, 4, 6]
