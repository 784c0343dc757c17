"""Every method: interrupted or not, the result is the same."""

from pathlib import Path
from typing import Any

import pytest

from pip_flower.config.compose import Selection
from pip_flower.method.configuration import load_config, method_labels
from pip_flower.method.registry import entries
from support.killing import interrupted, outcome, serve_here
from support.networks import sized


def one_of_each() -> list[str]:
    """A label for each registered method."""
    found: dict[str, str] = {}
    for label in method_labels():
        found.setdefault(load_config(Selection(method=label)).method.name, label)
    assert set(found) == set(entries())
    return list(found.values())


@pytest.mark.parametrize("method", one_of_each())
def test_a_resumed_run_is_the_whole_run_to_the_bit(
    small_run: dict[str, Any], tmp_path: Path, method: str
) -> None:
    overrides = f"schedule.rounds=6 runtime.state_dir={tmp_path / 'states'}"
    run_config = sized(small_run, method, overrides) | {"out-dir": str(tmp_path / "out")}
    whole = outcome(serve_here(run_config | {"out-dir": str(tmp_path / "whole")}))
    path = interrupted(run_config, 4)
    serve_here(run_config | {"resume": str(path)})
    assert outcome(path) == whole
