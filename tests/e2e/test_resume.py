"""Real Flower, killed for real: first the process of the ServerApp, then the SuperLink."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pip_flower.flower.launcher import FlowerRunner, Simulation, flower_runner
from pip_flower.reporting.live import find_run
from pip_flower.reporting.run_directory import RunDirectory
from support.killing import serve_here

from .conftest import timeless

OVERRIDES = "schedule.rounds=12 training.epochs=1 federation.wait_seconds=600"


class KilledError(Exception):
    """Ends the waiting for a run that will not end by itself."""


def descendants(process: int) -> list[int]:
    """Processes that `process` started, and that these started."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in children] + [d for child in children for d in descendants(int(child))]


def run_until(
    runner: FlowerRunner, run_config: dict[str, Any], out: Path, rounds: int, victim: Callable[[], int]
) -> Path:
    """Run until so many rounds are done, then kill -9 `victim()`; the run's directory."""
    found: list[Path] = []

    def watch(run_id: int) -> None:
        directory = find_run(out, run_id)
        if directory is None or not directory.progress.is_file():
            return
        progress = json.loads(directory.progress.read_text())
        assert progress["rounds_done"] < 12, "the run was over before it could be killed"
        if progress["rounds_done"] >= rounds:
            found.append(directory.path)
            os.kill(victim(), signal.SIGKILL)
            raise KilledError

    with pytest.raises(KilledError):
        runner.run(run_config, Simulation(4, 1, 0.0), watch, poll_seconds=0.02)
    return found[0]


def server_app_of(runner: FlowerRunner) -> int:
    assert runner.superlink is not None
    for process in descendants(runner.superlink.pid):
        if b"flwr-simulation" in Path(f"/proc/{process}/cmdline").read_bytes():
            return process
    raise AssertionError("no process runs the ServerApp")


def metrics_of(directory: RunDirectory) -> list[dict[str, Any]]:
    """The metrics without times and without what a process has loaded."""
    lines = [json.loads(line) for line in timeless(directory)]
    for line in lines:
        line.get("metrics", {}).pop("backbone_loads", None)
    return lines


def test_a_killed_server_app_and_a_killed_superlink_lose_nothing(
    runner: FlowerRunner, small_run: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "killed"
    run_config = small_run | {
        "method": "ablation-d",
        "overrides": f"{small_run['overrides']} {OVERRIDES}",
        "out-dir": str(out),
    }
    whole = RunDirectory(serve_here(run_config | {"out-dir": str(tmp_path / "whole")}))
    path = run_until(runner, run_config, out, 2, lambda: server_app_of(runner))
    with flower_runner() as second:
        assert second.superlink is not None
        superlink = second.superlink.pid
        resumed = run_config | {"resume": str(path)}
        assert run_until(second, resumed, out, 6, lambda: superlink) == path
    runner.run(resumed, Simulation(4, 1, 0.0), lambda _: None)
    directory = RunDirectory(path)
    assert directory.model.read_bytes() == whole.model.read_bytes()
    assert directory.matrix.read_bytes() == whole.matrix.read_bytes()
    assert metrics_of(directory) == metrics_of(whole)
    assert [line["round"] for line in directory.lines() if line["kind"] == "round"] == list(range(1, 13))
    assert len(directory.read_environment()["earlier_runs"]) == 2
