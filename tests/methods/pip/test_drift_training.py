"""How pip-drift's prompts are trained: the head that a client starts from, and the server's rate."""

from typing import Any

import numpy as np
import pytest

from pip_flower.method import ClientJob, ClientUpdate, Contribution, Round
from pip_flower.methods.pip.drift import DriftingPIP
from pip_flower.methods.pip.local_head import starting_head
from pip_flower.prototypes import Prototypes
from support.runs import play, strategy_for

RunConfig = dict[str, Any]


def drifting(small_run: RunConfig, overrides: str = "") -> RunConfig:
    more = f"training.epochs=1 {overrides}"
    return small_run | {"method": "pip-drift", "overrides": f"{small_run['overrides']} {more}"}


def method_of(run_config: RunConfig) -> DriftingPIP:
    method = strategy_for(run_config).method
    assert isinstance(method, DriftingPIP)
    return method


def first_job(method: DriftingPIP) -> ClientJob:
    arrays = method.start_task(0, {})
    return ClientJob(1, 0, 2, method.message(0, arrays), method.samples(0, 2, 1))


def test_a_head_in_closed_form_is_in_no_message(small_run: RunConfig) -> None:
    method = method_of(drifting(small_run))
    job = first_job(method)
    update = method.fit(job)
    for arrays in (job.arrays, update.arrays):
        assert not [name for name in arrays if name.startswith("head.")]
    averaged = method_of(drifting(small_run, "method.local_head=averaged"))
    assert set(averaged.head.names(0)) <= set(averaged.fit(first_job(averaged)).arrays)


def test_training_starts_from_the_prototypes_that_the_client_knows(small_run: RunConfig) -> None:
    method = method_of(drifting(small_run))
    job = first_job(method)
    trainer, known = method._begin(job)
    assert set(known.classes.tolist()) == set(job.samples.labels.tolist())
    classes = method.workspace.tasks.classes[0]
    for name, value in zip(method.head.names(0), starting_head(known, classes), strict=True):
        np.testing.assert_array_equal(trainer.state[name].detach().numpy(), value)
    dim = method.workspace.backbone.dim
    shape = (len(classes), dim)
    mean = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    sent = Prototypes(np.array(classes), mean, np.ones(shape, np.float32), np.full(len(classes), 5))
    told = ClientJob(2, 0, 2, {**job.arrays, **sent.as_arrays()}, job.samples)
    trainer, known = method._begin(told)
    assert known.classes.tolist() == list(classes)
    np.testing.assert_array_equal(
        trainer.state["head.0.weight"].detach().numpy(), starting_head(sent, classes)[0]
    )


@pytest.mark.parametrize("rate", [0.5, 1.0, 2.0])
def test_prompts_go_as_many_times_as_far_as_clients_went(small_run: RunConfig, rate: float) -> None:
    method = method_of(drifting(small_run, f"method.server_rate={rate}"))
    job = first_job(method)
    arrays = method.start_task(0, {})
    updates = []
    for change in (1.0, 3.0):
        update = method.fit(job)
        trained = {name: arrays[name] + np.float32(change) for name in method.structure.trained(0)}
        updates.append(ClientUpdate({**update.arrays, **trained}, update.samples, {}, {}))
    contributions = [Contribution(partition, 1, update) for partition, update in enumerate(updates)]
    merged = method.merge(Round(1, 0, starts_task=True, ends_task=False), contributions, arrays)
    for name in method.structure.trained(0):
        np.testing.assert_allclose(merged[name], arrays[name] + 2 * rate, atol=1e-6)


@pytest.mark.parametrize("overrides", ["", "method.prototypes.share=false", "method.local_head=averaged"])
def test_it_learns_either_way(small_run: RunConfig, overrides: str) -> None:
    notes = play(drifting(small_run, overrides))
    assert np.mean(notes.evaluations[-1].accuracies) > 100 / 6
