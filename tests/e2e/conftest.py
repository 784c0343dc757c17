"""Real Flower, real Ray: a SuperLink for the session, runs of seconds."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pip_flower.flower.launcher import FlowerRunner, Simulation, flower_runner
from pip_flower.reporting.live import find_run
from pip_flower.reporting.run_directory import RunDirectory

Run = Callable[..., RunDirectory]


@pytest.fixture(scope="session")
def runner() -> Iterator[FlowerRunner]:
    with flower_runner() as started:
        yield started


@pytest.fixture
def simulate(runner: FlowerRunner, small_run: dict[str, Any], tmp_path: Path) -> Run:
    """Run the app in Flower's simulation; returns the directory it left."""

    def run(overrides: str = "", supernodes: int = 4, client_cpus: int = 1, **config: Any) -> RunDirectory:
        ids: list[int] = []
        run_config = small_run | {"out-dir": str(tmp_path), **config}
        # However long the machine takes to have its nodes ready.
        run_config["overrides"] += f" federation.wait_seconds=600 {overrides}"
        runner.run(run_config, Simulation(supernodes, client_cpus, 0.0), ids.append)
        found = find_run(tmp_path, ids[-1])
        assert found is not None
        return found

    return run


def timeless(directory: RunDirectory) -> list[Any]:
    """The metrics without anything that is a time."""

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: strip(v) for k, v in value.items() if "seconds" not in k}
        return value

    return [json.dumps(strip(line)) for line in directory.lines()]
