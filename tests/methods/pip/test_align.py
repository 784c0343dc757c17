from typing import Any

import numpy as np
import pytest
import torch

from pip_flower.config.compose import Selection
from pip_flower.config.schema import ConfigError
from pip_flower.method.configuration import load_config
from pip_flower.methods.pip.align import AlignOptions, align_head
from pip_flower.prototypes import Prototypes
from support.runs import digest, play, strategy_for

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


def changed(small_run: dict[str, Any], overrides: str) -> dict[str, Any]:
    return small_run | {"method": "pip-align", "overrides": f"{small_run['overrides']} {overrides}"}


def test_without_any_gaussian_the_head_stays_as_averaged(small_run: dict[str, Any]) -> None:
    notes = play(changed(small_run, "method.prototypes.min_samples=17"))
    assert not len(notes.final["prototype.classes"])
    for task in range(3):
        for kind in ("weight", "bias"):
            averaged, aligned = (notes.final[f"{head}.{task}.{kind}"] for head in ("head", "aligned"))
            assert np.array_equal(averaged, aligned)


def test_a_class_without_a_gaussian_keeps_its_averaged_rows(small_run: dict[str, Any]) -> None:
    method = strategy_for(small_run | {"method": "pip-align"}).method
    arrays: dict[str, Any] = {}
    for task in range(2):
        arrays |= method.start_task(task, arrays)
    dim = arrays["head.0.weight"].shape[1]
    rng = np.random.default_rng(0)
    table = Prototypes(
        np.array([0, 2, 3]), rng.normal(size=(3, dim)), np.full((3, dim), 0.1), np.full(3, 5)
    ).as_arrays()
    refitted = method.end_task(1, {**arrays, **table})
    for task, row, known in ((0, 0, True), (0, 1, False), (1, 0, True), (1, 1, True)):
        same = np.array_equal(refitted[f"aligned.{task}.weight"][row], arrays[f"head.{task}.weight"][row])
        assert same is not known


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (
            "method.prototypes.share=false",
            r"method.prototypes.share \(set in overrides\): False .* Give true",
        ),
        ("method.head=private", r"method.head \(set in overrides\): 'private' .* Give shared"),
    ],
)
def test_what_cannot_be_refitted_is_refused(overrides: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_config(Selection(method="pip-align", overrides=overrides))
