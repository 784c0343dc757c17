"""iCaRL: what it minimises, whom it learns from, what it rehearses, what travels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message

from pip_flower.data.samples import Samples
from pip_flower.methods.icarl import ICaRL
from pip_flower.methods.rehearsal import memory
from pip_flower.rounds.observer import EvaluationRecord, Observer
from support.local_grid import LocalGrid
from support.networks import full, job_of, step_of
from support.runs import digest, kept_by_clients, play, strategy_for

RunConfig = dict[str, Any]
EVERYBODY = "federation.clients_per_round=4"


def test_exemplars_stay_on_the_client_and_are_never_sent(small_run: RunConfig, tmp_path: Path) -> None:
    everybody = "method.memory.exemplars=6 federation.clients_per_round=4"
    run_config = full(small_run, "icarl", f"{everybody} runtime.state_dir={tmp_path}")
    grid = LocalGrid(4, run_config)
    notes = play(run_config, grid)
    assert not any("exemplar" in name for name in notes.final)
    for reply in grid.replies:
        assert not any("exemplar" in n for r in reply.content.array_records.values() for n in r)
    for kept in kept_by_clients(tmp_path):
        assert 1 <= sum(ids.size for ids in kept.values()) <= 6
        assert len(kept) >= 3  # classes of three tasks


def icarl(small_run: RunConfig, overrides: str = "") -> ICaRL:
    method = strategy_for(full(small_run, "icarl", overrides)).method
    assert isinstance(method, ICaRL)
    return method


def test_the_loss_against_a_calculation_by_hand(
    small_run: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = icarl(small_run)
    taught = torch.tensor([[0.0, 1.0], [2.0, -1.0]])
    monkeypatch.setattr(method.teacher, "logits", lambda images, tasks: taught)
    found = method.loss(step_of([2, 3]), job_of(1))
    # Logits of old and new classes, and targets: the teacher's sigmoid for the old, the label for the new.
    logits = [[1.0, 0.0, 0.5, -1.0], [0.0, 2.0, 1.0, 0.0]]
    targets = [[0.5, 1 / (1 + np.exp(-1.0)), 1.0, 0.0], [1 / (1 + np.exp(-2.0)), 1 / (1 + np.e), 0.0, 1.0]]
    terms = [
        -(y * np.log(1 / (1 + np.exp(-o))) + (1 - y) * np.log(1 - 1 / (1 + np.exp(-o))))
        for row, wanted in zip(logits, targets, strict=True)
        for o, y in zip(row, wanted, strict=True)
    ]
    assert float(found) == pytest.approx(np.mean(terms), rel=1e-6)


def test_in_the_first_task_nobody_teaches(small_run: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    method = icarl(small_run)
    monkeypatch.setattr(method.teacher, "logits", lambda *_: pytest.fail("asked"))
    o = np.array([[1.0, 0.0], [0.0, 2.0]])
    y = np.array([[1.0, 0.0], [0.0, 1.0]])
    p = 1 / (1 + np.exp(-o))
    expected = -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean()
    assert float(method.loss(step_of([0, 1]), job_of(0))) == pytest.approx(expected, rel=1e-6)


def test_the_teacher_is_the_global_model_at_the_end_of_the_task_before(small_run: RunConfig) -> None:
    run_config = full(small_run, "icarl", "schedule.rounds=6")
    strategy, grid = strategy_for(run_config), LocalGrid(4, run_config)
    ends: dict[int, dict[str, bytes]] = {}

    class Keep(Observer):
        def task_evaluated(self, record: EvaluationRecord) -> None:
            ends[record.task] = digest(strategy.arrays)

    strategy.observer = Keep()
    strategy.run(grid)
    teachers = 0
    for message in sent_in_training(grid):
        task = int(str(message.content.config_records["config"]["task"]))
        arrays = message.content.array_records["arrays"]
        taught = {name: array.numpy() for name, array in arrays.items() if name.startswith("teacher.")}
        assert not (taught and task == 0)
        for name, value in taught.items():
            assert value.tobytes() == ends[task - 1][name.removeprefix("teacher.")]
        teachers += bool(taught)
        assert "teacher.head.0.weight" in taught or not taught
        assert f"teacher.head.{task}.weight" not in taught
    assert teachers >= 2


def sent_in_training(grid: LocalGrid) -> list[Message]:
    return [message for message in grid.sent if message.metadata.message_type == "train"]


def teacher_sent(grid: LocalGrid) -> list[tuple[int, int, bool]]:
    """Round, client, and whether the teacher went along, of each training message."""
    found = []
    for message in sent_in_training(grid):
        partition = int(str(grid.contexts[message.metadata.dst_node_id].node_config["partition-id"]))
        names = message.content.array_records["arrays"]
        with_teacher = any(name.startswith("teacher.") for name in names)
        found.append((int(str(message.content.config_records["config"]["round"])), partition, with_teacher))
    return found


def test_a_client_gets_the_teacher_once_per_task(small_run: RunConfig, tmp_path: Path) -> None:
    everybody = f"{EVERYBODY} schedule.rounds=6 runtime.state_dir={tmp_path}"
    run_config = full(small_run, "icarl", everybody)
    grid = LocalGrid(4, run_config)
    notes = play(run_config, grid)
    sent = teacher_sent(grid)
    assert [flag for round_, _, flag in sent if round_ in (1, 2, 4, 6)] == [False] * 16
    assert [flag for round_, _, flag in sent if round_ in (3, 5)] == [True] * 8
    assert notes.rounds[3].traffic_down.bytes < 0.6 * notes.rounds[2].traffic_down.bytes
    assert len(list(tmp_path.glob("*/constant/*.arrays"))) == 2


def test_a_teacher_that_is_lost_is_fetched_and_changes_nothing(small_run: RunConfig, tmp_path: Path) -> None:
    everybody = f"{EVERYBODY} schedule.rounds=6"
    whole = play(full(small_run, "icarl", f"{everybody} runtime.state_dir={tmp_path / 'a'}"))
    run_config = full(small_run, "icarl", f"{everybody} runtime.state_dir={tmp_path / 'b'}")
    grid = LocalGrid(4, run_config)
    replying = grid.reply_to

    def lose(message: Message) -> Message:
        told = message.content.config_records["config"]
        if message.metadata.message_type == "train" and told["round"] == 4:
            for path in tmp_path.glob("b/*/constant/*.arrays"):
                path.write_bytes(path.read_bytes()[:-1])
        return replying(message)

    grid.reply_to = lose  # type: ignore[method-assign]
    notes = play(run_config, grid)
    assert digest(notes.final) == digest(whole.final)
    assert all(record.failed == 0 for record in notes.rounds)
    # Asked without, then once more with it.
    assert [flag for round_, _, flag in teacher_sent(grid) if round_ == 4] == [False] * 4 + [True] * 4


def test_exemplars_of_earlier_tasks_are_rehearsed_and_no_others(
    small_run: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[set[int], set[int]]] = []
    original = memory.ExemplarMemory.rehearsed

    def watch(self: Any, kept: Any, train: Samples, excluding: Any) -> Samples:
        found = original(self, kept, train, excluding=excluding)
        ids = {int(i) for name, values in kept.items() if name.startswith("exemplars.") for i in values}
        assert {int(i) for i in found.ids} <= ids
        seen.append((set(found.labels.tolist()), set(excluding)))
        return found

    monkeypatch.setattr(memory.ExemplarMemory, "rehearsed", watch)
    play(full(small_run, "icarl", f"{EVERYBODY} method.memory.exemplars=6 runtime.state_dir={tmp_path}"))
    assert [labels for labels, present in seen if 0 in present] == [set()] * 4
    later = [(labels, present) for labels, present in seen if 4 in present]
    assert len(later) == 4
    for labels, present in later:
        assert labels
        assert labels <= {0, 1, 2, 3}
        assert not labels & present


def test_a_client_keeps_a_fraction_of_its_samples_and_says_so(small_run: RunConfig, tmp_path: Path) -> None:
    room = f"method.memory.fraction=0.5 runtime.state_dir={tmp_path} federation.clients=2"
    run_config = full(small_run, "icarl", f"{room} partition.scheme=iid federation.clients_per_round=2")
    notes = play(run_config)
    # Two clients with eight of each class's sixteen samples.
    for kept in kept_by_clients(tmp_path):
        assert {name: len(ids) for name, ids in kept.items()} == {f"exemplars.{c}": 4 for c in range(6)}
    assert [record.metrics["kept_share"] for record in notes.rounds] == [0.5] * 3
    assert icarl(small_run).options.memory.fraction < 0.2


@pytest.mark.parametrize("classifier", ["linear", "nearest-mean"])
def test_it_runs_with_both_classifiers(small_run: RunConfig, classifier: str) -> None:
    notes = play(full(small_run, "icarl", f"method.classifier={classifier}"))
    assert len(notes.evaluations) == 3
    assert ("mean.sum" in notes.final) == (classifier == "nearest-mean")
