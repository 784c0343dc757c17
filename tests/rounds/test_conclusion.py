"""Clients' work at the end of a task: everybody who is there and holds its classes, once."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.method import ClientJob, ClientUpdate, Exchange, Merge, Round, Sum, registry
from pip_flower.methods.frozen_head import FrozenHead
from pip_flower.reporting.run_directory import RunDirectory
from pip_flower.rounds.observer import ConclusionRecord
from pip_flower.rounds.roster import FederationError
from pip_flower.runtime import process
from support.killing import serve_here
from support.local_grid import LocalGrid
from support.runs import Notes, play

RunConfig = dict[str, Any]


class Census(Exchange):
    """How many samples of each class of the task there are."""

    def received(self, task: int) -> tuple[str, ...]:
        return (f"head.{task}.bias",)

    def returned(self, task: int) -> tuple[str, ...]:
        return (f"census.{task}",)

    def merging(self, round_: Round) -> Mapping[str, Merge]:
        return {f"census.{round_.task}": Sum()}

    def fit(self, job: ClientJob) -> ClientUpdate:
        assert list(job.arrays) == [f"head.{job.task}.bias"]
        classes = self.workspace.tasks.classes[job.task]
        counts = np.array([(job.samples.labels == label).sum() for label in classes], dtype=np.float64)
        return ClientUpdate(
            {f"census.{job.task}": counts}, len(job.samples), {"classes": float((counts > 0).sum())}
        )


class Counting(FrozenHead):
    """A frozen head that takes a census when a task ends."""

    def __init__(self, workspace: Any, options: Any) -> None:
        super().__init__(workspace, options)
        self.conclusion = Census(workspace)

    def start_task(self, task: int, arrays: Arrays) -> NamedArrays:
        return super().start_task(task, arrays) | {f"census.{task}": np.zeros(2)}

    def end_task(self, task: int, arrays: Arrays) -> NamedArrays:
        return {"total": np.array([sum(arrays[f"census.{t}"].sum() for t in range(task + 1))])}


@pytest.fixture
def counting(small_run: RunConfig, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """A run of the method above, in place of the frozen head."""
    entry = replace(registry.entries()["frozen-head"], method=Counting)
    monkeypatch.setitem(registry._entries, "frozen-head", entry)
    monkeypatch.setattr(process, "_cache", {k: v for k, v in process._cache.items() if k[0] != "method"})
    overrides = f"{small_run['overrides']} training.epochs=1"
    return small_run | {"method": "frozen-head", "overrides": overrides}


class Concluded(Notes):
    def __init__(self) -> None:
        super().__init__()
        self.conclusions: list[ConclusionRecord] = []

    def task_concluded(self, record: ConclusionRecord) -> None:
        self.conclusions.append(record)


def test_everybody_is_asked_once_and_the_server_goes_on_from_all_of_it(counting: RunConfig) -> None:
    notes = Concluded()
    play(counting, notes=notes)
    assert [record.clients for record in notes.conclusions] == [[0, 1, 2, 3]] * 3
    assert [record.round for record in notes.conclusions] == [2, 4, 6]
    for task in range(3):
        assert notes.final[f"census.{task}"].tolist() == [16.0, 16.0]
    assert notes.final["total"].tolist() == [96.0]
    assert all(record.traffic_up.bytes > 0 and record.traffic_down.bytes > 0 for record in notes.conclusions)
    # The end of a task is counted apart from its last round.
    assert notes.rounds[1].traffic_up.per_message == pytest.approx(
        notes.rounds[0].traffic_up.per_message, rel=0.01
    )


def test_the_order_of_replies_changes_nothing(counting: RunConfig) -> None:
    turned = LocalGrid(4, counting, order=lambda waiting: waiting[::-1], id_seed=4)
    plain, other = play(counting), play(counting, turned)
    assert {k: v.tobytes() for k, v in plain.final.items()} == {
        k: v.tobytes() for k, v in other.final.items()
    }


def concluding(message: Message) -> bool:
    return message.content.config_records["config"].get("phase") == "conclude"


def test_a_client_that_fails_then_costs_its_own_part_only(counting: RunConfig) -> None:
    grid = LocalGrid(4, counting)
    replying = grid.reply_to

    def fail(message: Message) -> Message:
        theirs = grid.contexts[message.metadata.dst_node_id].node_config["partition-id"]
        grid.broken = {message.metadata.dst_node_id} if concluding(message) and theirs == 2 else set()
        return replying(message)

    grid.reply_to = fail  # type: ignore[method-assign]
    notes = Concluded()
    play(counting, grid, notes=notes)
    assert [record.clients for record in notes.conclusions] == [[0, 1, 3]] * 3
    assert all([f.client for f in record.failures] == [2] for record in notes.conclusions)
    assert notes.final["total"] < 96
    assert all(record.failed == 0 for record in notes.rounds)


def test_a_task_that_nobody_concludes_stops_the_run_which_can_be_resumed(
    counting: RunConfig, tmp_path: Path
) -> None:
    run_config = counting | {"out-dir": str(tmp_path / "ill")}
    whole = serve_here(run_config | {"out-dir": str(tmp_path / "whole")})
    grid = LocalGrid(4, run_config)
    replying = grid.reply_to

    def fail(message: Message) -> Message:
        ill = message.metadata.group_id == "4" and concluding(message)
        grid.broken = {message.metadata.dst_node_id} if ill else set()
        return replying(message)

    grid.reply_to = fail  # type: ignore[method-assign]
    with pytest.raises(FederationError, match="task 2: no client concluded it .*the disk is on fire"):
        serve_here(run_config, grid)
    (path,) = (tmp_path / "ill").iterdir()
    serve_here(run_config | {"resume": str(path)})
    assert (path / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    kinds = [line["kind"] for line in RunDirectory(path).lines()]
    assert kinds == ["round", "round", "conclusion", "evaluation"] * 3
