from typing import Any

import numpy as np
import pytest

from pip_flower.client.numpy_client import FederatedClient
from pip_flower.config.schema import ConfigError
from pip_flower.method import ClientJob
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


def test_a_single_sample_is_enough_to_learn_from(small_run: RunConfig) -> None:
    """Batch normalisation needs two: they are two views of it."""
    method = strategy_for(full(small_run, "fedavg")).method
    arrays = method.start_task(0, {})
    sample = method.samples(0, 0, 1).take(np.array([0]))
    update = method.fit(ClientJob(1, 0, 0, arrays, sample))
    assert update.samples == 1
    assert np.isfinite(update.metrics["last_epoch_loss"])
    assert not np.array_equal(update.arrays["head.0.weight"], arrays["head.0.weight"])


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "icarl"])
def test_batches_of_one_image_are_refused(small_run: RunConfig, method: str) -> None:
    with pytest.raises(ConfigError, match=r"training.batch_size \(set in overrides\): 1 image .* 2 or more"):
        strategy_for(full(small_run, method, "training.batch_size=1"))
