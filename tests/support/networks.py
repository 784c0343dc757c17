"""Configurations of methods that train a whole network, small enough for seconds."""

from typing import Any

import numpy as np
import torch

from pip_flower.config.compose import Selection
from pip_flower.data.samples import Samples
from pip_flower.method.configuration import load_config
from pip_flower.method.exchange import ClientJob
from pip_flower.methods.networks.training import Step
from pip_flower.models.heads import LinearHead

# A network of one stage's width.
TINY = (
    "method.network=resnet10t method.stem=imagenet method.image_size=32 training.epochs=1 schedule.rounds=3"
)


def sized(small_run: dict[str, Any], method: str, overrides: str = "") -> dict[str, Any]:
    """A short run of any method; one that trains a network, be it a transformer, has a small one."""
    options = load_config(Selection(method=method)).method.options
    network = TINY if hasattr(options, "network") else "training.epochs=1 schedule.rounds=3"
    size = "method.image_size=16" if hasattr(options, "image_size") else ""
    words = f"{small_run['overrides']} {network} {quick(options)} {size} {overrides}"
    return small_run | {"method": method, "overrides": words}


def full(small_run: dict[str, Any], method: str, overrides: str = "") -> dict[str, Any]:
    return small_run | {"method": method, "overrides": f"{small_run['overrides']} {TINY} {overrides}"}


def step_of(labels: list[int]) -> Step:
    """Features and head rows such that the logits of the four classes of two tasks are known."""
    features = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    rows = {
        "head.0.weight": torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        "head.0.bias": torch.zeros(2),
        "head.1.weight": torch.tensor([[0.5, 0.5], [-1.0, 0.0]]),
        "head.1.bias": torch.zeros(2),
    }
    images = torch.zeros(2, 3, 32, 32)
    old = np.zeros(2, dtype=np.bool_)
    return Step(images, features, np.array(labels), old, [], [], LinearHead(2), rows)


def job_of(task: int, arrays: dict[str, Any] | None = None) -> ClientJob:
    """Of a client without samples."""
    none = Samples(np.zeros((0, 8, 8, 3), np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64))
    return ClientJob(1, task, 0, arrays or {}, none)


# What takes minutes, by the option that has the settings of it.
_SLOW = {
    "encoder": "method.image_size=16 method.encoder.patch=8 method.encoder.width=24 method.encoder.heads=3 "
    "method.encoder.depth=1 method.tuning.epochs=1",
    "proxy": "method.proxy.disturbance=2 method.proxy.steps=3 method.proxy.iterations=2 method.proxy.kept=2",
    "synthesis": "method.synthesis.images=8 method.synthesis.batch=4 method.synthesis.steps=2 "
    "method.synthesis.warm_up=1 method.synthesis.student_steps=1",
}


def quick(options: object) -> str:
    """Overrides with which a transformer is small and the server's own work is quickly done, for a method
    with these options."""
    return " ".join(words for name, words in _SLOW.items() if hasattr(options, name))
