from pip_flower.config.sections import ScheduleConfig
from pip_flower.rounds.schedule import Schedule


def test_rounds_and_tasks() -> None:
    schedule = Schedule.from_config(ScheduleConfig(tasks=3, base_classes=0, rounds=6))
    assert (schedule.tasks, schedule.rounds) == (3, 6)
    assert [schedule.task_of(r) for r in range(1, 7)] == [0, 0, 1, 1, 2, 2]
    assert [r for r in range(1, 7) if schedule.starts_task(r)] == [1, 3, 5]
    assert [r for r in range(1, 7) if schedule.ends_task(r)] == [2, 4, 6]


def test_more_rounds_lengthen_only_tasks_that_are_not_over() -> None:
    schedule = Schedule.from_config(ScheduleConfig(tasks=3, base_classes=0, rounds=6))
    longer = ScheduleConfig(tasks=3, base_classes=0, rounds=12)
    assert schedule.lengthened(longer, done=0).lengths == (4, 4, 4)
    assert schedule.lengthened(longer, done=3).lengths == (2, 4, 4)
    assert schedule.lengthened(longer, done=4).lengths == (2, 2, 4)
    changed = schedule.lengthened(longer, done=3)
    assert [changed.task_of(r) for r in range(1, changed.rounds + 1)] == [0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert [r for r in range(1, 11) if changed.ends_task(r)] == [2, 6, 10]


def test_a_round_knows_its_place() -> None:
    schedule = Schedule((1, 3))
    rounds = [schedule.round(number) for number in range(1, 5)]
    assert [round_.number for round_ in rounds] == [1, 2, 3, 4]
    assert [round_.task for round_ in rounds] == [0, 1, 1, 1]
    assert [round_.starts_task for round_ in rounds] == [True, True, False, False]
    assert [round_.ends_task for round_ in rounds] == [True, False, False, True]
    assert [schedule.finished_tasks(done) for done in range(5)] == [0, 1, 1, 1, 2]
