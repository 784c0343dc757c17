"""What messages carry: only what a task trains, without changing a bit of the result."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from pip_flower.config.compose import Selection
from pip_flower.fidelity import Paper
from pip_flower.method.configuration import load_config
from pip_flower.models.backbone import Backbone
from pip_flower.models.heads import LinearHead
from pip_flower.models.prompts import make_structure
from support.runs import digest, play


@pytest.mark.parametrize("method", ["pip-dualprompt", "pip-align", "fed-l2p", "ncm"])
def test_slim_and_full_messages_give_the_same_model(small_run: dict[str, Any], method: str) -> None:
    slim = play(small_run | {"method": method})
    full = play(small_run | {"method": method, "overrides": f"{small_run['overrides']} wire.full=true"})
    assert digest(slim.final) == digest(full.final)
    assert [e.accuracies for e in slim.evaluations] == [e.accuracies for e in full.evaluations]
    assert slim.rounds[0].traffic_up.bytes == full.rounds[0].traffic_up.bytes
    assert slim.rounds[-1].traffic_up.bytes < full.rounds[-1].traffic_up.bytes


@pytest.mark.parametrize(
    ("method", "everything", "per_task"), [("pip-dualprompt", 330_340, 46_858), ("pip-l2p", 122_980, 53_770)]
)
def test_sizes_for_cifar100_on_vit_base(method: str, everything: int, per_task: int) -> None:
    """Ten tasks of ten classes, D = 768: the parameter counts of the paper, and what a task needs of them."""
    options = load_config(Selection(method=method)).method.options
    backbone = cast(Backbone, SimpleNamespace(dim=768, heads=12, depth=12))
    structure = make_structure(options.prompt, backbone, Paper(), tasks=10)
    state: dict[str, torch.Tensor] = {}
    generator = torch.Generator().manual_seed(0)
    for task in range(10):
        state |= structure.start_task(task, state, generator)
        state |= LinearHead(768).start_task(task, 10, generator)
    assert sum(value.numel() for value in state.values()) == everything
    names = (*structure.trained(3), *LinearHead(0).names(3))
    assert int(np.sum([state[name].numel() for name in names])) == per_task
