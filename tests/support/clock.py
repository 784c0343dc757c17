"""A clock that only waiting moves: how long the machine takes for its work does not count."""

import pytest

from pip_flower.rounds import roster, watched_grid


class PollClock:
    """Stands for the module `time` where replies are waited for."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def poll_clock(monkeypatch: pytest.MonkeyPatch) -> PollClock:
    clock = PollClock()
    for module in (roster, watched_grid):
        monkeypatch.setattr(module, "time", clock)
    return clock
