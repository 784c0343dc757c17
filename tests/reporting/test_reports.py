import json
import tomllib
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console

import pip_flower
from pip_flower.cli import main
from pip_flower.config.compose import Selection
from pip_flower.flower.revision import revision
from pip_flower.method.configuration import load_config
from pip_flower.metrics import AccuracyMatrix
from pip_flower.reporting.live import LiveProgress, find_run
from pip_flower.reporting.progress import ProgressFile, ProgressLines
from pip_flower.reporting.results import RunResult
from pip_flower.reporting.run_directory import RunDirectory
from pip_flower.reporting.run_log import RunLog
from pip_flower.reporting.tables import (
    accuracy_table,
    failure_table,
    forgetting_table,
    summary_table,
    traffic_table,
)
from pip_flower.reporting.traffic import RunTraffic
from pip_flower.rounds.observer import EvaluationRecord, Failure, RoundRecord, Traffic
from pip_flower.storage.twin_lines import LinesPosition
from support.runs import strategy_for

ARRAYS = {"general": np.ones((2, 3), np.float32)}


def round_record(number: int, task: int) -> RoundRecord:
    traffic = Traffic(2, 60_000), Traffic(2, 40_000)
    return RoundRecord(number, task, [0, 3], 0, 50, {"x": 1.0}, *traffic, 1.5)


@pytest.fixture
def finished(small_run: dict[str, Any], tmp_path: Path) -> RunDirectory:
    """A run directory as the server writes it, from made-up rounds."""
    strategy = strategy_for(small_run)
    directory = RunDirectory.create(tmp_path, strategy.config, 42, strategy.method)
    observers = [
        RunLog(directory, strategy.config),
        ProgressFile(directory, strategy.schedule),
        ProgressLines(strategy.schedule),
    ]
    for observer in observers:
        for number in range(1, 7):
            round_ = strategy.schedule.round(number)
            round_.asked, task = [0, 3], round_.task
            observer.round_started(round_)
            observer.client_replied(round_, 1, 2)
            observer.client_replied(round_, 2, 2)
            observer.round_finished(round_record(number, task))
            if round_.ends_task:
                accuracies = [90.0 - 10 * task] * (task + 1)
                observer.task_evaluated(EvaluationRecord(number, task, accuracies, [9] * (task + 1), 0.5))
        observer.run_finished(dict(ARRAYS))
    return directory


def test_a_run_can_be_read_back(finished: RunDirectory) -> None:
    assert finished.path.name.startswith("digits6-pip-dualprompt-7-")
    result = RunResult.read(finished.path)
    assert result.matrix.after_task() == [90.0, 80.0, 70.0]
    assert result.traffic == RunTraffic(Traffic(12, 240_000), Traffic(12, 360_000), 6, Traffic(), Traffic())
    assert result.seconds == pytest.approx(6 * 1.5 + 3 * 0.5)
    summary = json.loads(finished.matrix.read_text())
    assert summary["forgetting"] == pytest.approx((10 + 15) / 2)
    assert not list(finished.path.glob(".*")), "temporary files are gone"


def test_progress_lines_tell_task_round_clients_accuracy_and_time(
    finished: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = json.loads(finished.progress.read_text())
    assert progress["rounds_done"] == 6
    assert progress["accuracy"] == 70.0
    assert progress["seconds_left"] == 0.0


def test_the_live_view_follows_the_run_with_its_id(finished: RunDirectory, tmp_path: Path) -> None:
    assert find_run(tmp_path, 41) is None
    console = Console(record=True, width=120, force_terminal=False)
    with LiveProgress(console, "pip-dualprompt", tmp_path) as live:
        live.update(41)
        assert live.directory is None
        live.update(42)
    assert live.directory == finished
    assert "task 3/3  round 6/6  clients 2/2  accuracy 70.0 %" in console.export_text()


def test_tables_fit_80_columns(finished: RunDirectory) -> None:
    # Two seeds: figures carry a standard deviation, the widest they get.
    one = RunResult.read(finished.path)
    results = [one, replace(one, seed=8, matrix=AccuracyMatrix([[80.0], [70.0, 70.0], [50.0] * 3]))]
    console = Console(record=True, width=80)
    console.print(accuracy_table(results), summary_table(results), traffic_table(results))
    text = console.export_text()
    assert "pip-dualprompt" in text
    assert "…" not in text
    # The paper's figures stand beside the measured ones.
    assert "paper, on CIFAR-100 with ViT-B/16" in text
    assert "88.0 / 84.3, 1,350 KB" in " ".join(text.split())
    for figure in ("85.0±7.1", "75.0±7.1", "60.0±14.1", "25.0±7.1", "20.0", "30.0"):
        assert figure in text


def test_what_clients_keep_of_their_data_is_shown(finished: RunDirectory, small_run: dict[str, Any]) -> None:
    one = RunResult.read(finished.path)
    assert one.kept_share is None
    log = RunLog(finished, strategy_for(small_run).config)
    log.round_finished(replace(round_record(7, 2), metrics={"kept_share": 0.072}))
    both = [one, replace(RunResult.read(finished.path), method="icarl", row="icarl")]
    console = Console(record=True, width=80)
    console.print(summary_table(both))
    lines = [line.split() for line in console.export_text().splitlines()]
    assert ["method", "Avg", "last", "PD", "forget", "kept", "s"] in lines
    assert [line[-2] for line in lines if line and line[0] == "icarl"] == ["7.2"]
    assert [line[-2] for line in lines if line and line[0] == "pip-dualprompt"][:1] == ["0.0"]


def test_forgetting_is_shown_after_each_task_and_of_each_task(finished: RunDirectory) -> None:
    one = RunResult.read(finished.path)
    rows = [[50.0], [60.0, 40.0], [45.0, 30.0, 20.0]]
    console = Console(record=True, width=80)
    console.print(forgetting_table([replace(one, matrix=AccuracyMatrix(rows))]))
    lines = [line.split() for line in console.export_text().splitlines()]
    assert ["pip-dualprompt", "-10.0", "12.5"] in lines
    assert ["at", "the", "end", "15.0", "10.0"] in lines
    alone = replace(one, matrix=AccuracyMatrix([[50.0]]))
    assert forgetting_table([alone]).row_count == 0


def test_accuracies_on_clients_own_classes_stand_below_those_on_all(
    finished: RunDirectory, small_run: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    one = RunResult.read(finished.path)
    assert one.own is None
    strategy = strategy_for(small_run)
    observers = [log := RunLog(finished, strategy.config), ProgressLines(strategy.schedule)]
    log.go_back(LinesPosition())
    log.round_finished(round_record(1, 0))
    for task, own in enumerate(([90.0], [80.0, 70.0], [60.0, 50.0, 40.0])):
        for observer in observers:
            observer.task_evaluated(
                EvaluationRecord(task, task, [10.0] * (task + 1), [9] * (task + 1), 0.5, [], own)
            )
    assert (
        "after task 2: 10.0 % (by task: 10.0 10.0); clients' own classes: 75.0 %" in capsys.readouterr().out
    )
    assert json.loads(finished.matrix.read_text())["own_classes"]["after_task"] == [90.0, 75.0, 50.0]
    console = Console(record=True, width=80)
    console.print(accuracy_table([RunResult.read(finished.path)]))
    lines = [line.split() for line in console.export_text().splitlines()]
    assert lines.index(["own", "classes", "90.0", "75.0", "50.0"]) == 1 + lines.index(
        ["pip-dualprompt", "10.0", "10.0", "10.0"]
    )
    assert main(["report", str(finished.path), "--output", str(finished.path / "report")]) == 0
    found = json.loads((finished.path / "report" / "results.json").read_text())
    assert found[0]["own_classes"]["average"] == pytest.approx(215 / 3)
    resumed = RunLog(finished, strategy.config)
    resumed.go_back(log.position)
    assert resumed.own.rows == [[90.0], [80.0, 70.0], [60.0, 50.0, 40.0]]


def test_report_writes_a_picture_and_figures(
    finished: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "report"
    assert main(["report", str(finished.path), "--output", str(output)]) == 0
    assert "picture:" in capsys.readouterr().out
    assert (output / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((output / "results.json").read_text())[0]["average"] == 80.0


def test_replies_that_were_not_used_are_shown_with_their_reasons(
    finished: RunDirectory, small_run: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert not RunResult.read(finished.path).failures
    assert main(["report", str(finished.path), "--output", str(finished.path / "report")]) == 0
    assert "replies not used" not in capsys.readouterr().out
    log = RunLog(finished, strategy_for(small_run).config)
    reasons = ["it claims 12 samples", "it claims 345 samples", "general has NaN [in it]"]
    failures = [Failure(client, 0, reason) for client, reason in enumerate(reasons)]
    log.round_finished(RoundRecord(7, 2, [], 3, 0, {}, Traffic(3, 30), Traffic(), 1.0, 1, failures))
    result = RunResult.read(finished.path)
    assert dict(result.failures) == {"it claims # samples": 2, "general has NaN [in it]": 1}
    console = Console(record=True, width=80)
    console.print(failure_table([result]))
    text = console.export_text()
    assert text.index("it claims # samples") < text.index("general has NaN [in it]")


def test_a_run_tells_which_version_and_revision_it_is_of(finished: RunDirectory) -> None:
    project = tomllib.loads((Path(pip_flower.__file__).parents[1] / "pyproject.toml").read_text())["project"]
    about = finished.read_environment()
    assert about["packages"]["pip-flower"] == project["version"] == version("pip-flower")
    assert about["revision"] == revision()


@pytest.mark.parametrize(
    ("method", "overrides", "said"),
    [
        ("pip-dualprompt", "", "sample"),
        ("pip-l2p", "method.prompt.selection=batch", "batch"),
        ("pip-dualprompt", "fidelity=released", "batch"),
        ("joint", "", ""),
        ("pip-drift", "", ""),
        ("ncm", "", ""),
    ],
)
def test_how_prompts_were_chosen_is_said_where_they_were(
    small_run: dict[str, Any], finished: RunDirectory, method: str, overrides: str, said: str
) -> None:
    run = small_run | {"method": method, "overrides": f"{small_run['overrides']} {overrides}"}
    config = load_config(Selection.from_run_config(run))
    finished.config.write_text(yaml.safe_dump(config.as_mapping()))
    result = RunResult.read(finished.path)
    assert result.selection == said
    assert ("prompts chosen by" in str(accuracy_table([result]).title)) is bool(said)
