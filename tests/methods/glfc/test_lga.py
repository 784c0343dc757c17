"""LGA: GLFC as long as no task is over, then balanced task by task; heads tried on noisy features."""

from typing import Any

import numpy as np
import pytest
import torch

from pip_flower.method.reply_checks import RejectedError
from pip_flower.method.round import Round
from pip_flower.methods.glfc.glfc import GRADIENTS
from pip_flower.methods.glfc.lga import LGA, SPREAD, NoisyProxy
from pip_flower.methods.glfc.proxy import IMAGES, LABELS
from support.networks import sized
from support.runs import play, strategy_for

RunConfig = dict[str, Any]


def lga(small_run: RunConfig, overrides: str = "") -> LGA:
    made = strategy_for(sized(small_run, "lga", overrides)).method
    assert isinstance(made, LGA)
    return made


def test_as_long_as_no_task_is_over_it_is_glfc(small_run: RunConfig) -> None:
    one_task = "schedule.tasks=1 schedule.rounds=2"
    ours, glfc = (play(sized(small_run, method, one_task)).final for method in ("lga", "glfc"))
    model = [name for name in glfc if name.startswith(("network.", "head."))]
    assert len(model) > 10
    assert all(ours[name].tobytes() == glfc[name].tobytes() for name in model)


def test_without_finished_tasks_all_weights_are_one(small_run: RunConfig) -> None:
    logits = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    assert lga(small_run).weights(logits, torch.tensor([0, 1, 0, 1, 1]), 0).tolist() == [1.0] * 5


def test_every_task_is_balanced_by_itself(small_run: RunConfig) -> None:
    method = lga(small_run)
    logits = torch.tensor([[1.0] * 6, [0.0] * 6, [-1.0] * 6, [2.0] * 6])
    found = method.weights(logits, torch.tensor([0, 1, 2, 5]), 2)
    sizes = (1 - 1 / (1 + np.exp(-np.array([1.0, 0.0])))) ** (2 / 3)
    assert found.tolist() == pytest.approx([*(sizes / sizes.mean()), 1.0, 1.0], rel=1e-5)


def test_weights_stay_within_bounds(small_run: RunConfig) -> None:
    logits = torch.full((20, 4), 30.0)
    logits[0] = -30.0
    found = lga(small_run).weights(logits, torch.zeros(20, dtype=torch.int64), 1)
    assert float(found.min()) == 0.5
    assert float(found.max()) == 5.0


def test_both_losses_count_in_full_and_by_the_weights(small_run: RunConfig) -> None:
    method = lga(small_run)
    logits, taught = torch.tensor([[1.0, 0.0], [0.5, 2.0]]), torch.tensor([[0.0], [1.0]])
    weights = torch.tensor([2.0, 0.5])
    found = method.distilled(torch.tensor(3.0), logits, torch.tensor([0, 1]), taught, weights)
    targets = torch.tensor([[0.5, 0.0], [float(torch.tensor(1.0).sigmoid()), 1.0]])
    losses = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    assert float(found) == pytest.approx(3.0 + float((weights[:, None] * losses).mean()), rel=1e-6)


def proxy(small_run: RunConfig, overrides: str = "") -> NoisyProxy:
    made = lga(small_run, overrides).proxy
    assert isinstance(made, NoisyProxy)
    return made


def test_heads_are_tried_on_noisy_copies(small_run: RunConfig) -> None:
    features, labels = torch.zeros(200, 50), torch.arange(200)
    arrays = {SPREAD[0]: np.array([18.0]), SPREAD[1]: np.array([2.0])}
    noisy, wanted = proxy(small_run).judged(features, labels, Round(3, 1, False, False), arrays)
    assert noisy.shape == (1000, 50)
    assert wanted.tolist() == labels.repeat(5).tolist()
    # Radius 3, cut off at twice that: the standard deviation of such a normal distribution is 0.88.
    assert float(noisy.abs().max()) <= 6.0
    assert float(noisy.std()) == pytest.approx(3 * 0.88, rel=0.02)


def test_early_models_are_not_judged(small_run: RunConfig) -> None:
    method = lga(small_run, "method.proxy.warm_up=2")
    arrays = dict(method.start_task(0, {})) | {SPREAD[0]: np.zeros(1), SPREAD[1]: np.zeros(1)}
    arrays |= {IMAGES: np.zeros((2, 3, 16, 16), np.float16), LABELS: np.zeros(2, np.int64)}
    good, bad = np.array([1e6, 0.0], np.float32), np.array([0.0, 1e6], np.float32)
    taught = []
    for number, bias in enumerate([good, bad, bad, good, bad], 1):
        arrays["head.0.bias"] = bias
        arrays |= method.proxy.watch(Round(number, 0, number == 1, False), [], arrays)
        taught.append(method.proxy.best(0, arrays)["head.0.bias"][0] > 0)
    assert taught == [True, False, False, True, True]


def test_a_spread_that_cannot_be_is_refused(small_run: RunConfig) -> None:
    method = lga(small_run)
    reply = dict(method.start_task(0, {})) | {GRADIENTS: np.zeros((0, method.encoder.width), np.float32)}
    method.inspect(0, reply | {SPREAD[0]: np.array([1.0]), SPREAD[1]: np.array([2.0])}, 5)
    for total, count in ((-1.0, 1.0), (1.0, 0.0), (1.0, 3.0), (1.0, 0.5)):
        with pytest.raises(RejectedError, match="spread"):
            method.inspect(0, reply | {SPREAD[0]: np.array([total]), SPREAD[1]: np.array([count])}, 5)
