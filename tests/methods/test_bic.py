"""BiC: what its line does, what it is fitted on, what is held out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pip_flower.arrays import NamedArrays
from pip_flower.method.exchange import ClientJob
from pip_flower.methods.bic import BiC, fitted_line
from pip_flower.methods.rehearsal.memory import ExemplarMemory
from support.networks import full, job_of, step_of
from support.runs import play, strategy_for

RunConfig = dict[str, Any]
LINES = {f"bias.{task}.{name}": value for task in (0, 1) for name, value in (("alpha", 1.0), ("beta", 0.0))}


def bic(small_run: RunConfig, overrides: str = "") -> BiC:
    method = strategy_for(full(small_run, "bic", overrides)).method
    assert isinstance(method, BiC)
    return method


def lines(**changed: float) -> dict[str, torch.Tensor]:
    values = LINES | {name.replace("_", "."): value for name, value in changed.items()}
    return {name: torch.tensor([value]) for name, value in values.items()}


def drawn(*shape: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_one_and_zero_change_nothing(small_run: RunConfig) -> None:
    logits = drawn(5, 4)
    assert torch.equal(bic(small_run).corrected(lines(), logits, 2), logits)


@pytest.mark.parametrize("kept", ["newest", "every-task"])
def test_the_order_among_old_classes_never_changes(small_run: RunConfig, kept: str) -> None:
    logits = drawn(50, 4)
    line = lines(bias_0_alpha=0.5, bias_0_beta=-1.0, bias_1_alpha=0.3, bias_1_beta=2.0)
    found = bic(small_run, f"method.lines={kept}").corrected(line, logits, 2)
    assert torch.equal(found[:, :2].argmax(1), logits[:, :2].argmax(1))
    torch.testing.assert_close(found[:, 2:], 0.3 * logits[:, 2:] + 2)
    assert torch.equal(found[:, :2], logits[:, :2]) == (kept == "newest")


def test_a_shift_of_the_new_logits_is_undone(small_run: RunConfig) -> None:
    options = replace(bic(small_run).options, beta_penalty=0.0, bias_steps=3000)
    # Labels drawn from the model's own probabilities: there the line (1, 0) is right.
    logits = drawn(4000, 4)
    columns = torch.multinomial(logits.softmax(1), 1, generator=torch.Generator().manual_seed(1))[:, 0]
    shifted = logits.clone()
    shifted[:, 2:] += 3
    alpha, beta = fitted_line(shifted, columns, 2, options)
    assert alpha == pytest.approx(1, abs=0.1)
    assert beta == pytest.approx(-3, abs=0.3)
    same = fitted_line(logits, columns, 2, options)
    assert same == pytest.approx([1, 0], abs=0.1)


def test_the_loss_distils_the_corrected_logits(small_run: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    method, step = bic(small_run), step_of([2, 3])
    taught = torch.tensor([[0.0, 1.0], [2.0, -1.0]])
    monkeypatch.setattr(method.teacher, "logits", lambda images, tasks: taught)
    job = job_of(1, {"bias.0.alpha": np.array([2.0], np.float32), "bias.0.beta": np.array([1.0], np.float32)})
    logits = step.logits([0, 1])
    wanted = ((2 * taught + 1) / 2).softmax(1)
    kept = -(wanted * (logits[:, :2] / 2).log_softmax(1)).sum(1).mean()
    expected = 0.5 * kept + 0.5 * F.cross_entropy(logits, torch.tensor([2, 3]))
    torch.testing.assert_close(method.loss(step, job), expected)


def holding(method: BiC, round_: int, memory: NamedArrays) -> tuple[ClientJob, ExemplarMemory]:
    job = ClientJob(round_, 1, 0, {}, method.samples(1, 0, round_), memory)
    return job, ExemplarMemory(12)


def test_what_is_held_out_is_not_trained_on_in_any_round_of_the_task(small_run: RunConfig) -> None:
    method = bic(small_run, "partition.scheme=iid federation.clients=2")
    first = method.samples(0, 0, 1)
    exemplars = ExemplarMemory(12)
    memory = exemplars.updated({}, first, np.eye(len(first)), None)
    job, exemplars = holding(method, 3, memory)
    trained, held = method._split(job, exemplars)
    # Twelve exemplars, four classes: three each, one of which is held out, of new classes too.
    assert np.unique(held.old.labels, return_counts=True)[1].tolist() == [1, 1]
    assert np.unique(held.new.labels, return_counts=True)[1].tolist() == [1, 1]
    assert len(trained.old) == 4
    assert not set(held.joined().ids.tolist()) & set(trained.joined().ids.tolist())
    later = exemplars.updated(memory, job.samples, np.eye(len(job.samples)), None)
    again = method._split(*holding(method, 4, later))
    for before, now in zip((trained, held), again, strict=True):
        assert before.joined().ids.tolist() == now.joined().ids.tolist()


def test_the_mean_of_the_lines_counts_what_was_held_out(small_run: RunConfig) -> None:
    method = bic(small_run)
    arrays = method.start_task(0, {})
    arrays |= {"bias.sum": 3 * np.array([1.0, 2.0]) + np.array([5.0, -2.0]), "bias.count": np.array([4.0])}
    found = method.end_task(0, arrays)
    assert found["bias.0.alpha"].tolist() == [2.0]
    assert found["bias.0.beta"].tolist() == [1.0]
    assert "bias.0.alpha" not in method.end_task(0, arrays | {"bias.count": np.zeros(1)})


def test_lines_are_fitted_in_the_last_round_of_later_tasks(small_run: RunConfig, tmp_path: Path) -> None:
    run = f"schedule.rounds=6 method.memory.exemplars=18 runtime.state_dir={tmp_path}"
    final = play(full(small_run, "bic", f"{run} federation.clients_per_round=4")).final
    assert final["bias.0.alpha"].tolist() == [1.0]
    assert final["bias.1.alpha"].tolist() != [1.0]
    assert final["bias.2.beta"].tolist() != [0.0]
    assert final["bias.count"][0] >= 4
