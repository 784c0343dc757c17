"""TARGET: what the server makes of a model, that the model stays as it is, and that no image of a client is
involved."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pip_flower.config.schema import ConfigError
from pip_flower.method.exchange import ClientJob
from pip_flower.method.workspace import Workspace
from pip_flower.methods.networks.training import Step
from pip_flower.methods.target.synthesis import disagreement, watched_statistics
from pip_flower.methods.target.target import SYNTHETIC, TARGET
from pip_flower.models.heads import LinearHead
from support.local_grid import LocalGrid
from support.networks import sized
from support.runs import digest, play, strategy_for

RunConfig = dict[str, Any]


def target(small_run: RunConfig, overrides: str = "") -> TARGET:
    made = strategy_for(sized(small_run, "target", overrides)).method
    assert isinstance(made, TARGET)
    return made


def state(network: nn.Module) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in network.state_dict().items()}


def no_data(*_: Any) -> Any:
    pytest.fail("the server looked at images")


def test_the_server_makes_images_of_the_model_alone_and_leaves_it_unchanged(
    small_run: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = target(small_run)
    arrays = dict(method.start_task(0, {}))
    before = digest(arrays)
    monkeypatch.setattr(Workspace, "_load", no_data)
    monkeypatch.setattr(Workspace, "data", property(no_data))
    made = method.end_task(0, arrays)
    assert digest(arrays) == before
    model = method.training.names(1)
    assert all(made[f"teacher.{name}"].tobytes() == before[name] for name in model)
    loaded = {f"network.{name}": value for name, value in state(method.training.network).items()}
    assert all(loaded[name] == before[name] for name in model if name.startswith("network."))
    assert (made[SYNTHETIC].shape, made[SYNTHETIC].dtype) == ((8, 16, 16, 3), np.uint8)
    assert digest(made) == digest(method.end_task(0, arrays))
    assert SYNTHETIC not in method.end_task(
        2, arrays | dict(method.start_task(1, {}) | method.start_task(2, {}))
    )


def test_clients_leave_the_teacher_unchanged(small_run: RunConfig) -> None:
    method = target(small_run)
    arrays = dict(method.start_task(0, {}))
    arrays |= method.end_task(0, arrays)
    arrays |= method.start_task(1, arrays)
    before = digest(arrays)
    method.fit(ClientJob(3, 1, 0, arrays, method.workspace.client_samples(1, 0, "train")))
    assert digest(arrays) == before
    taught = {f"teacher.network.{name}": value for name, value in state(method.teacher.network).items()}
    assert all(taught[name] == before[name] for name in before if name.startswith("teacher.network."))


def sent(messages: list[Any]) -> list[Mapping[str, np.ndarray]]:
    found = [message.content.array_records.get("arrays", {}) for message in messages]
    return [{name: array.numpy() for name, array in record.items()} for record in found if record]


def test_no_real_image_is_in_a_message(small_run: RunConfig) -> None:
    run_config = sized(small_run, "target", "federation.clients_per_round=4 schedule.rounds=6")
    strategy, grid = strategy_for(run_config), LocalGrid(4, run_config)
    strategy.run(grid)
    assert all(name.startswith(("network.", "head.")) for arrays in sent(grid.replies) for name in arrays)
    method = strategy.method
    assert isinstance(method, TARGET)
    real = method.training.views.test(method.workspace.data.train.images[:])
    seen = [arrays[SYNTHETIC] for arrays in sent(grid.sent) if SYNTHETIC in arrays]
    # Once to each of four clients in the second and in the third task.
    assert len(seen) == 8
    for images in seen:
        views = torch.from_numpy(images).permute(0, 3, 1, 2) / 255
        distances = torch.cdist(views.flatten(1), real.flatten(1)) / np.sqrt(real[0].numel())
        assert float(distances.min()) > 0.05


def test_the_loss_against_a_calculation_by_hand(
    small_run: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = target(small_run)
    rows = {
        "head.0.weight": torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        "head.0.bias": torch.zeros(2),
        "head.1.weight": torch.tensor([[0.5, 0.5], [-1.0, 0.0]]),
        "head.1.bias": torch.zeros(2),
    }
    features = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    step = Step(
        torch.zeros(2, 3, 8, 8), features, np.array([2, 3]), np.zeros(2, bool), [], [], LinearHead(2), rows
    )

    class Synthetic:
        def draw(self, count: int) -> torch.Tensor:
            assert count == 2
            return torch.tensor([[3.0, 1.0], [0.0, 0.0]])

    monkeypatch.setattr(method.training, "network", lambda images: images)
    taught = torch.tensor([[0.0, 2.0], [1.0, 1.0]])
    monkeypatch.setattr(method.teacher, "logits", lambda images, tasks: taught)
    found = method.objective(step, 1, Synthetic())  # type: ignore[arg-type]
    new = torch.nn.functional.cross_entropy(torch.tensor([[0.5, -1.0], [1.0, 0.0]]), torch.tensor([0, 1]))
    old = torch.tensor([[3.0, 1.0], [0.0, 0.0]])
    kept = -((taught / 2).softmax(1) * (old / 2).log_softmax(1)).sum(1).mean()
    assert float(found) == pytest.approx(float(new + 25 * kept), rel=1e-6)


def test_all_classes_are_wanted_alike(small_run: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    method = target(small_run, "method.synthesis.images=12")
    wanted: list[int] = []
    original = torch.nn.functional.cross_entropy

    def note(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        wanted.extend(targets.tolist())
        return original(logits, targets)

    monkeypatch.setattr("pip_flower.methods.target.synthesis.F.cross_entropy", note)
    arrays = dict(method.start_task(0, {}) | method.start_task(1, {}) | method.start_task(0, {}))
    method.synthesis.images(1, arrays)
    assert np.bincount(wanted).tolist() == [6, 6, 6, 6]


def test_statistics_are_those_of_batch_normalisation() -> None:
    network = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2)).eval()
    images = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    with watched_statistics(network) as statistics:
        network(images)
        network(images)
        maps = network[0](images)
        means, variances = maps.mean((0, 2, 3)), maps.var((0, 2, 3), unbiased=False)
        expected = means.norm() + (variances - 1).norm()
        assert torch.allclose(statistics.total(images), expected)
    assert not network._forward_pre_hooks
    assert float(statistics.total(images).detach()) > 0


def test_the_student_counts_only_where_it_agrees() -> None:
    teacher = torch.tensor([[2.0, 0.0], [2.0, 0.0]])
    student = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    p, q = teacher[0].softmax(0), student[0].softmax(0)
    assert torch.allclose(disagreement(student, teacher), (p * (p / q).log()).sum() / 2)
    assert float(disagreement(teacher, teacher)) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("overrides", "key"),
    [("method.synthesis.images=3", "images"), ("method.synthesis.warm_up=2", "warm_up")],
)
def test_what_cannot_work_is_refused(small_run: RunConfig, overrides: str, key: str) -> None:
    with pytest.raises(ConfigError, match=f"method.synthesis.{key}"):
        strategy_for(sized(small_run, "target", overrides))


def test_it_runs_without_a_student(small_run: RunConfig) -> None:
    notes = play(sized(small_run, "target", "method.synthesis.adversarial=0"))
    assert len(notes.evaluations) == 3
