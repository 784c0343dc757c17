import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pip_flower.config.compose import Selection
from pip_flower.data.tasks import split_tasks
from pip_flower.method.configuration import load_config


def test_label_order_and_targets() -> None:
    tasks = split_tasks(load_config(Selection()))
    assert tasks.classes == ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
    assert tasks.seen(2) == (0, 1, 2, 3)
    assert tasks.targets(np.array([5, 4, 5]), 2).tolist() == [1, 0, 1]
    assert tasks.rows(np.array([0, 2, 3, 9]), 1).tolist() == [1, 2]


def test_positions_are_those_among_all_classes_seen() -> None:
    tasks = split_tasks(load_config(Selection(overrides="dataset.class_order=seed")))
    for count in range(1, 6):
        seen = np.array(tasks.seen(count))
        assert tasks.positions(seen, count).tolist() == list(range(2 * count))
        # Those of a class stay as more tasks come: columns of scores are only added.
        assert tasks.positions(seen, 5).tolist() == list(range(2 * count))


def test_seeded_order_is_a_permutation_that_follows_the_seed() -> None:
    chosen = [
        split_tasks(load_config(Selection(overrides="dataset.class_order=seed", seed=s))) for s in (1, 1, 2)
    ]
    assert chosen[0] == chosen[1] != chosen[2]
    assert sorted(chosen[0].seen(5)) == list(range(10))


def test_a_base_task_and_increments() -> None:
    overrides = "dataset.classes=100 schedule.tasks=11 schedule.rounds=11 schedule.base_classes=50"
    tasks = split_tasks(load_config(Selection(overrides=overrides)))
    assert [len(classes) for classes in tasks.classes] == [50, *[5] * 10]
    assert sorted(tasks.seen(11)) == list(range(100))
    assert tasks.targets(np.array([54, 50]), 1).tolist() == [4, 0]


def test_a_given_order() -> None:
    overrides = "dataset.class_order=given dataset.given_order=[9,0,8,1,7,2,6,3,5,4]"
    tasks = split_tasks(load_config(Selection(overrides=overrides)))
    assert tasks.classes == ((9, 0), (8, 1), (7, 2), (6, 3), (5, 4))


@settings(max_examples=60, deadline=None)
@given(
    tasks=st.integers(1, 8),
    increment=st.integers(1, 6),
    base=st.integers(0, 20),
    order=st.sampled_from(["label", "seed", "given"]),
    seed=st.integers(0, 10**6),
    data=st.data(),
)
def test_splits_are_disjoint_complete_sized_and_repeatable(
    tasks: int, increment: int, base: int, order: str, seed: int, data: st.DataObject
) -> None:
    base = base if tasks > 1 else 0
    sizes = [base, *[increment] * (tasks - 1)] if base else [increment] * tasks
    classes = max(2, sum(sizes))
    sizes = sizes if classes == sum(sizes) else [2]
    given_order = data.draw(st.permutations(range(classes))) if order == "given" else []
    overrides = (
        f"dataset.classes={classes} schedule.tasks={len(sizes)} schedule.rounds={len(sizes)} "
        f"schedule.base_classes={base} dataset.class_order={order} "
        f"dataset.given_order={str(list(given_order)).replace(' ', '')}"
    )
    config = load_config(Selection(overrides=overrides, seed=seed))
    split = split_tasks(config)
    assert [len(part) for part in split.classes] == sizes
    assert sorted(split.seen(len(split))) == list(range(classes))
    assert split == split_tasks(config)
    if order != "seed":
        assert list(split.seen(len(split))) == (list(given_order) or list(range(classes)))
