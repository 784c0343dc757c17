from typing import Any

import numpy as np
import torch

from pip_flower.methods.pip.align import AlignOptions, align_head
from pip_flower.prototypes import Prototypes
from support.runs import digest, play

OPTIONS = AlignOptions(draws=20, steps=300, learning_rate=0.1, shrinkage=0.0, variance=1.0)


def test_rows_learnt_apart_are_made_comparable() -> None:
    rng = np.random.default_rng(0)
    mean = rng.normal(size=(4, 6)) * 2
    gaussians = Prototypes(np.arange(4), mean, np.full((4, 6), 0.3), np.full(4, 10))
    features = np.repeat(mean, 50, axis=0) + rng.normal(size=(200, 6)) * np.sqrt(0.3)
    labels = np.repeat(np.arange(4), 50)
    # The second pair of rows shouts: every sample goes to it.
    weight, bias = mean.copy(), np.array([0.0, 0.0, 25.0, 25.0])

    def accuracy(weight: Any, bias: Any) -> float:
        return float(((features @ weight.T + bias).argmax(axis=1) == labels).mean())

    assert accuracy(weight, bias) <= 0.5
    aligned = align_head(weight, bias, gaussians, OPTIONS, torch.Generator().manual_seed(0))
    again = align_head(weight, bias, gaussians, OPTIONS, torch.Generator().manual_seed(0))
    assert accuracy(*aligned) > 0.9
    assert np.array_equal(aligned[0], again[0])


def test_alignment_adds_no_byte_and_leaves_training_alone(small_run: dict[str, Any]) -> None:
    plain, aligned = (play(small_run | {"method": method}) for method in ("pip-dualprompt", "pip-align"))
    trained = {name: value for name, value in aligned.final.items() if not name.startswith("aligned.")}
    assert digest(trained) == digest(plain.final)
    assert [r.traffic_up.bytes for r in aligned.rounds] == [r.traffic_up.bytes for r in plain.rounds]
    assert [r.traffic_down.bytes for r in aligned.rounds] == [r.traffic_down.bytes for r in plain.rounds]
