"""PODNet: its classifier's loss, imprinting, what is frozen, and what keeps the network as it was."""

import math
from typing import Any

import numpy as np
import torch

from pip_flower.methods.podnet import PODNet
from pip_flower.methods.rehearsal.distillation import pooled_distance
from pip_flower.methods.rehearsal.proxies import imprint, margin_loss, mean_of_holders
from support.networks import full
from support.runs import play, strategy_for

RunConfig = dict[str, Any]


def drawn(*shape: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_margin_loss_by_hand() -> None:
    g = torch.tensor([[0.2, 0.5, -0.1], [0.9, -0.9, -0.8]])
    found = margin_loss(g, torch.tensor([0, 0]), torch.tensor([2.0]), 0.6)
    first = math.log(math.exp(2 * 0.5) + math.exp(-2 * 0.1)) - 2 * (0.2 - 0.6)
    # The second is beyond its margin: the hinge leaves it alone.
    assert math.log(math.exp(-1.8) + math.exp(-1.6)) < 2 * (0.9 - 0.6)
    torch.testing.assert_close(found, torch.tensor(first / 2))


def test_the_margin_counts() -> None:
    g, columns = drawn(4, 5), torch.tensor([0, 1, 2, 3])
    losses = [float(margin_loss(g, columns, torch.tensor([3.0]), margin)) for margin in (0.0, 0.3, 0.6)]
    assert losses[0] < losses[1] < losses[2]


def test_a_single_class_has_nothing_to_learn() -> None:
    g = drawn(4, 1).requires_grad_()
    loss = margin_loss(g, torch.zeros(4, dtype=torch.int64), torch.ones(1), 0.6)
    (gradient,) = torch.autograd.grad(loss, g)
    assert float(loss.detach()) == 0
    assert not gradient.any()


def test_identical_models_are_at_no_distance_and_scale_does_not_matter() -> None:
    maps = [drawn(2, 4, 6, 6), drawn(2, 8, 3, 3, seed=4)]
    assert float(pooled_distance(maps, maps)) == 0
    assert float(pooled_distance([3 * found for found in maps], maps)) < 1e-6
    assert float(pooled_distance([found.flip(1) for found in maps], maps)) > 0.1


def test_imprinted_proxies_are_at_the_mean_and_apart() -> None:
    features, directions = drawn(20, 8) + 2, drawn(5, 8, seed=5)
    proxies = imprint(features, directions)
    mean = torch.nn.functional.normalize(torch.nn.functional.normalize(features, dim=1).mean(0), dim=0)
    assert float(torch.nn.functional.cosine_similarity(proxies, mean[None]).min()) > 0.999
    assert float(torch.pdist(proxies).min()) > 0


def test_a_class_is_imprinted_by_those_who_have_it() -> None:
    ones = np.ones((3, 2, 4), np.float32)
    found = mean_of_holders(
        7 * ones, [ones, 5 * ones], [np.array([1.0, 2.0, 0.0]), np.array([3.0, 0.0, 0.0])]
    )
    assert found[:, 0, 0].tolist() == [4.0, 1.0, 7.0]
    assert found.dtype == np.float32


def test_proxies_of_finished_tasks_stay_as_they_are(small_run: RunConfig) -> None:
    run_config = full(
        small_run, "podnet", "schedule.tasks=2 schedule.rounds=4 dataset.keep.classes=4 dataset.classes=4"
    )
    method = strategy_for(run_config).method
    assert isinstance(method, PODNet)
    assert "head.0.proxies" in method.received(1)
    assert "head.0.proxies" not in method.returned(1)
    assert {"head.1.proxies", "head.scale"} <= set(method.returned(1))
    final = play(run_config).final
    assert (final["teacher.head.0.proxies"] == final["head.0.proxies"]).all()
    assert (method.training.network.layer4[-1].act2.__class__) is torch.nn.Identity
