import json
from collections.abc import Callable
from typing import Any

import pytest
from safetensors.numpy import load_file

from pip_flower.config.compose import Selection
from pip_flower.flower.launcher import LaunchError
from pip_flower.method.configuration import load_config
from pip_flower.reporting.results import RunResult
from pip_flower.reporting.run_directory import RunDirectory
from support.networks import quick
from support.runs import digest, play

from .conftest import timeless

Run = Callable[..., RunDirectory]


# One of each family; tests/methods plays all of them in one process.
FAMILIES = [
    "pip-dualprompt",
    "pip-drift",
    "fed-cprompt",
    "ncm",
    "frozen-head",
    "joint",
    "icarl",
    "glfc",
    "dytox",
]


@pytest.mark.parametrize("method", FAMILIES)
def test_every_family_runs_end_to_end(simulate: Run, method: str) -> None:
    small = quick(load_config(Selection(method=method)).method.options)
    directory = simulate(f"schedule.rounds=3 training.epochs=1 {small}", method=method)
    lines = directory.lines()
    assert [line["round"] for line in lines if line["kind"] == "round"] == [1, 2, 3]
    assert [len(line["accuracies"]) for line in lines if line["kind"] == "evaluation"] == [1, 2, 3]
    # However many clients a process serves; methods that train a whole network load no backbone at all.
    loads = {line["metrics"]["backbone_loads"] for line in lines if line["kind"] == "round"}
    assert loads == (
        {0.0} if any(name.startswith("network.") for name in load_file(directory.model)) else {1.0}
    )
    assert sum(line["failed"] for line in lines if line["kind"] == "round") == 0
    result = RunResult.read(directory.path)
    assert (result.method, result.seed) == (method, 7)
    assert load_file(directory.model)
    assert directory.plot.read_bytes().startswith(b"\x89PNG")
    environment = json.loads(directory.environment.read_text())
    assert environment["packages"]["flwr"] == "1.39.0"


def test_results_are_the_same_with_one_actor_or_two_and_without_ray(
    simulate: Run, small_run: dict[str, Any]
) -> None:
    two = simulate(client_cpus=1)
    one = simulate(client_cpus=2)
    assert timeless(one) == timeless(two)
    assert one.model.read_bytes() == two.model.read_bytes()
    alone = play(small_run)
    assert digest(alone.final) == digest(load_file(two.model))


def test_too_few_supernodes_fail_with_the_command_to_use(simulate: Run) -> None:
    with pytest.raises(LaunchError) as error:
        simulate("federation.wait_seconds=1", supernodes=2)
    assert "finished:failed" in str(error.value)
    assert 'flwr run . --stream --federation-config "num-supernodes=4"' in str(error.value)


def test_a_failing_app_is_a_failed_run(simulate: Run) -> None:
    with pytest.raises(LaunchError, match="ConfigError: dataset.classes: 3 configured, but the data has 6"):
        simulate("dataset.classes=3 schedule.tasks=3")
