from typing import Any

import numpy as np
import pytest
import torch

from pip_flower.config.compose import Selection
from pip_flower.config.schema import ConfigError
from pip_flower.method.configuration import load_config
from pip_flower.methods.pip.align import AlignedPIP, AlignOptions, align_head
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


def test_one_step_from_known_draws() -> None:
    """Adam's first step has the size of the rate and the sign of the gradient, whatever its size."""
    options = AlignOptions(draws=3, steps=1, learning_rate=0.25, shrinkage=0.5, variance=2.0)
    mean = np.array([[1.0, 0.0], [0.0, 1.0]])
    gaussians = Prototypes(np.arange(2), mean, np.array([[1.0, 3.0], [2.0, -1.0]]), np.full(2, 5))
    weight, bias = np.array([[0.5, -1.0], [2.0, 0.25]]), np.array([0.75, -0.5])
    found = align_head(weight, bias, gaussians, options, torch.Generator().manual_seed(3))
    # Negative variances count as zero; half way to the mean of the classes, then doubled.
    deviation = np.sqrt(2.0 * np.array([[1.25, 2.25], [1.75, 0.75]]))
    noise = torch.randn(6, 2, generator=torch.Generator().manual_seed(3)).numpy()
    targets = np.repeat([0, 1], 3)
    drawn = mean[targets] + deviation[targets] * noise
    logits = drawn @ weight.T + bias
    wrong = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True) - np.eye(2)[targets]
    assert found[0] == pytest.approx(weight - 0.25 * np.sign(wrong.T @ drawn), abs=1e-4)
    assert found[1] == pytest.approx(bias - 0.25 * np.sign(wrong.sum(axis=0)), abs=1e-4)


def test_gradients_of_a_step_do_not_reach_the_next() -> None:
    """With draws that are the means themselves the steps are those of a plain loop."""
    options = AlignOptions(draws=2, steps=7, learning_rate=0.1, shrinkage=0.0, variance=0.0)
    mean = np.array([[1.0, 0.5, 0.0], [0.0, 1.0, 2.0]])
    gaussians = Prototypes(np.arange(2), mean, np.ones((2, 3)), np.full(2, 5))
    weight, bias = np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]]), np.array([0.5, 0.0])
    found = align_head(weight, bias, gaussians, options, torch.Generator().manual_seed(0))
    plain = [torch.tensor(value, dtype=torch.float32, requires_grad=True) for value in (weight, bias)]
    adam = torch.optim.Adam(plain, lr=0.1)
    for _ in range(7):
        adam.zero_grad()
        logits = torch.tensor(mean, dtype=torch.float32) @ plain[0].T + plain[1]
        torch.nn.functional.cross_entropy(logits, torch.arange(2)).backward()
        adam.step()
    for one, other in zip(found, plain, strict=True):
        assert one.dtype == np.float32
        assert one == pytest.approx(other.detach().numpy(), abs=1e-6)


def test_every_class_is_refitted_on_its_own_gaussian(small_run: dict[str, Any]) -> None:
    """Also where classes do not come in the order of their labels."""
    order = "dataset.class_order=given dataset.given_order=[5,0,3,1,4,2]"
    method = strategy_for(changed(small_run, f"{order} method.align.steps=200 method.align.draws=8")).method
    assert isinstance(method, AlignedPIP)
    arrays: dict[str, Any] = {}
    for task in range(2):
        arrays |= method.start_task(task, arrays)
    dim = arrays["head.0.weight"].shape[1]
    mean = np.random.default_rng(0).normal(size=(6, dim)) * 3
    table = Prototypes(np.arange(6), mean, np.full((6, dim), 0.01), np.full(6, 5)).as_arrays()
    found = method.end_task(1, {**arrays, **table})
    assert tuple(found) == tuple(f"aligned.{task}.{kind}" for task in (0, 1) for kind in ("weight", "bias"))
    weight = np.concatenate([found["aligned.0.weight"], found["aligned.1.weight"]])
    bias = np.concatenate([found["aligned.0.bias"], found["aligned.1.bias"]])
    seen = [5, 0, 3, 1]
    assert (mean[seen] @ weight.T + bias).argmax(axis=1).tolist() == [0, 1, 2, 3]
    again = method.end_task(1, {**arrays, **table})
    assert np.array_equal(found["aligned.1.weight"], again["aligned.1.weight"])


def test_predictions_read_the_refitted_rows(small_run: dict[str, Any]) -> None:
    method = strategy_for(small_run | {"method": "pip-align"}).method
    arrays: dict[str, Any] = {}
    for task in range(2):
        arrays |= method.start_task(task, arrays)
    for task in range(2):
        arrays[f"aligned.{task}.weight"] = np.zeros_like(arrays[f"head.{task}.weight"])
        arrays[f"aligned.{task}.bias"] = np.array([1.0, 2.0], np.float32) + 10 * task
    needed = method.predicting(2)
    assert {name for name in needed if "bias" in name} == {"aligned.0.bias", "aligned.1.bias"}
    state = {name: torch.tensor(arrays[name]) for name in needed}
    scores = method.scores(state, method.workspace.test_samples(0).take(np.arange(3)), 2)
    assert scores.tolist() == [[1.0, 2.0, 11.0, 12.0]] * 3
