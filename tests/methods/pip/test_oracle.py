"""PIP that is told the task: trained as PIP, and never misled about it."""

from typing import Any

import numpy as np
import pytest
import torch

from pip_flower.methods.pip.oracle import OraclePIP
from support.runs import digest, play, strategy_for

RunConfig = dict[str, Any]


@pytest.mark.parametrize("oracle", ["slot", "task"])
def test_it_is_trained_as_pip(small_run: RunConfig, oracle: str) -> None:
    notes = play(small_run | {"method": f"pip-oracle-{oracle}"})
    assert digest(notes.final) == digest(play(small_run | {"method": "pip-dualprompt"}).final)


def test_an_image_gets_its_own_tasks_prompts_and_candidates(small_run: RunConfig) -> None:
    run_config = small_run | {"method": "pip-oracle-task"}
    final = play(run_config).final
    method = strategy_for(run_config).method
    assert isinstance(method, OraclePIP)
    state = {name: torch.from_numpy(np.array(value)) for name, value in final.items()}
    tasks, test = method.workspace.tasks, method.workspace.data.test
    samples = test.take(np.random.default_rng(1).permutation(len(test))[:40])
    features = method.features(state, samples, 3)
    predicted = method.scores(state, samples, 3).argmax(dim=1).numpy()
    for row, label in enumerate(samples.labels):
        (task,) = (number for number, classes in enumerate(tasks.classes) if label in classes)
        images = method.workspace.views.test(samples.images[row : row + 1])
        alone = method.structure.forward(state, images, None, task=task, tasks=3).features
        torch.testing.assert_close(features[row : row + 1], alone, rtol=1e-4, atol=1e-5)
        assert tasks.seen(3)[predicted[row]] in tasks.classes[task]
