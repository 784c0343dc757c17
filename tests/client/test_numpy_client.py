from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.client import NumPyClient

from pip_flower.client.numpy_client import FederatedClient
from pip_flower.config.schema import ConfigError
from pip_flower.models.backbone import backbone_loads
from pip_flower.rounds.strategy import TaskStrategy
from support.runs import Notes, play, strategy_for


@pytest.fixture
def started(small_run: dict[str, Any]) -> TaskStrategy:
    strategy = strategy_for(small_run)
    strategy.arrays |= strategy.method.start_task(0, strategy.arrays)
    return strategy


def test_the_class_works_without_flower_around_it(started: TaskStrategy) -> None:
    client = FederatedClient(started.method, partition=1)
    assert isinstance(client, NumPyClient)
    sent = started.method.message(0, started.arrays)
    arrays, samples, metrics = client.fit(list(sent.values()), {"task": 0, "round": 1})
    reply = dict(zip(started.method.sent_up(0), arrays, strict=True))
    assert samples == reply["prototype.count"].sum() > 0
    assert not np.array_equal(reply["general"], sent["general"])
    assert metrics["backbone_loads"] == backbone_loads()
    assert np.isfinite(metrics["last_epoch_loss"])


def test_the_same_job_gives_the_same_bytes(started: TaskStrategy) -> None:
    client = FederatedClient(started.method, partition=1)
    sent = list(started.method.message(0, started.arrays).values())
    first, *_ = client.fit(sent, {"task": 0, "round": 1})
    again, *_ = client.fit(sent, {"task": 0, "round": 1})
    later, *_ = client.fit(sent, {"task": 0, "round": 2})
    assert [a.tobytes() for a in first] == [a.tobytes() for a in again]
    assert [a.tobytes() for a in first] != [a.tobytes() for a in later]


def test_evaluate_counts_its_own_test_samples(started: TaskStrategy) -> None:
    client = FederatedClient(started.method, partition=0)
    arrays = [started.arrays[name] for name in started.method.predicting(1)]
    loss, samples, metrics = client.evaluate(arrays, {"task": 0})
    assert metrics["total.0"] == samples > 0
    assert loss == pytest.approx(1 - metrics["correct.0"] / samples)


def test_properties_name_partition_configuration_and_backbone(started: TaskStrategy) -> None:
    properties = FederatedClient(started.method, partition=3).get_properties({})
    assert properties["partition"] == 3
    assert properties["config"] == started.config.digest()
    assert len(str(properties["backbone"])) == 64


def test_a_partition_that_does_not_exist_is_refused(started: TaskStrategy) -> None:
    with pytest.raises(ValueError, match="partition 4 does not exist: there are 4 clients"):
        FederatedClient(started.method, partition=4)


def test_wrong_number_of_arrays_is_refused(started: TaskStrategy) -> None:
    sent = list(started.method.message(0, started.arrays).values())
    with pytest.raises(ValueError, match="zip"):
        FederatedClient(started.method, partition=0).fit(sent[:-1], {"task": 0, "round": 1})


def test_messages_carry_nothing_but_prompts_head_and_prototypes(
    small_run: dict[str, Any], small_data: Path
) -> None:
    """Whatever a client sends has a known name and a shape that cannot hold an image."""
    from support.local_grid import LocalGrid
    from support.runs import play

    grid = LocalGrid(4, small_run)
    play(small_run, grid)
    images = np.load(small_data)["x_train"]
    pixels = {image.tobytes() for image in images.astype(np.float32) / 255}
    allowed = ("general", "expert.", "key.", "head.", "prototype.")
    for reply in grid.replies:
        for name, array in reply.content.array_records.get("arrays", {}).items():
            assert name.startswith(allowed)
            value = array.numpy()
            assert value.size <= 3 * 2 * 5 * 96
            assert not any(row.tobytes() in pixels for row in value.reshape(len(value), -1))
        for record in reply.content.metric_records.values():
            known = ("num-examples", "first_epoch_loss", "last_epoch_loss", "backbone_loads", "fit_seconds")
            assert set(record) <= set(known)


def test_a_partition_that_leaves_a_client_empty_is_refused_before_the_first_round(
    small_run: dict[str, Any],
) -> None:
    """Also where clients test, and the server need not have any data to find out with."""
    overrides = "partition.scheme=dirichlet partition.alpha=0.001 evaluation.where=clients"
    notes = Notes()
    with pytest.raises(ConfigError, match="federation.clients.*would get none.*partition.empty=allow"):
        play(small_run | {"overrides": f"{small_run['overrides']} {overrides}"}, notes=notes)
    assert not notes.rounds
