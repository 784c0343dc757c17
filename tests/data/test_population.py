import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pip_flower.config.compose import Selection
from pip_flower.config.sections import Config
from pip_flower.data.population import active_clients, joined
from pip_flower.method.configuration import load_config


def config(overrides: str = "", seed: int = 0) -> Config:
    return load_config(Selection(overrides=overrides, seed=seed))


def test_by_default_everybody_learns_every_task() -> None:
    setting = config("federation.clients=30")
    for task in range(5):
        assert active_clients(setting, task).tolist() == list(range(30))


def test_clients_join_in_equal_numbers() -> None:
    setting = config("federation.clients=30 population.initial=10")
    assert [joined(setting, task) for task in range(5)] == [10, 15, 20, 25, 30]
    assert active_clients(setting, 2).tolist() == list(range(20))


@settings(max_examples=40, deadline=None)
@given(
    clients=st.integers(4, 40),
    initial=st.integers(4, 40),
    retire=st.floats(0, 0.99),
    seed=st.integers(0, 10**6),
)
def test_who_retires_never_comes_back(clients: int, initial: int, retire: float, seed: int) -> None:
    setting = config(
        f"federation.clients={clients} population.initial={min(initial, clients)} population.retire={retire}",
        seed,
    )
    retired: set[int] = set()
    before: set[int] = set()
    for task in range(5):
        active = set(active_clients(setting, task).tolist())
        new = set(range(joined(setting, task - 1) if task else 0, joined(setting, task)))
        assert new <= active
        assert not active & retired
        stopped = before - active
        assert len(stopped) == int(retire * len(before) + 1e-9)
        retired |= stopped
        assert active
        assert np.array_equal(active_clients(setting, task), sorted(active))
        before = active


def test_a_run_of_one_task_has_everybody_at_once() -> None:
    setting = config("federation.clients=9 population.initial=5 schedule.tasks=1 schedule.rounds=1")
    assert joined(setting, 0) == 9


def test_a_tenth_of_thirty_are_three() -> None:
    setting = config("federation.clients=30 population.retire=0.1")
    assert [len(active_clients(setting, task)) for task in range(4)] == [30, 27, 25, 23]
    others = config("federation.clients=30 population.retire=0.1", seed=1)
    assert active_clients(setting, 3).tolist() != active_clients(others, 3).tolist()
    # Who stops is drawn anew for each task, not by position.
    stopped = [set(active_clients(setting, t)) - set(active_clients(setting, t + 1)) for t in range(3)]
    assert stopped[0] != {27, 28, 29}
    assert active_clients(setting, 3).dtype == np.int64
