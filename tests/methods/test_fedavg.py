from typing import Any

import numpy as np

from pip_flower.client.numpy_client import FederatedClient
from support.networks import full
from support.runs import digest, play, strategy_for

RunConfig = dict[str, Any]


def test_the_networks_arrays_travel_and_change(small_run: RunConfig) -> None:
    strategy = strategy_for(full(small_run, "fedavg"))
    strategy.arrays |= strategy.method.start_task(0, {})
    sent = strategy.method.message(0, strategy.arrays)
    arrays, *_ = FederatedClient(strategy.method, 0).fit(list(sent.values()), {"task": 0, "round": 1})
    changed = [not np.array_equal(a, b) for a, b in zip(sent.values(), arrays, strict=True)]
    assert np.mean(changed) > 0.9
    assert any("running_mean" in name for name in sent)


def test_without_a_proximal_term_fedprox_is_fedavg(small_run: RunConfig) -> None:
    plain = play(full(small_run, "fedavg"))
    prox = play(full(small_run, "fedprox", "method.proximal=0"))
    assert digest(plain.final) == digest(prox.final)
    pulled = play(full(small_run, "fedprox", "method.proximal=1"))
    assert digest(plain.final) != digest(pulled.final)
