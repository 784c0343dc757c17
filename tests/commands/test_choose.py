"""`pip-flower choose`, with real runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from pip_flower import cli
from pip_flower.commands.choose import best
from pip_flower.reporting.results import RunResult


def choose(small_run: dict[str, Any], output: Path, *values: str) -> int:
    return cli.main(
        [
            "choose",
            *values,
            "--methods=frozen-head,ncm",
            "--seeds=1,2",
            "--jobs=2",
            f"--data-dir={small_run['data-dir']}",
            f"--overrides={small_run['overrides']} training.epochs=1",
            f"--output={output}",
        ]
    )


def test_each_method_gets_its_own_choice_from_validation_images_only(
    small_run: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = ("training.learning_rate=0.00001,0.01",)
    assert choose(small_run, tmp_path, *values) == 0
    record = json.loads((tmp_path / "choice.json").read_text())
    # The closed form has no rate: of equals the first is taken.
    assert record["chosen"] == {
        "frozen-head": "training.learning_rate=0.01",
        "ncm": "training.learning_rate=0.00001",
    }
    runs = sorted(tmp_path.glob("runs/*/*/*"))
    assert len(runs) == 8
    for run in runs:
        assert "split: validation" in (run / "config.yaml").read_text()
        result = RunResult.read(run)
        (values_of,) = (v for v in record["from"][result.method] if v == run.parent.name)
        scored = record["from"][result.method][values_of][str(result.seed)]
        assert scored == pytest.approx(result.matrix.average())
    assert "on validation images" in capsys.readouterr().out
    # Called again, it plays only what is missing.
    assert choose(small_run, tmp_path, *values) == 0
    assert sorted(tmp_path.glob("runs/*/*/*")) == runs


def test_the_best_mean_wins_and_of_equals_the_first() -> None:
    scores = {("m", "a"): {1: 50.0, 2: 60.0}, ("m", "b"): {1: 56.0, 2: 56.0}, ("m", "c"): {1: 57.0, 2: 55.0}}
    assert best(scores, "m", ["a", "b", "c"]) == "b"
    assert best(scores, "m", ["c", "b", "a"]) == "c"


def test_values_that_are_none_are_named(
    small_run: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert choose(small_run, tmp_path, "training.learning_rate") == 2
    assert "'training.learning_rate' gives no values" in capsys.readouterr().err
    assert choose(small_run, tmp_path, "training.learning_rate=0.1,x") == 2
    assert "training.learning_rate" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_what_a_run_finds_wrong_is_said(
    small_run: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = small_run | {"data-dir": str(tmp_path / "nowhere.npz")}
    assert choose(nowhere, tmp_path, "training.learning_rate=0.1") == 1
    assert "nowhere.npz" in capsys.readouterr().err
