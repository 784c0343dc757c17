"""`pip-flower` stopped by real signals: nothing of it is left, and what was done is not lost."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pip_flower.cli import main
from support.trials import Trial

RunConfig = dict[str, Any]


def asked_for(run_config: RunConfig, out: Path, overrides: str) -> list[str]:
    """Options of `pip-flower run` and `suite`."""
    listed = f"{run_config['overrides']} training.epochs=1 federation.wait_seconds=600 {overrides}"
    return ["--data-dir", run_config["data-dir"], "--overrides", listed, "--out-dir", str(out)]


def checkpoints(out: Path) -> list[Path]:
    return sorted(out.glob("*/checkpoints/round-*.ckpt"))


def kill(trial: Trial, program: str) -> None:
    """As if the system had run out of memory."""
    (victim,) = (process for process, command in trial.processes().items() if program in command)
    os.kill(victim, signal.SIGKILL)


@pytest.mark.parametrize(
    ("signals", "moment"),
    [
        ([signal.SIGINT, signal.SIGINT], "mid-round"),
        ([signal.SIGTERM], "gcs_server"),
        ([signal.SIGHUP], "flower-superlink"),
        ([signal.SIGKILL], "mid-round"),
    ],
    ids=["SIGINT-twice", "SIGTERM", "SIGHUP", "SIGKILL"],
)
def test_nothing_is_left_of_a_run_that_is_stopped(
    signals: list[signal.Signals],
    moment: str,
    small_run: RunConfig,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "runs"
    trial = Trial(["run", *asked_for(small_run, out, "schedule.rounds=300")], tmp_path / "said")
    playing = moment == "mid-round"
    happened: Callable[[], bool] = lambda: (  # noqa: E731
        bool(checkpoints(out)) if playing else trial.runs(moment)
    )
    trial.wait_for(happened)
    run = checkpoints(out)[0].parents[1] if playing else None
    if run:
        check_that_it_cannot_be_resumed(run, trial, capsys)
    for number in signals:
        trial.process.send_signal(number)
    status = trial.process.wait(timeout=300)
    if signals != [signal.SIGKILL]:
        # It did not say so before it was true.
        assert trial.processes() == {}
        assert status == 130
        assert "interrupted; everything that was started has ended" in trial.said
        assert (f"To go on:  pip-flower run --resume {run}" in trial.said) == (run is not None)
    assert trial.ended() == {}
    if run:
        assert "Successfully started run" in (run / "flower.log").read_text()
    assert list(out.glob(".*")) == [] if out.exists() else True


def check_that_it_cannot_be_resumed(run: Path, trial: Trial, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--resume", str(run)]) == 2
    told = capsys.readouterr().err
    holder = json.loads((run / "running.json").read_text())
    assert "flwr-simulation" in trial.processes()[holder["process"]]
    assert f"process {holder['process']} on " in told
    assert f"started by process {trial.process.pid}: " in told
    assert f"with: kill {trial.process.pid}" in told


def test_a_run_goes_on_by_itself_and_a_suite_without_the_one_that_failed(
    small_run: RunConfig, tmp_path: Path
) -> None:
    out = tmp_path / "runs"
    suite = ["suite", "--methods", "ncm", "--seeds", "1,2", *asked_for(small_run, out, "schedule.rounds=60")]
    trial = Trial([*suite, "--retries", "0"], tmp_path / "first")
    trial.wait_for(lambda: bool(checkpoints(out)))
    kill(trial, "flwr-simulation")
    kill(trial, "flower-superlink")
    assert trial.process.wait(timeout=900) == 1, trial.said
    assert "1 of 2 runs failed:" in trial.said
    assert "  ncm (seed 1): the SuperLink cannot be reached any more" in trial.said
    assert "pip-flower suite --methods ncm --seeds 1,2 " in trial.said.splitlines()[-1]
    (failed,) = (path for path in out.glob("*-ncm-1-*") if not (path / "model.safetensors").exists())
    (done,) = out.glob("*-ncm-2-*/model.safetensors")
    written = done.stat().st_mtime_ns

    again = Trial([*suite, "--resume"], tmp_path / "second")
    again.wait_for(lambda: (failed / "resumed.jsonl").exists())
    kill(again, "flwr-simulation")
    kill(again, "flower-superlink")
    assert again.process.wait(timeout=900) == 0, again.said
    assert "going on by itself (1 of at most 2 times)" in again.said
    assert f"ncm (seed 2): done before, in {done.parent}" in again.said
    assert len((failed / "resumed.jsonl").read_text().splitlines()) == 2
    assert (failed / "model.safetensors").exists()
    assert done.stat().st_mtime_ns == written
    assert again.ended() == {}
