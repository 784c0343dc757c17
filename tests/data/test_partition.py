import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pip_flower.config import Config
from pip_flower.config_files import Selection, load_config
from pip_flower.data.partition import holders, partition_task, require_samples
from pip_flower.data.tasks import split_tasks
from pip_flower.methods.registry import options_type
from pip_flower.schema import ConfigError


def config(overrides: str = "", seed: int = 0) -> Config:
    return load_config(Selection(overrides=overrides, seed=seed), options_type)


@settings(max_examples=40, deadline=None)
@given(
    clients=st.integers(1, 12),
    fraction=st.floats(0.05, 1),
    scheme=st.sampled_from(["classes", "iid"]),
    seed=st.integers(0, 10**6),
)
def test_disjoint_complete_and_deterministic(clients: int, fraction: float, scheme: str, seed: int) -> None:
    setting = config(
        f"federation.clients={clients} federation.clients_per_round=1 partition.scheme={scheme} "
        f"partition.class_fraction={fraction} dataset.class_order=seed",
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
        for client, rows in enumerate(parts):
            allowed = np.array(tasks.classes[task])[held[client]]
            assert set(labels[rows]) <= set(allowed)


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
