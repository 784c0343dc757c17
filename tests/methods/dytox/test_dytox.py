"""DyTox: tokens that come and stay, what it minimises, and the balanced end of a task."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pip_flower.config.schema import ConfigError
from pip_flower.method.exchange import ClientJob
from pip_flower.methods.dytox.dytox import DyTox
from pip_flower.methods.networks.model import Step
from support.local_grid import LocalGrid
from support.networks import sized
from support.runs import digest, kept_by_clients, play, strategy_for

RunConfig = dict[str, Any]
EVERYBODY = "federation.clients_per_round=4"


def dytox(small_run: RunConfig, overrides: str = "") -> DyTox:
    made = strategy_for(sized(small_run, "dytox", overrides)).method
    assert isinstance(made, DyTox)
    return made


def grown(method: DyTox, tasks: int) -> dict[str, Any]:
    """The server's arrays when the last of so many tasks begins."""
    arrays: dict[str, Any] = {}
    for task in range(tasks):
        arrays |= method.start_task(task, arrays)
        if task < tasks - 1:
            arrays |= method.end_task(task, arrays)
    return arrays


def tensors(arrays: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(value) for name, value in arrays.items()}


def test_adding_a_task_leaves_earlier_logits_unchanged(small_run: RunConfig) -> None:
    method = dytox(small_run)
    samples = method.workspace.test_samples(0)
    one, three = tensors(grown(method, 1)), tensors(grown(method, 3))
    before, after = method.scores(one, samples, 1), method.scores(three, samples, 3)
    assert (before.shape[1], after.shape[1]) == (2, 6)
    assert torch.equal(before, after[:, :2])


def job(method: DyTox, task: int, arrays: dict[str, Any]) -> ClientJob:
    return ClientJob(3, task, 0, arrays, method.workspace.client_samples(task, 0, "train"))


def test_old_tokens_and_heads_are_neither_trained_nor_sent(small_run: RunConfig) -> None:
    method = dytox(small_run, f"{EVERYBODY} training.epochs=2")
    arrays = grown(method, 3)
    old = [name for task in (0, 1) for name in method.training.head.own_names(task)]
    update = method.fit(job(method, 2, arrays))
    assert not set(old) & set(update.arrays)
    assert not set(old) & set(method.returned(2))
    changed = [name for name, value in update.arrays.items() if value.tobytes() != arrays[name].tobytes()]
    assert {"head.2.token", "head.2.weight", "head.block.key.weight", "divergence.2.weight"} <= set(changed)
    assert method.conclusion is not None
    tuned = method.conclusion.fit(job(method, 2, arrays)).arrays
    assert not set(old) & set(tuned)


def test_old_tokens_are_bit_equal_after_a_run(small_run: RunConfig) -> None:
    run_config = sized(small_run, "dytox", f"{EVERYBODY} schedule.rounds=6")
    strategy = strategy_for(run_config)
    strategy.run(LocalGrid(4, run_config))
    ours, whole = strategy.arrays, play(run_config).final
    assert digest(ours) == digest(whole)
    # The teacher of the last task has the tokens as they were when the first and the second one ended.
    for task in (0, 1):
        name = f"head.{task}.token"
        assert ours[name].tobytes() == ours[f"teacher.{name}"].tobytes()


def test_a_tasks_classes_see_its_own_token_only(small_run: RunConfig) -> None:
    method = dytox(small_run)
    state = tensors(grown(method, 2))
    patches = torch.randn(3, 4, 24, generator=torch.Generator().manual_seed(0))
    before = method.training.head.logits(state, patches, range(2))
    other = state | {"head.1.token": state["head.1.token"] + 1.0}
    after = method.training.head.logits(other, patches, range(2))
    assert torch.equal(before[:, :2], after[:, :2])
    assert not torch.allclose(before[:, 2:], after[:, 2:])


def test_the_loss_against_a_calculation_by_hand(
    small_run: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = dytox(small_run)
    rows = tensors(grown(method, 2))
    patches = torch.randn(3, 4, 24, generator=torch.Generator().manual_seed(1))
    taught = torch.tensor([[0.0, 1.0], [2.0, -1.0], [0.5, 0.5]])
    monkeypatch.setattr(method.teacher, "logits", lambda images, tasks: taught)
    head = method.training.head
    step = Step(
        torch.zeros(3, 3, 16, 16), patches, np.array([2, 3, 0]), np.zeros(3, bool), [], [], head, rows
    )
    logits = head.logits(rows, patches, range(2))
    plain = F.binary_cross_entropy_with_logits(logits, torch.eye(4)[[2, 3, 0]])
    kept = -(taught.softmax(1) * logits[:, :2].log_softmax(1)).sum(1).mean()
    (embedding,) = head.embeddings(rows, patches, [1])
    apart = F.linear(F.layer_norm(embedding, [24]), rows["divergence.1.weight"], rows["divergence.1.bias"])
    # Rows of the divergence: any old class, then the two new ones.
    divergence = F.cross_entropy(apart, torch.tensor([1, 2, 0]))
    assert torch.allclose(method.objective(step, 1), 0.5 * plain + 0.5 * kept + 0.1 * divergence, atol=1e-6)
    assert apart.shape == (3, 3)


def test_attention_of_a_token_against_a_calculation_by_hand(small_run: RunConfig) -> None:
    head = dytox(small_run).training.head
    state = head.start_task(0, 2, torch.Generator().manual_seed(0))
    patches = torch.randn(1, 4, 24, generator=torch.Generator().manual_seed(1))
    block = {name.removeprefix("head.block."): value for name, value in state.items()}
    token = state["head.0.token"]
    asked = F.layer_norm(torch.cat([token[None], patches[0]]), [24])
    q, k, v = (asked @ block[f"{name}.weight"].T for name in ("query", "key", "value"))
    parts = []
    for number in range(3):
        columns = slice(8 * number, 8 * number + 8)
        weights = (k[:, columns] @ q[0, columns] / np.sqrt(8)).softmax(0)
        parts.append(weights @ v[:, columns])
    token = token + torch.cat(parts) @ block["project.weight"].T
    inner = F.gelu(F.layer_norm(token, [24]) @ block["expand.weight"].T)
    token = token + inner @ block["contract.weight"].T
    assert torch.allclose(head.embeddings(state, patches, [0])[0][0], token, atol=1e-5)


def test_the_balanced_epochs_leave_the_encoder_alone(small_run: RunConfig) -> None:
    method = dytox(small_run)
    assert method.conclusion is not None
    arrays = grown(method, 2)
    before = digest(arrays)
    update = method.conclusion.fit(job(method, 1, arrays))
    assert digest(arrays) == before
    assert set(update.arrays) == {*method.training.head.block_names(), *method.training.head.own_names(1)}
    assert update.arrays["head.1.token"].tobytes() != arrays["head.1.token"].tobytes()
    assert update.memory
    first = grown(method, 1)
    untouched = method.conclusion.fit(job(method, 0, first)).arrays
    assert all(untouched[name].tobytes() == first[name].tobytes() for name in untouched)


def test_every_client_keeps_exemplars_of_all_its_classes(small_run: RunConfig, tmp_path: Path) -> None:
    play(sized(small_run, "dytox", f"method.memory.exemplars=6 runtime.state_dir={tmp_path}"))
    for kept in kept_by_clients(tmp_path):
        assert {int(name.split(".")[1]) // 2 for name in kept} == {0, 1, 2}
        assert sum(ids.size for ids in kept.values()) <= 6


def test_without_balanced_epochs_nothing_concludes_a_task(small_run: RunConfig) -> None:
    assert dytox(small_run, "method.tuning.epochs=0").conclusion is None


@pytest.mark.parametrize(
    ("overrides", "key"),
    [("method.encoder.heads=5", "heads"), ("method.encoder.patch=5", "patch")],
)
def test_a_transformer_that_cannot_be_built_is_refused(
    small_run: RunConfig, overrides: str, key: str
) -> None:
    with pytest.raises(ConfigError, match=f"method.encoder.{key}"):
        dytox(small_run, overrides)
