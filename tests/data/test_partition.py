import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pip_flower.config.compose import Selection
from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import Config
from pip_flower.data.partition import drawn_classes, holders, partition_task, require_samples
from pip_flower.data.population import active_clients
from pip_flower.data.tasks import split_tasks
from pip_flower.method.configuration import load_config


def config(overrides: str = "", seed: int = 0) -> Config:
    return load_config(Selection(overrides=overrides, seed=seed))


KNOWN = {
    "classes": [[43, 53], [13, 23], [2, 12, 22, 32, 42, 52], [3, 33]],
    "iid": [[2, 12, 43, 53], [22, 23], [13, 32, 52], [3, 33, 42]],
    "dirichlet": [[2, 3, 12, 13, 23, 32, 33, 52], [42, 43], [53], [22]],
    "quantity": [[], [2, 13, 42], [3, 22, 23, 32, 33, 43, 52, 53], [12]],
}
SCHEMES = ["classes", "iid", "dirichlet", "quantity"]


@settings(max_examples=60, deadline=None)
@given(
    clients=st.integers(1, 12),
    fraction=st.floats(0.05, 1),
    alpha=st.floats(0.01, 100),
    sigma=st.floats(0, 3),
    scheme=st.sampled_from(SCHEMES),
    retire=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 10**6),
    data=st.data(),
)
def test_disjoint_complete_and_deterministic(
    clients: int,
    fraction: float,
    alpha: float,
    sigma: float,
    scheme: str,
    retire: float,
    seed: int,
    data: st.DataObject,
) -> None:
    initial = data.draw(st.integers(1, clients))
    setting = config(
        f"federation.clients={clients} federation.clients_per_round=1 partition.scheme={scheme} "
        f"partition.class_fraction={fraction} partition.alpha={alpha} partition.sigma={sigma} "
        f"population.initial={initial} population.retire={retire} dataset.class_order=seed",
        seed,
    )
    tasks = split_tasks(setting)
    labels = np.random.default_rng(seed).integers(0, 10, 500)
    dealt = [partition_task(setting, tasks, labels, task, "train") for task in range(5)]
    everything = np.concatenate([rows for parts in dealt for rows in parts])
    assert sorted(everything) == list(range(500))
    again = partition_task(setting, tasks, labels, 2, "train")
    assert all(np.array_equal(a, b) for a, b in zip(dealt[2], again, strict=True))
    for task, parts in enumerate(dealt):
        held = holders(setting, 2, task)
        active = set(active_clients(setting, task).tolist())
        for client, rows in enumerate(parts):
            assert client in active or len(rows) == 0
            assert set(labels[rows]) <= set(tasks.classes[task])
            if scheme in ("classes", "iid"):
                allowed = np.array(tasks.classes[task])[held[client]]
                assert set(labels[rows]) <= set(allowed)


@settings(max_examples=25, deadline=None)
@given(clients=st.integers(1, 10), fraction=st.floats(0.1, 1), seed=st.integers(0, 10**6))
def test_shared_samples_go_whole_to_everybody_who_holds_the_class(
    clients: int, fraction: float, seed: int
) -> None:
    text = f"federation.clients={clients} federation.clients_per_round=1 partition.class_fraction={fraction}"
    setting = config(f"{text} partition.samples=shared", seed)
    labels = np.arange(100) % 10
    tasks = split_tasks(setting)
    for task in range(5):
        held = holders(setting, 2, task)
        # The same classes as without sharing; only the samples differ.
        assert np.array_equal(held, holders(config(text, seed), 2, task))
        for client, rows in enumerate(partition_task(setting, tasks, labels, task, "train")):
            classes = np.array(tasks.classes[task])[held[client]]
            assert np.array_equal(rows, np.flatnonzero(np.isin(labels, classes)))


def spread(alpha: float) -> float:
    """Mean over classes and seeds of the squared shares' sum: 1 / clients if even, 1 if one holds all."""
    found = []
    for seed in range(20):
        setting = config(f"partition.scheme=dirichlet partition.alpha={alpha} federation.clients=10", seed)
        labels = np.repeat(np.arange(10), 400)
        for task in range(5):
            parts = partition_task(setting, split_tasks(setting), labels, task, "train")
            for label in split_tasks(setting).classes[task]:
                shares = np.array([(labels[rows] == label).sum() for rows in parts]) / 400
                found.append(float((shares**2).sum()))
    return float(np.mean(found))


@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
def test_dirichlet_shares_are_as_uneven_as_alpha_says(alpha: float) -> None:
    # E[sum of squares] of a symmetric Dirichlet over N is (alpha + 1) / (N alpha + 1).
    assert spread(alpha) == pytest.approx((alpha + 1) / (10 * alpha + 1), rel=0.12)


def test_quantities_are_log_normal_and_last_over_tasks() -> None:
    setting = config("partition.scheme=quantity partition.sigma=1.0 federation.clients=400")
    labels = np.repeat(np.arange(10), 20_000)
    tasks = split_tasks(setting)
    sizes = [
        np.array([len(rows) for rows in partition_task(setting, tasks, labels, task, "train")])
        for task in range(2)
    ]
    assert np.log(sizes[0]).std() == pytest.approx(1.0, abs=0.12)
    assert np.corrcoef(sizes)[0, 1] > 0.99
    even = config("partition.scheme=quantity partition.sigma=0 federation.clients=7")
    counts = [len(rows) for rows in partition_task(even, tasks, labels, 0, "train")]
    assert max(counts) - min(counts) <= 1


def test_known_numbers_on_every_machine() -> None:
    """These were dealt elsewhere; a change of NumPy or of a stream's name would show here."""
    labels = np.arange(60) % 10
    found = {}
    for scheme in SCHEMES:
        setting = config(f"partition.scheme={scheme} federation.clients=4", 2021)
        parts = partition_task(setting, split_tasks(setting), labels, 1, "train")
        found[scheme] = [rows.tolist() for rows in parts]
    assert found == KNOWN


def test_six_of_ten_classes_as_in_the_paper() -> None:
    setting = config("schedule.tasks=1 schedule.rounds=1 federation.clients=30")
    assert set(holders(setting, 10, 0).sum(axis=1)) == {6}


def test_a_broken_number_of_classes_is_right_on_average() -> None:
    setting = config("federation.clients=2000")
    counts = holders(setting, 2, 0).sum(axis=1)
    assert set(counts) == {1, 2}
    assert counts.mean() == pytest.approx(1.2, abs=0.05)


def test_test_samples_go_to_those_who_train_the_class() -> None:
    setting = config()
    tasks = split_tasks(setting)
    labels = np.arange(400) % 10
    train = partition_task(setting, tasks, labels, 1, "train")
    test = partition_task(setting, tasks, labels, 1, "test")
    assert [set(labels[rows]) for rows in train] == [set(labels[rows]) for rows in test]
    assert not all(np.array_equal(a, b) for a, b in zip(train, test, strict=True))


def test_a_client_without_samples_is_refused() -> None:
    setting = config("federation.clients=30 partition.scheme=iid")
    parts = partition_task(setting, split_tasks(setting), np.arange(10), 0, "train")
    with pytest.raises(ConfigError, match="task 1 has too few samples"):
        require_samples(setting, parts, 0)


def test_clients_of_the_released_code_draw_a_fraction_of_the_classes() -> None:
    setting = config(
        "schedule.tasks=1 schedule.rounds=1 partition.class_fraction=0.6 dataset.class_order=seed"
    )
    tasks = split_tasks(setting)
    drawn = {
        (client, round_): drawn_classes(setting, tasks, 0, client, round_)
        for client in range(6)
        for round_ in range(6)
    }
    for labels in drawn.values():
        assert len(labels) == 6
        assert labels == sorted(set(labels))
        assert set(labels) <= set(range(10))
    # Drawn anew for every client and in every round, but not by chance.
    assert len({tuple(labels) for labels in drawn.values()}) > 20
    assert drawn[2, 3] != drawn[3, 2]
    assert drawn_classes(setting, tasks, 0, 2, 3) == drawn[2, 3]
    assert (
        drawn_classes(
            config("schedule.tasks=1 schedule.rounds=1 partition.class_fraction=0.6", 5), tasks, 0, 2, 3
        )
        != drawn[2, 3]
    )


def test_the_classes_drawn_are_those_of_the_task_and_one_at_least() -> None:
    setting = config("partition.class_fraction=0.1")
    tasks = split_tasks(setting)
    for task in range(5):
        labels = drawn_classes(setting, tasks, task, 0, 1)
        assert len(labels) == 1
        assert set(labels) <= set(tasks.classes[task])


def test_a_class_that_nobody_drew_goes_to_whoever_has_fewest() -> None:
    setting = config("federation.clients=2 federation.clients_per_round=1 partition.class_fraction=0.05")
    held = holders(setting, 10, 0)
    # One class each by the draw, eight that nobody drew: dealt to either in turn.
    assert held.any(axis=0).all()
    assert held.sum(axis=1).tolist() in ([5, 5], [6, 5], [5, 6])


def test_only_those_who_learn_a_task_must_have_samples_of_it() -> None:
    setting = config("federation.clients=4 federation.clients_per_round=1 population.initial=2")
    some, none = np.arange(3), np.zeros(0, dtype=np.int64)
    require_samples(setting, [some, some, none, none], 0)
    with pytest.raises(ConfigError, match=r"task 1 .*clients \[1\] would get none"):
        require_samples(setting, [some, none, some, some], 0)
    with pytest.raises(ConfigError, match=r"task 5 .*clients \[0, 3\]"):
        require_samples(setting, [none, some, some[:1], none], 4)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_rows_are_sorted_and_tasks_dealt_apart(scheme: str) -> None:
    setting = config(f"partition.scheme={scheme} federation.clients=4 schedule.tasks=2 schedule.rounds=2")
    labels = np.arange(400) % 10
    tasks = split_tasks(setting)
    dealt = [
        partition_task(setting, tasks, labels, task, part) for task in (0, 1) for part in ("train", "test")
    ]
    for parts in dealt:
        assert all(rows.dtype == np.int64 and np.array_equal(rows, np.sort(rows)) for rows in parts)
    # Another stream for every task and part: positions among the task's samples are not the same.
    among = [
        [
            (np.searchsorted(np.flatnonzero(np.isin(labels, tasks.classes[i // 2])), rows)).tolist()
            for rows in parts
        ]
        for i, parts in enumerate(dealt)
    ]
    assert len({str(parts) for parts in among}) == 4


def test_iid_clients_get_equal_shares_of_every_class() -> None:
    setting = config("partition.scheme=iid partition.samples=shared federation.clients=4")
    labels = np.arange(200) % 10
    for rows in partition_task(setting, split_tasks(setting), labels, 1, "train"):
        assert np.bincount(labels[rows], minlength=10)[2:4].tolist() == [5, 5]
