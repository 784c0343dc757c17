from pathlib import Path

import pytest
import yaml

from pip_flower.cli import main


def test_config_show_prints_what_can_be_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--overrides", "training.epochs=7", "--seed", "5"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["training"]["epochs"] == 7
    assert shown["seed"] == 5
    assert (shown["method"]["label"], shown["method"]["name"]) == ("pip-dualprompt", "pip")


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
    said = capsys.readouterr().out
    assert "PIP-DualPrompt" in said
    assert "ablation-a           Ablation A of the paper: prompts." in said
    rows = [line.strip() for line in said.splitlines()]
    assert rows[rows.index(next(row for row in rows if row.startswith("icarl "))) + 1].startswith(
        "clients keep: exemplar images; clients send: class feature sums of exemplars"
    )
    after_fedavg = rows[rows.index(next(row for row in rows if row.startswith("fedavg "))) + 1]
    assert not after_fedavg.startswith("clients ")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["suite", "--methods", " , "], "--methods: ' , ' names none. Choose from: ablation-a, "),
        (["suite", "--methods", "ncm", "--seeds", "1,b"], "--seeds: 'b' is not a whole number from 0 on"),
        (["config", "show", "--seed", "-7"], "--seed: '-7' is not a whole number from 0 on"),
        (["deploy", "register", "nowhere"], "SERVER_BUNDLE: "),
        (["deploy", "init", "x", "--nodes", "1", "--server-host", ","], "--server-host: '' is no name"),
        (["deploy", "init", "x", "--nodes", "1", "--server-host", "h", "--fleet-port", "0"], "0 is no port"),
        (["data", "info", "cifar100"], "dataset.data_dir: is not set. Give cifar-100-python.tar.gz"),
    ],
)
def test_bad_input_is_named(
    command: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(command) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ("runtime.device=gpu", "'gpu' is not a device. Give auto, cpu, cuda or cuda:N"),
        ("dataset.source=cifar10", "'cifar10' is not known. Choose from: cifar100, "),
        ("dataset.class_names=[a,b,c]", "3 names are not those of dataset.classes = 10"),
        ("method.prompt.top_k=50 method.prompt.pool=10", "50 prompts cannot be chosen from a pool of 10"),
        ("method.name=pip-duelprompt", "'pip-duelprompt' is not known. Choose from: "),
    ],
)
def test_values_that_cannot_be_used_are_found_before_anything_starts(
    overrides: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "show", "--method", "pip-l2p", "--overrides", overrides]) == 2
    assert f"{overrides.partition('=')[0]} (set in overrides): {said}" in capsys.readouterr().err


def test_a_report_needs_finished_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "is not a finished run: it has no config.yaml" in capsys.readouterr().err
