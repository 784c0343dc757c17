"""Whole runs in which tasks differ in size and clients in what they hold."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pip_flower.config.compose import Selection
from pip_flower.config.schema import ConfigError
from pip_flower.data.population import active_clients
from pip_flower.method.configuration import load_config
from pip_flower.rounds.roster import FederationError
from support.local_grid import LocalGrid
from support.runs import digest, play

RunConfig = dict[str, Any]
NAMES = "[zero,one,two,three,four,five]"


def changed(run_config: RunConfig, overrides: str, **others: Any) -> RunConfig:
    return run_config | {"overrides": f"{run_config['overrides']} {overrides}"} | others


@pytest.mark.parametrize("method", ["pip-dualprompt", "pip-l2p", "pip-align", "frozen-head", "ncm", "joint"])
def test_a_large_first_task_and_a_small_one(small_run: RunConfig, method: str) -> None:
    unequal = "schedule.tasks=2 schedule.rounds=2 schedule.base_classes=4 training.epochs=1"
    notes = play(changed(small_run, unequal, method=method))
    assert [e.samples for e in notes.evaluations] == [[24], [24, 12]]
    assert notes.evaluations[0].accuracies[0] > 25
    heads = [name for name in notes.final if name.startswith("head.") and name.endswith(".weight")]
    assert [len(notes.final[name]) for name in sorted(heads)] in ([], [4, 2])


def test_only_clients_of_the_task_are_drawn(small_run: RunConfig) -> None:
    grown = changed(
        small_run, "federation.clients=8 population.initial=4 population.retire=0.5 schedule.rounds=12"
    )
    config = load_config(Selection.from_run_config(grown))
    notes = play(grown, LocalGrid(8, grown))
    drawn: dict[int, set[int]] = {}
    for record in notes.rounds:
        drawn.setdefault(record.task, set()).update(record.clients)
    for task, clients in drawn.items():
        assert clients <= set(active_clients(config, task).tolist())
    assert max(drawn[0]) < 4 <= max(drawn[2])


def test_clients_without_samples_are_refused_or_sit_the_task_out(
    small_run: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    uneven = changed(
        small_run, "partition.scheme=dirichlet partition.alpha=0.01 federation.clients_per_round=4"
    )
    with pytest.raises(ConfigError, match="has too few samples: clients .*partition.empty=allow"):
        play(uneven)
    allowed = changed(uneven, "partition.empty=allow")
    notes = play(allowed)
    assert any(len(record.clients) < 4 for record in notes.rounds)
    assert "hold no samples of task 1 and sit it out" in capsys.readouterr().err
    assert all(record.failed == 0 for record in notes.rounds)
    shuffled = play(allowed, LocalGrid(4, allowed, order=lambda waiting: waiting[::-1], id_seed=3))
    assert digest(shuffled.final) == digest(notes.final)


@pytest.fixture
def nodes(small_data: Path, tmp_path: Path) -> list[Path]:
    """The images of four nodes: the third has none of the first task, the fourth nothing else."""
    with np.load(small_data) as stored:
        arrays = {name: stored[name] for name in stored.files}
    held = ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3], [2, 3, 4, 5], [1])
    paths = []
    for node, classes in enumerate(held):
        own = {}
        for part in ("train", "test"):
            rows = np.flatnonzero(np.isin(arrays[f"y_{part}"], classes))[node::4]
            own |= {f"x_{part}": arrays[f"x_{part}"][rows], f"y_{part}": arrays[f"y_{part}"][rows]}
        paths.append(tmp_path / f"node{node}.npz")
        np.savez(paths[-1], **own)
    return paths


def with_own_data(run_config: RunConfig, nodes: list[Path]) -> LocalGrid:
    grid = LocalGrid(4, run_config)
    for context in grid.contexts.values():
        partition = int(str(context.node_config["partition-id"]))
        context.node_config["data-dir"] = str(nodes[partition])
    return grid


@pytest.mark.parametrize("where", ["server", "clients"])
def test_nodes_that_hold_only_their_own_images(small_run: RunConfig, nodes: list[Path], where: str) -> None:
    local = f"partition.scheme=local dataset.class_names={NAMES} evaluation.where={where}"
    run = changed(small_run, f"{local} federation.clients_per_round=4")
    if where == "clients":
        run |= {"data-dir": "/nowhere/at/all"}
    grid = with_own_data(run, nodes)
    notes = play(run, grid)
    assert [record.clients for record in notes.rounds] == [[0, 1, 3]] * 2 + [[0, 1, 2]] * 2 + [[0, 2]] * 2
    assert notes.evaluations[-1].samples == ([12, 12, 12] if where == "server" else [7, 9, 6])
    for reply in grid.replies[:4]:
        told = dict(reply.content.config_records["config"])
        assert set(told) == {"partition", "config", "backbone", "method", "states", "held"}
        node = int(str(told["partition"]))
        with np.load(nodes[node]) as stored:
            counts = {str(k): int((stored["y_train"] == k).sum()) for k in np.unique(stored["y_train"])}
        assert json.loads(str(told["held"])) == counts


def test_private_heads_of_nodes_that_hold_only_their_own_images(
    small_run: RunConfig, nodes: list[Path]
) -> None:
    """Tested on the test images that a node has; who has none of a task does not count in its mean."""
    local = f"partition.scheme=local dataset.class_names={NAMES} federation.clients_per_round=4"
    run = changed(small_run, local, method="ablation-a") | {"data-dir": "/nowhere/at/all"}
    grid = with_own_data(run, nodes)
    notes = play(run, grid)
    told = [dict(r.content.metric_records["metrics"]) for r in grid.replies if "metrics" in r.content][-4:]
    assert notes.evaluations[-1].samples == [7, 9, 6]
    for task, mean in enumerate(notes.evaluations[-1].accuracies):
        counts = [(int(str(m[f"correct.{task}"])), int(str(m[f"total.{task}"]))) for m in told]
        assert [total for _, total in counts if total] == [[3, 3, 1], [3, 3, 3], [3, 3]][task]
        assert mean == pytest.approx(np.mean([100 * hits / total for hits, total in counts if total]))
    # They test on nothing but classes that they train on.
    assert notes.evaluations[-1].own_accuracies == notes.evaluations[-1].accuracies


def test_a_task_that_nobody_holds_stops_the_run_by_name(small_run: RunConfig, nodes: list[Path]) -> None:
    run = changed(small_run, f"partition.scheme=local dataset.class_names={NAMES}")
    with pytest.raises(FederationError, match="task 2: no client holds samples of its classes"):
        play(run, with_own_data(run, [nodes[3]] * 4))


def test_bounds_that_pool_data_refuse_local_nodes(small_run: RunConfig, nodes: list[Path]) -> None:
    run = changed(small_run, f"partition.scheme=local dataset.class_names={NAMES}", method="joint")
    with pytest.raises(ConfigError, match="joint trains in one place"):
        play(run, with_own_data(run, nodes))
