"""Fed-CPrompt: the contrastive loss, and that nothing of finished tasks ever changes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pip_flower.config.schema import ConfigError
from pip_flower.method import ClientJob
from pip_flower.methods.pip.cprompt import ContrastOptions, FedCPrompt, contrast
from support.runs import digest, play, strategy_for

RunConfig = dict[str, Any]
OPTIONS = ContrastOptions(weight=2.0, gamma=0.5, margin=1.0)


def contrasting(small_run: RunConfig, overrides: str = "", method: str = "fed-cprompt") -> RunConfig:
    small = "training.epochs=1 method.prompt.components=2"
    return small_run | {"method": method, "overrides": f"{small_run['overrides']} {small} {overrides}"}


def test_the_loss_compares_with_the_received_and_the_nearest_finished_prompts() -> None:
    own, received = torch.tensor([3.0, 4.0]), torch.zeros(2)
    finished = [torch.tensor([3.0, 0.0]), torch.tensor([30.0, 4.0])]
    assert float(contrast(own, received, finished, OPTIONS)) == pytest.approx(2 * (5 - 0.5 * 4 + 1))
    assert float(contrast(own, received, [], OPTIONS)) == pytest.approx(2 * 5)


def test_what_is_far_from_finished_prompts_is_left_alone() -> None:
    own = torch.tensor([0.1, 0.0], requires_grad=True)
    loss = contrast(own, torch.zeros(2), [torch.tensor([50.0, 0.0])], OPTIONS)
    loss.backward()
    assert float(loss.detach()) == 0
    assert own.grad is not None
    assert own.grad.tolist() == [0, 0]


def test_its_gradient_pulls_to_the_received_and_pushes_from_the_nearest() -> None:
    own = torch.tensor([1.0, 1.0], requires_grad=True)
    options = replace(OPTIONS, weight=1.0, margin=10.0)
    contrast(own, torch.tensor([0.0, 1.0]), [torch.tensor([1.0, 0.0]), torch.zeros(2)], options).backward()
    assert own.grad is not None
    assert own.grad.tolist() == pytest.approx([1.0, -0.5])


def test_where_a_round_starts_the_gradient_is_finite() -> None:
    own = torch.zeros(3, requires_grad=True)
    contrast(own, torch.zeros(3), [], OPTIONS).backward()
    assert own.grad is not None
    assert own.grad.tolist() == [0, 0, 0]


def test_slices_of_finished_tasks_are_bit_equal_after_a_round(small_run: RunConfig) -> None:
    method = strategy_for(contrasting(small_run)).method
    assert isinstance(method, FedCPrompt)
    arrays: dict[str, Any] = {}
    for task in range(2):
        arrays |= method.start_task(task, arrays)
    assert not any(name.split(".")[1] == "0" for name in method.returned(1))
    received = {name: arrays[name].copy() for name in (*method.received(1), *method.constant(1))}
    update = method.fit(ClientJob(3, 1, 0, received, method.samples(1, 0, 3)))
    assert set(update.arrays) == set(method.returned(1))
    assert digest({name: received[name] for name in method.constant(1)}) == digest(
        {name: arrays[name] for name in method.constant(1)}
    )
    assert not np.array_equal(update.arrays["coda.1.prompt"], arrays["coda.1.prompt"])


def test_without_weight_it_is_coda_prompt_averaged_by_samples(small_run: RunConfig) -> None:
    plain = contrasting(small_run, "method.weighting=samples", "coda-prompt")
    off = play(contrasting(small_run, "method.contrast.weight=0")).final
    assert digest(off) == digest(play(plain).final)
    # A client's first step starts where the round did, so that there is nothing to pull at.
    first, second = (f"training.epochs=2 method.contrast.weight={weight}" for weight in (0, 5))
    assert digest(play(contrasting(small_run, first)).final) != digest(
        play(contrasting(small_run, second)).final
    )


def test_prompts_of_another_structure_and_released_code_are_refused(small_run: RunConfig) -> None:
    for wrong in ("method.prompt.structure=l2p", "fidelity=released"):
        with pytest.raises(ConfigError):
            strategy_for(contrasting(small_run, wrong))
