"""DDE: neighbours in the old feature space, and the direction that leaves predictions."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pip_flower.method import ClientJob
from pip_flower.methods.dde_icarl import DDE, MOMENTUM, collided, nearest
from support.networks import full
from support.runs import play, strategy_for

RunConfig = dict[str, Any]


def drawn(*shape: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def dde(small_run: RunConfig, overrides: str = "") -> DDE:
    method = strategy_for(full(small_run, "dde-icarl", overrides)).method
    assert isinstance(method, DDE)
    return method


def test_a_sample_that_is_its_own_neighbour_has_cross_entropy() -> None:
    logits, columns = drawn(4, 5), torch.tensor([0, 4, 2, 2])
    fresh = torch.tensor([True, False, True, True])
    found = collided(logits, columns, fresh, logits.softmax(dim=1)[fresh])
    torch.testing.assert_close(found, F.cross_entropy(logits, columns))


def test_neighbours_count_half_and_exemplars_have_none() -> None:
    logits, columns = drawn(2, 3), torch.tensor([1, 0])
    around = torch.tensor([[0.2, 0.5, 0.3]])
    own = logits.softmax(dim=1)
    expected = -(torch.log((own[0, 1] + 0.5) / 2) + torch.log(own[1, 0])) / 2
    torch.testing.assert_close(collided(logits, columns, torch.tensor([True, False]), around), expected)


def test_nearest_others_by_angle() -> None:
    features = torch.tensor([[1.0, 0.0], [5.0, 0.5], [0.0, 1.0], [0.1, 3.0]])
    assert nearest(features, 1).squeeze(1).tolist() == [1, 0, 3, 2]
    assert nearest(features, 10).shape == (4, 3)
    assert nearest(features[:1], 10).shape == (1, 0)


def test_nothing_is_removed_where_the_share_is_zero(small_run: RunConfig) -> None:
    arrays = play(full(small_run, "dde-icarl")).final
    state = {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}
    method = dde(small_run, "method.removed=0")
    samples = method.workspace.data.test
    plain = method.training.scores(state, samples, 3)
    torch.testing.assert_close(method.scores(state, samples, 3), plain)
    # With a share, each logit loses what it would have along the direction, by the angle to it.
    method = dde(small_run, "method.removed=0.5")
    features, direction = method.training.features(samples), state[MOMENTUM]
    rows = torch.cat([state[f"head.{task}.weight"] for task in range(3)])
    angle = F.normalize(features, dim=1) @ F.normalize(direction, dim=0)
    along = F.normalize(rows, dim=1) @ F.normalize(direction, dim=0)
    expected = plain - 0.5 * state["head.scale"] * angle[:, None] * along
    torch.testing.assert_close(method.scores(state, samples, 3), expected, rtol=1e-4, atol=1e-5)


def test_the_moving_average_is_that_of_the_batches(
    small_run: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = dde(small_run, "method.decay=0.5 training.epochs=1")
    arrays = method.start_task(0, {})
    assert not arrays[MOMENTUM].any()
    means, loss = [], DDE.loss

    def watched(self: DDE, step: Any, job: ClientJob) -> torch.Tensor:
        means.append(step.features.detach().mean(dim=0))
        return loss(self, step, job)

    monkeypatch.setattr(DDE, "loss", watched)
    begun = np.full_like(arrays[MOMENTUM], 8.0)
    job = ClientJob(1, 0, 1, method.message(0, {**arrays, MOMENTUM: begun}), method.samples(0, 1, 1))
    update = method.fit(job)
    expected = torch.from_numpy(begun)
    for mean in means:
        expected = 0.5 * expected + mean
    np.testing.assert_allclose(update.arrays[MOMENTUM], expected.numpy(), rtol=1e-5)
    again = method.fit(replace(job))
    np.testing.assert_array_equal(again.arrays[MOMENTUM], update.arrays[MOMENTUM])
