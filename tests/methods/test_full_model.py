from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pip_flower.client.numpy_client import FederatedClient
from pip_flower.methods.rehearsal.memory import herd
from support.local_grid import LocalGrid
from support.runs import digest, kept_by_clients, play, strategy_for

RunConfig = dict[str, Any]
# A network of one stage's width keeps the tests to seconds.
TINY = (
    "method.network=resnet10t method.stem=imagenet method.image_size=32 training.epochs=1 schedule.rounds=3"
)


def full(small_run: RunConfig, method: str, overrides: str = "") -> RunConfig:
    return small_run | {"method": method, "overrides": f"{small_run['overrides']} {TINY} {overrides}"}


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


def test_icarl_keeps_exemplars_on_the_client_and_never_sends_them(
    small_run: RunConfig, tmp_path: Path
) -> None:
    everybody = "method.memory=6 federation.clients_per_round=4"
    run_config = full(small_run, "icarl", f"{everybody} runtime.state_dir={tmp_path}")
    grid = LocalGrid(4, run_config)
    notes = play(run_config, grid)
    assert not any("exemplar" in name for name in notes.final)
    for reply in grid.answered:
        assert not any("exemplar" in n for r in reply.content.array_records.values() for n in r)
    for kept in kept_by_clients(tmp_path):
        assert 1 <= sum(ids.size for ids in kept.values()) <= 6
        assert len(kept) >= 3  # classes of three tasks


def test_icarl_distils_from_the_end_of_the_task_before(small_run: RunConfig) -> None:
    strategy = strategy_for(full(small_run, "icarl"))
    assert not any(name.startswith("old.") for name in strategy.method.received(0))
    old = [name for name in strategy.method.received(1) if name.startswith("old.")]
    assert "old.head.0.weight" in old
    assert "old.head.1.weight" not in old


@pytest.mark.parametrize("classifier", ["linear", "nearest-mean"])
def test_icarl_runs_with_both_classifiers(small_run: RunConfig, classifier: str) -> None:
    notes = play(full(small_run, "icarl", f"method.classifier={classifier}"))
    assert len(notes.evaluations) == 3
    assert ("mean.sum" in notes.final) == (classifier == "nearest-mean")


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 12))
def test_herding_picks_without_repetition_and_a_shorter_list_is_a_prefix(seed: int, count: int) -> None:
    features = np.random.default_rng(seed).normal(size=(12, 4))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    longer, shorter = herd(features, 12), herd(features, count)
    assert sorted(longer) == list(range(12))
    assert longer[:count].tolist() == shorter.tolist()
    nearest = np.linalg.norm(features - features.mean(axis=0), axis=1).argmin()
    assert longer[0] == nearest
