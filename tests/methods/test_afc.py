"""AFC: what a channel's importance is, and what it does."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from pip_flower.method.exchange import ClientJob
from pip_flower.methods.afc import AFC, relative, weighted_distance
from pip_flower.methods.rehearsal.proxies import margin_loss
from pip_flower.models.network import load_arrays
from support.networks import full
from support.runs import play, strategy_for

RunConfig = dict[str, Any]


def drawn(*shape: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_importance_is_one_on_average_in_each_stage() -> None:
    found = relative(np.array([1.0, 2.0, 9.0]))
    assert found.tolist() == [0.25, 0.5, 2.25]
    assert relative(np.zeros(3)).tolist() == [1.0, 1.0, 1.0]


def test_importance_of_one_is_no_weight_and_other_channels_do_not_count() -> None:
    own, taught = drawn(2, 4, 3, 3), drawn(2, 4, 3, 3, seed=4)

    def unit(found: torch.Tensor) -> torch.Tensor:
        return F.normalize(found.square().flatten(2), dim=2)

    apart = (unit(own) - unit(taught)).norm(dim=2)
    torch.testing.assert_close(weighted_distance([own], [taught], [torch.ones(4)]), apart.mean())
    only = torch.tensor([0.0, 4.0, 0.0, 0.0])
    torch.testing.assert_close(weighted_distance([own], [taught], [only]), apart[:, 1].mean())
    assert float(weighted_distance([own], [own], [torch.ones(4)])) == 0


def test_sums_are_squared_gradients_of_each_samples_own_loss(small_run: RunConfig) -> None:
    method = strategy_for(full(small_run, "afc")).method
    assert isinstance(method, AFC)
    arrays = method.start_task(0, {})
    samples = method.samples(0, 0, 1).take(np.arange(3))
    assert method.conclusion is not None
    update = method.conclusion.fit(ClientJob(1, 0, 0, arrays, samples))
    assert update.arrays["importance.count"].tolist() == [3.0]
    network = method.training.network
    load_arrays(network, arrays)
    network.eval()
    rows = {name: torch.tensor(arrays[name]) for name in method.head.names_of([0])}
    total = np.zeros(method.channels[-1])
    for row in range(3):
        last = network.forward_features(method.training.views.test(samples.images[[row]])).detach()
        last.requires_grad_()
        g = method.head.similarities(rows, network.forward_head(last), [0])
        target = torch.from_numpy(method.workspace.tasks.targets(samples.labels[[row]], 0))
        loss = margin_loss(g, target, rows["head.scale"], 0.6)
        total += torch.autograd.grad(loss, last)[0].square().sum(dim=(0, 2, 3)).numpy()
    np.testing.assert_allclose(update.arrays["importance.3.sum"], total, rtol=1e-3, atol=1e-12)


def test_the_next_task_is_weighted_by_what_mattered_to_the_final_model(small_run: RunConfig) -> None:
    run_config = full(small_run, "afc", "schedule.rounds=3")
    method = strategy_for(run_config).method
    assert "importance.0" not in method.constant(0)
    assert "importance.0" in method.constant(1)
    final = play(run_config).final
    for stage in range(4):
        assert abs(float(final[f"importance.{stage}"].mean()) - 1) < 1e-3
    assert float(final["importance.3"].std()) > 0.01
