"""EWC and LwF: what holds a model back, without exemplars."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pip_flower.method.exchange import ClientJob
from pip_flower.methods.fed_ewc import FedEWC, quadratic_penalty
from pip_flower.methods.fed_lwf import FedLwF
from pip_flower.models.network import load_arrays
from support.networks import full, job_of, step_of
from support.runs import play, strategy_for

RunConfig = dict[str, Any]


def test_the_penalty_pulls_by_its_weight_the_information_and_the_distance() -> None:
    anchor, fisher = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0])
    for moved in (torch.zeros(2), torch.tensor([0.1, -0.4])):
        weight = (anchor + moved).requires_grad_()
        (gradient,) = torch.autograd.grad(quadratic_penalty([weight], [(anchor, fisher)], 10.0), weight)
        torch.testing.assert_close(gradient, 10.0 * fisher * moved)


def ewc(small_run: RunConfig, overrides: str = "") -> FedEWC:
    method = strategy_for(full(small_run, "fed-ewc", overrides)).method
    assert isinstance(method, FedEWC)
    return method


def test_information_is_the_mean_of_squares_of_each_samples_gradient(small_run: RunConfig) -> None:
    method = ewc(small_run)
    arrays = method.start_task(0, {})
    samples = method.samples(0, 0, 1).take(np.arange(3))
    assert method.conclusion is not None
    found = method.conclusion.fit(ClientJob(1, 0, 0, arrays, samples)).arrays
    network = method.training.network
    load_arrays(network, arrays)
    network.eval()
    head = {name: torch.tensor(arrays[name]) for name in ("head.0.weight", "head.0.bias")}
    name, weight = next(iter(network.named_parameters()))
    squares = []
    for row in range(3):
        features = network(method.training.views.test(samples.images[[row]]))
        logits = method.training.head.logits(head, features, [0])
        target = torch.from_numpy(method.workspace.tasks.targets(samples.labels[[row]], 0))
        squares.append(torch.autograd.grad(F.cross_entropy(logits, target), weight)[0].square())
    expected = torch.stack(squares).mean(0).numpy()
    np.testing.assert_allclose(found[f"information.network.{name}"], expected, rtol=1e-4, atol=1e-12)


def test_information_adds_up_decays_and_is_limited(small_run: RunConfig) -> None:
    method = ewc(small_run, "method.decay=0.5 method.largest=0.25")
    arrays = method.start_task(0, {})
    found = {f"information.{name}": np.full_like(arrays[name], 0.1) for name in method.weights}
    arrays |= found
    arrays |= method.end_task(0, arrays)
    arrays |= {name: np.full_like(value, 7.0) for name, value in found.items()}
    ended = method.end_task(1, arrays)
    name = method.weights[0]
    np.testing.assert_allclose(ended[f"fisher.{name}"], 0.5 * 0.1 + 0.25)
    assert (ended[f"anchor.{name}"] == arrays[name]).all()
    assert not any("running" in weight or "head" in weight for weight in method.weights)


def test_a_strong_penalty_keeps_the_network_and_none_is_fedavg(small_run: RunConfig) -> None:
    plain = play(full(small_run, "fedavg")).final
    none = play(full(small_run, "fed-ewc", "method.penalty=0")).final
    assert all((none[name] == value).all() for name, value in plain.items())
    held = play(full(small_run, "fed-ewc")).final
    assert any((held[name] != value).any() for name, value in plain.items())


def test_lwf_has_no_gradient_of_old_outputs_at_the_start_and_pulls_back_later(
    small_run: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = strategy_for(full(small_run, "fed-lwf")).method
    assert isinstance(method, FedLwF)
    step = step_of([2, 3])
    own = step.logits([0]).detach()
    row = step.rows["head.0.weight"].requires_grad_()
    for shift, pulls in ((0.0, False), (torch.tensor([1.0, 0.0]), True)):
        monkeypatch.setattr(method.teacher, "logits", lambda images, tasks, by=shift: own + by)
        (gradient,) = torch.autograd.grad(method.loss(step, job_of(1)), row)
        assert (float(gradient.abs().max()) > 1e-5) == pulls


def test_lwf_distils_the_old_classes_only(small_run: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    method = strategy_for(full(small_run, "fed-lwf")).method
    assert isinstance(method, FedLwF)
    step, taught = step_of([2, 3]), torch.tensor([[0.0, 1.0], [2.0, -1.0]])
    monkeypatch.setattr(method.teacher, "logits", lambda images, tasks: taught)
    logits = step.logits([0, 1])
    kept = -((taught / 2).softmax(1) * (logits[:, :2] / 2).log_softmax(1)).sum(1).mean()
    expected = F.cross_entropy(logits[:, 2:], torch.tensor([0, 1])) + 3 * kept
    torch.testing.assert_close(method.loss(step, job_of(1)), expected)
