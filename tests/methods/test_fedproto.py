"""FedProto: the distance to prototypes, how they are merged, and where models live."""

from typing import Any

import numpy as np
import pytest
import torch

from pip_flower.method import ClientUpdate, Contribution, RejectedError, Round
from pip_flower.methods.fedproto import FedProto, prototype_distance
from support.networks import TINY
from support.runs import digest, play, strategy_for

RunConfig = dict[str, Any]


def shared(small_run: RunConfig, overrides: str = "", method: str = "fedproto") -> RunConfig:
    small = f"training.epochs=1 schedule.rounds=3 {TINY}"
    return small_run | {"method": method, "overrides": f"{small_run['overrides']} {small} {overrides}"}


def method_of(run_config: RunConfig) -> FedProto:
    method = strategy_for(run_config).method
    assert isinstance(method, FedProto)
    return method


def test_the_distance_is_the_mean_square_to_the_prototype_of_the_class() -> None:
    features = torch.tensor([[1.0, 2.0], [0.0, 0.0]], requires_grad=True)
    sums, counts = torch.tensor([[6.0, 6.0], [4.0, 0.0]]).double(), torch.tensor([3.0, 2.0]).double()
    found = prototype_distance(features, torch.tensor([0, 1]), sums, counts)
    assert float(found.detach()) == pytest.approx((1 + 0 + 4 + 0) / 4)


def test_without_a_prototype_there_is_no_term() -> None:
    features = torch.tensor([[1.0, 2.0], [5.0, 5.0]], requires_grad=True)
    sums, counts = torch.zeros(2, 2).double(), torch.zeros(2).double()
    found = prototype_distance(features, torch.tensor([0, 1]), sums, counts)
    found.backward()
    assert float(found.detach()) == 0
    assert features.grad is not None
    assert not features.grad.any()
    # Only the class that has one is pulled.
    prototype_distance(features, torch.tensor([0, 1]), sums, torch.tensor([1.0, 0.0]).double()).backward()
    assert features.grad[0].all()
    assert not features.grad[1].any()


def test_the_first_round_is_that_of_fedavg(small_run: RunConfig) -> None:
    """Nobody has reported a class yet."""
    once = "schedule.tasks=1 schedule.rounds=1"
    proto = play(shared(small_run, once, "fedproto-averaged")).final
    plain = play(shared(small_run, once, "fedavg")).final
    assert digest({name: proto[name] for name in plain}) == digest(plain)


def test_prototypes_are_means_by_samples_and_stay_where_nobody_reports(small_run: RunConfig) -> None:
    method = method_of(shared(small_run))
    arrays = method.start_task(0, {})
    width = arrays["proto.sum.0"].shape[1]

    def reply(partition: int, first: float, counts: list[float]) -> Contribution:
        sums = np.outer(np.array(counts) * first, np.ones(width))
        update = {"proto.sum.0": sums, "proto.count.0": np.array(counts)}
        return Contribution(partition, 1, ClientUpdate(update, 4, {}))

    round_ = Round(1, 0, starts_task=True, ends_task=False)
    arrays |= method.merge(round_, [reply(0, 1.0, [3.0, 2.0]), reply(1, 5.0, [1.0, 0.0])], arrays)
    means = arrays["proto.sum.0"] / arrays["proto.count.0"][:, None]
    assert means[:, 0].tolist() == [2.0, 1.0]
    arrays |= method.merge(round_, [reply(1, 9.0, [4.0, 0.0])], arrays)
    means = arrays["proto.sum.0"] / arrays["proto.count.0"][:, None]
    assert means[:, 0].tolist() == [9.0, 1.0]


def test_local_models_never_leave_their_clients(small_run: RunConfig) -> None:
    run_config = shared(small_run)
    method = method_of(run_config)
    assert all(name.startswith("proto.") for name in (*method.received(1), *method.returned(1)))
    notes = play(run_config)
    assert all(name.startswith("proto.") for name in notes.final)
    assert [len(record.accuracies) for record in notes.evaluations] == [1, 2, 3]
    averaged = method_of(shared(small_run, method="fedproto-averaged"))
    assert not averaged.predicts_on_clients()
    assert "head.1.weight" in averaged.returned(1)


def test_a_client_that_never_trained_has_the_network_of_the_start(small_run: RunConfig) -> None:
    method = method_of(shared(small_run))
    own = method.own_arrays(2, {"head.0.bias": np.ones(2, dtype=np.float32)})
    assert set(own) == set(method.training.names(2))
    assert own["head.0.bias"].tolist() == [1, 1]
    assert digest({"w": own["head.1.weight"]}) == digest(
        {"w": method.training.start_task(1)["head.1.weight"]}
    )


def test_a_class_nobody_reported_cannot_win(small_run: RunConfig) -> None:
    method = method_of(shared(small_run))
    width = method.training.head.width
    arrays = {name: torch.from_numpy(value) for name, value in method.own_arrays(1, {}).items()}
    arrays |= {
        "proto.sum.0": torch.zeros(2, width).double(),
        "proto.count.0": torch.tensor([0.0, 4.0]).double(),
    }
    scores = method.scores(arrays, method.workspace.test_samples(0), 1)
    assert set(scores.argmax(dim=1).tolist()) == {1}


def test_sums_without_samples_are_refused(small_run: RunConfig) -> None:
    method = method_of(shared(small_run))
    reply = dict(method.start_task(0, {}))
    method.inspect(0, reply, 5)
    with pytest.raises(RejectedError, match=r"proto\.sum\.0 has a class"):
        method.inspect(0, reply | {"proto.sum.0": np.ones_like(reply["proto.sum.0"])}, 5)
    with pytest.raises(RejectedError, match="adds up to more"):
        method.inspect(0, reply | {"proto.count.0": np.array([5.0, 1.0])}, 5)
