from pathlib import Path

import pytest
import yaml

from pip_flower.cli import main


def test_config_show_prints_what_can_be_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--overrides", "training.epochs=7", "--seed", "5"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["training"]["epochs"] == 7
    assert shown["seed"] == 5
    assert shown["method"]["name"] == "pip-dualprompt"


def test_a_bad_configuration_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["config", "show"], ["run"], ["suite", "--methods", "pip-dualprompt"]):
        assert main([*command, "--overrides", "schedule.rounds=7"]) == 2
        told = capsys.readouterr()
        assert "schedule.rounds (set in overrides): 7 rounds do not divide into 5 tasks" in told.err
        assert told.out == ""


def test_methods_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "--names"]) == 0
    names = capsys.readouterr().out.split()
    assert {"pip-dualprompt", "pip-l2p", "fed-dualprompt", "fed-l2p"} <= set(names)
    assert main(["methods"]) == 0
    assert "PIP-DualPrompt" in capsys.readouterr().out


def test_a_report_needs_finished_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "is not a finished run: it has no config.yaml" in capsys.readouterr().err
