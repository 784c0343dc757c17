from typing import Any

import pytest

from pip_flower.client.numpy_client import FederatedClient
from pip_flower.rounds.roster import TooFewRepliesError
from pip_flower.server.in_process import InProcessGrid
from support.runs import strategy_for


def test_a_reason_that_clients_have_in_common_is_told_once_with_its_place(
    small_run: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(*_: Any) -> None:
        raise ValueError("weights do not fit")

    monkeypatch.setattr(FederatedClient, "fit", fit)
    strategy = strategy_for(small_run)
    with pytest.raises(TooFewRepliesError) as error:
        strategy.run(InProcessGrid(4, small_run))
    told = str(error.value)
    assert told.count("ValueError: weights do not fit (") == 1
    assert f"test_told_failures.py:{fit.__code__.co_firstlineno + 1} in fit)" in told
    assert "clients 0, " in told
