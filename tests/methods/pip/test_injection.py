"""How many augmented prototypes a client injects, and when."""

from typing import Any

import numpy as np
import pytest

from pip_flower.config.compose import Selection
from pip_flower.config.schema import ConfigError
from pip_flower.method import ClientJob
from pip_flower.method.configuration import load_config
from pip_flower.methods.pip.pip import PIP
from pip_flower.prototypes import Prototypes
from support.runs import strategy_for


def injected(small_run: dict[str, Any], options: str, epoch: int) -> list[int]:
    """How often a client with eight samples of class 0, and none of class 1, injects each of them."""
    overrides = f"{small_run['overrides']} training.batch_size=8"
    for option in options.split():
        overrides += f" method.prototypes.{option}"
    pip = strategy_for(small_run | {"overrides": overrides}).method
    assert isinstance(pip, PIP)
    rows = np.ones((2, pip.workspace.backbone.dim))
    known = Prototypes(np.array([0, 1]), rows, rows, np.ones(2, dtype=np.int64))
    samples = pip.workspace.data.train.take(np.arange(8))
    found = pip.sharing.injection(known, ClientJob(1, 0, 0, {}, samples), epoch)
    assert found is not None
    return [int((found.targets == target).sum()) for target in (0, 1)]


@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        ("", [1, 8], [1, 8]),
        ("min_copies=1 max_copies=5", [2, 6], [2, 6]),
        ("augment=fixed copies=3", [4, 4], [4, 4]),
        ("augment_from=2", [1, 1], [1, 8]),
        ("augment=fixed augment_from=2", [1, 1], [3, 3]),
    ],
)
def test_a_class_is_injected_as_often_as_the_options_say(
    small_run: dict[str, Any], options: str, first: list[int], second: list[int]
) -> None:
    """Its mean, and the augmented ones."""
    assert [injected(small_run, options, epoch) for epoch in (0, 1)] == [first, second]


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_copies \(set in overrides\): 2 .*min_copies = 3 or more"):
        load_config(Selection(overrides="method.prototypes.min_copies=3 method.prototypes.max_copies=2"))
