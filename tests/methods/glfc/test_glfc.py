"""GLFC: what it minimises, what enters the memory, what is sent, and who teaches."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pip_flower.config.schema import ConfigError
from pip_flower.data.samples import Samples
from pip_flower.method.exchange import ClientJob
from pip_flower.method.reply_checks import RejectedError
from pip_flower.method.round import Round
from pip_flower.methods.glfc.changes import Change
from pip_flower.methods.glfc.glfc import GLFC, GRADIENTS
from pip_flower.methods.glfc.proxy import IMAGES, LABELS
from pip_flower.methods.networks.training import Step
from pip_flower.models.heads import LinearHead
from support.local_grid import LocalGrid
from support.networks import sized
from support.runs import digest, kept_by_clients, play, strategy_for

RunConfig = dict[str, Any]
EVERYBODY = "federation.clients_per_round=4"


def glfc(small_run: RunConfig, overrides: str = "", method: str = "glfc") -> GLFC:
    made = strategy_for(sized(small_run, method, overrides)).method
    assert isinstance(made, GLFC)
    return made


def step_of(labels: list[int], old: list[bool]) -> Step:
    """Features and head rows such that the logits of the four classes of two tasks are known."""
    features = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    rows = {
        "head.0.weight": torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        "head.0.bias": torch.zeros(2),
        "head.1.weight": torch.tensor([[0.5, 0.5], [-1.0, 0.0]]),
        "head.1.bias": torch.zeros(2),
    }
    images = torch.zeros(3, 3, 16, 16)
    return Step(images, features, np.array(labels), np.array(old), [], [], LinearHead(2), rows)


LOGITS = np.array([[1.0, 0.0, 0.5, -1.0], [0.0, 2.0, 1.0, 0.0], [1.0, 1.0, 1.0, -1.0]])
TAUGHT = torch.tensor([[0.0, 1.0], [2.0, -1.0], [0.5, 0.5]])


def sigmoid(values: Any) -> Any:
    return 1 / (1 + np.exp(-np.asarray(values)))


def cross_entropy(targets: Any) -> Any:
    """[3, 4]"""
    p = sigmoid(LOGITS)
    return -(targets * np.log(p) + (1 - targets) * np.log(1 - p))


def test_the_loss_against_a_calculation_by_hand(
    small_run: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = glfc(small_run)
    monkeypatch.setattr(method.teacher, "logits", lambda images, tasks: TAUGHT)
    labels = [2, 3, 0]
    found = method.objective(step_of(labels, [False, False, True]), task=1, rehearses=True)
    gradients = 1 - sigmoid([0.5, 0.0, 1.0])
    weights = np.array([*(gradients[:2] / gradients[:2].mean()), 1.0])
    plain = np.eye(4)[labels]
    taught = plain.copy()
    taught[:, :2] = sigmoid(TAUGHT)
    expected = 0.5 * (weights[:, None] * cross_entropy(plain)).mean() + 0.5 * cross_entropy(taught).mean()
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_without_anything_to_rehearse_all_samples_count_alike(small_run: RunConfig) -> None:
    method = glfc(small_run)
    step = replace(step_of([0, 1, 1], [False] * 3))
    found = method.objective(step, task=0, rehearses=False)
    p = sigmoid(LOGITS[:, :2])
    y = np.eye(2)[[0, 1, 1]]
    assert float(found) == pytest.approx(-(y * np.log(p) + (1 - y) * np.log(1 - p)).mean(), rel=1e-5)


def job(method: GLFC, task: int, memory: dict[str, Any]) -> ClientJob:
    samples = method.workspace.client_samples(task, 0, "train")
    return ClientJob(1, task, 0, {}, samples, memory)


def test_a_second_signal_adds_no_class_twice(small_run: RunConfig) -> None:
    method = glfc(small_run)
    own = method.workspace.client_samples(0, 0, "train")
    first = method._entering(job(method, 1, {}), Change(True, 2.0, (0,)))
    assert set(first.ids.tolist()) == set(own.ids.tolist())
    kept = {f"exemplars.{label}": own.ids[own.labels == label][:2] for label in np.unique(own.labels)}
    again = method._entering(job(method, 1, kept), Change(True, 2.0, (0, 1)))
    assert not len(again)


def test_a_missed_signal_loses_no_class(small_run: RunConfig) -> None:
    method = glfc(small_run)
    assert not len(method._entering(job(method, 1, {}), Change(False, 2.0, (0,))))
    late = method._entering(job(method, 2, {}), Change(True, 2.0, (0, 1)))
    assert {label // 2 for label in late.labels.tolist()} == {0, 1}


def test_memories_hold_earlier_classes_only_and_each_once(small_run: RunConfig, tmp_path: Path) -> None:
    overrides = f"{EVERYBODY} method.memory.exemplars=6 schedule.rounds=6 runtime.state_dir={tmp_path}"
    play(sized(small_run, "glfc", overrides))
    for kept in kept_by_clients(tmp_path):
        labels = {int(name.split(".")[1]) for name in kept if name.startswith("exemplars.")}
        assert labels
        assert labels <= {0, 1, 2, 3}
        ids = np.concatenate([value for name, value in kept.items() if name.startswith("exemplars.")])
        assert len(set(ids.tolist())) == len(ids) <= 6
        assert kept["change.trained"].tolist() == [0, 1, 2]


def replies(grid: LocalGrid) -> list[dict[str, np.ndarray]]:
    found = [reply.content.array_records.get("arrays", {}) for reply in grid.replies]
    return [{name: array.numpy() for name, array in record.items()} for record in found if record]


@pytest.mark.parametrize("method", ["glfc", "lga"])
def test_gradients_are_sent_when_a_task_begins_and_never_an_image(small_run: RunConfig, method: str) -> None:
    run_config = sized(small_run, method, f"{EVERYBODY} schedule.rounds=6")
    grid = LocalGrid(4, run_config)
    play(run_config, grid)
    sent = [len(arrays[GRADIENTS]) for arrays in replies(grid)]
    for round_ in range(6):
        counts = sent[4 * round_ : 4 * round_ + 4]
        assert all(count in (1, 2) for count in counts) if round_ % 2 == 0 else counts == [0] * 4
    for arrays in replies(grid):
        known = ("network.", "head.", "spread.")
        assert all(name.startswith(known) or name == GRADIENTS for name in arrays)


def test_the_entropy_tells_a_new_task(small_run: RunConfig) -> None:
    run_config = sized(small_run, "glfc", f"{EVERYBODY} method.change.by=entropy method.change.rise=0.6")
    grid = LocalGrid(4, run_config)
    play(run_config, grid)
    # ln 2 = 0.69 at first contact; by then nobody has anything else to compare with.
    assert all(len(arrays[GRADIENTS]) for arrays in replies(grid)[:4])


def test_an_entropy_that_cannot_rise_so_far_is_refused(small_run: RunConfig) -> None:
    with pytest.raises(ConfigError, match="never comes"):
        strategy_for(sized(small_run, "glfc", "method.change.by=entropy"))


def test_more_images_than_steps_are_refused(small_run: RunConfig) -> None:
    with pytest.raises(ConfigError, match="method.proxy.kept"):
        strategy_for(sized(small_run, "glfc", "method.proxy.kept=30"))


def test_gradients_of_other_classes_are_refused(small_run: RunConfig) -> None:
    method = glfc(small_run)
    image = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0))
    own, other = (method.encoder.gradient(image, label).numpy() for label in (2, 0))
    model = dict(method.start_task(0, {}))
    method.inspect(1, model | {GRADIENTS: own[None]}, 5)
    for wrong in ([other], [own, own], [own, own, own]):
        with pytest.raises(RejectedError, match=GRADIENTS):
            method.inspect(1, model | {GRADIENTS: np.stack(wrong)}, 5)


def watched(method: GLFC, arrays: dict[str, Any], number: int) -> dict[str, Any]:
    round_ = Round(number, 0, number == 1, False)
    return arrays | method.proxy.watch(round_, [], arrays)


def test_the_better_model_is_kept_and_teaches(small_run: RunConfig) -> None:
    method = glfc(small_run)
    arrays = dict(method.start_task(0, {}))
    assert not len(arrays[LABELS])
    good = arrays | {"head.0.bias": np.array([1e6, 0.0], np.float32)}
    # Two images of class 0 by which the model that always says 0 is the better one.
    monitor = {IMAGES: np.zeros((2, 3, 16, 16), np.float16), LABELS: np.zeros(2, np.int64)}
    arrays = watched(method, good | monitor, 1)
    bad = arrays | {"head.0.bias": np.array([0.0, 1e6], np.float32)}
    arrays = watched(method, bad, 2)
    taught = method.end_task(0, arrays)
    assert taught["teacher.head.0.bias"].tolist() == [1e6, 0.0]
    assert arrays["head.0.bias"].tolist() == [0.0, 1e6]
    equal = watched(method, arrays | {"head.0.bias": np.array([2e6, 0.0], np.float32)}, 3)
    assert method.end_task(0, equal)["teacher.head.0.bias"].tolist() == [2e6, 0.0]
    assert not len(method.start_task(1, arrays)[LABELS])


def test_rebuilt_images_have_the_labels_of_the_prototypes(small_run: RunConfig) -> None:
    notes = play(sized(small_run, "glfc", EVERYBODY))
    assert set(notes.final[LABELS].tolist()) == {4, 5}
    assert len(notes.final[IMAGES]) == len(notes.final[LABELS])
    again = play(sized(small_run, "glfc", EVERYBODY))
    assert digest(notes.final) == digest(again.final)


def test_a_client_without_samples_shows_nothing(small_run: RunConfig) -> None:
    method = glfc(small_run)
    none = Samples(np.zeros((0, 8, 8, 3), np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert method.prototypes.of(none, 0, {}, 1).shape == (0, method.encoder.width)
