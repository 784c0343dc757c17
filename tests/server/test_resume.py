"""What may change between a run and its resumption, and what happens when something is lost."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pip_flower.cli import main
from pip_flower.client.state import ClientStates, LostStateError
from pip_flower.config.compose import Selection
from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import CheckpointConfig
from pip_flower.reporting.run_directory import RunDirectory
from pip_flower.rounds.roster import FederationError
from pip_flower.server.resume import compare, resumed
from pip_flower.storage.checkpoints import Checkpoint, CheckpointStore, RunState
from pip_flower.storage.checksummed import TornFileError, read_checksummed, write_checksummed
from pip_flower.storage.twin_lines import LinesPosition
from support.killing import interrupted, outcome, serve_here

RunConfig = dict[str, Any]
RUN = "0123456789abcdef" * 2


def changed(run_config: RunConfig, overrides: str) -> RunConfig:
    return run_config | {"overrides": f"{run_config['overrides']} {overrides}"}


@pytest.fixture
def run_config(small_run: RunConfig, tmp_path: Path) -> RunConfig:
    """Quick, and no two tests share clients' states."""
    quick = changed(small_run, f"training.epochs=1 runtime.state_dir={tmp_path / 'states'}")
    return quick | {"method": "ncm", "out-dir": str(tmp_path / "out")}


def test_a_changed_configuration_is_refused_with_what_changed(run_config: RunConfig) -> None:
    path = interrupted(run_config, 3)
    other = changed(run_config, "training.learning_rate=0.5 federation.clients_per_round=3") | {
        "resume": str(path)
    }
    with pytest.raises(ConfigError) as error:
        serve_here(other)
    assert "federation.clients_per_round: 2 -> 3; training.learning_rate: 0.02 -> 0.5" in str(error.value)
    with pytest.raises(ConfigError, match="seed: 7 -> 8"):
        serve_here(run_config | {"resume": str(path), "seed": 8})


def test_harmless_changes_are_accepted(run_config: RunConfig, capsys: pytest.CaptureFixture[str]) -> None:
    expected = outcome(serve_here(run_config | {"out-dir": f"{run_config['out-dir']}-whole"}))
    path = interrupted(run_config, 3)
    harmless = "checkpoint.keep=all federation.round_retries=7 federation.wait_seconds=1"
    serve_here(changed(run_config, harmless) | {"resume": str(path)})
    assert {key: value for key, value in outcome(path).items() if key != "model"} == {
        key: value for key, value in expected.items() if key != "model"
    }
    assert "warning" not in capsys.readouterr().out


def test_what_may_change_the_last_digits_is_warned_about() -> None:
    before = {"runtime": {"threads": 1, "cache_dir": ""}, "schedule": {"rounds": 10}}
    now = {"runtime": {"threads": 2, "cache_dir": "/x"}, "schedule": {"rounds": 20}}
    assert compare(before, now) == ["runtime.threads has changed (1 -> 2): the last digits may differ"]
    with pytest.raises(ConfigError, match="schedule.rounds: 20 -> 10"):
        compare(now, before)


def test_more_rounds_go_to_the_tasks_that_are_not_over(run_config: RunConfig) -> None:
    path = interrupted(run_config, 4)
    longer = changed(run_config, "schedule.rounds=12") | {"resume": str(path)}
    serve_here(longer)
    rounds = [line for line in RunDirectory(path).lines() if line["kind"] == "round"]
    assert [line["task"] for line in rounds] == [0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    with pytest.raises(ConfigError, match="all 10 rounds are played"):
        serve_here(changed(run_config, "schedule.rounds=24") | {"resume": str(path)})


def test_a_run_that_is_still_going_on_cannot_be_resumed(run_config: RunConfig) -> None:
    path = interrupted(run_config, 3)
    with (
        RunDirectory(path).locked(1),
        pytest.raises(ConfigError, match=f"still going on .*kill {os.getpid()}$"),
    ):
        serve_here(run_config | {"resume": str(path)})


@pytest.mark.parametrize(
    ("given", "problem"), [("runs/x", "is a relative path"), ("/nowhere", "is not a run")]
)
def test_what_is_no_run_directory_is_refused(run_config: RunConfig, given: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        serve_here(run_config | {"resume": given})


def test_a_client_without_its_state_takes_everybody_one_checkpoint_back(
    run_config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = changed(run_config | {"method": "ablation-d"}, "federation.clients_per_round=4")
    expected = outcome(serve_here(private | {"out-dir": str(tmp_path / "whole")}))
    path = interrupted(private, 4)
    run = RunDirectory(path).read_environment()["run"]
    states = sorted((tmp_path / "states" / run / "client-2").iterdir())
    assert [state.name for state in states] == [
        "round-000001.state",
        "round-000002.state",
        "round-000003.state",
    ]
    os.truncate(states[-1], 100)
    serve_here(private | {"resume": str(path)})
    told = capsys.readouterr().out
    assert "checkpoint of round 3: clients [2] have lost their own state" in told
    assert "going on after round 2" in told
    assert outcome(path) == expected


def test_states_that_are_gone_for_good_are_an_error_that_names_the_clients(
    run_config: RunConfig, tmp_path: Path
) -> None:
    private = changed(run_config | {"method": "ablation-d"}, "federation.clients_per_round=4")
    path = interrupted(private, 4)
    for state in (tmp_path / "states").glob("*/client-3/*"):
        state.unlink()
    with pytest.raises(FederationError, match=r"no checkpoint .* clients \[3\] have lost their own state"):
        serve_here(private | {"resume": str(path)})


def test_a_client_goes_on_from_the_round_that_the_server_names(tmp_path: Path) -> None:
    states = ClientStates(tmp_path, RUN, 3)
    assert states.load(0) == {}
    for round_, since in ((2, 0), (5, 2), (6, 5), (9, 6)):
        states.save(round_, since, {"head": np.full(2, round_), "step": np.array(1.5)})
    assert states.intact() == [5, 6, 9]
    # The server died before it merged round 9, and is back at round 6.
    assert states.load(6)["head"].tolist() == [6, 6]
    assert states.load(6)["step"].shape == ()
    states.save(8, 6, {"head": np.zeros(2)})
    assert states.intact() == [5, 6, 8]
    with pytest.raises(LostStateError, match="state after round 9 is lost"):
        states.load(9)
    assert (tmp_path / RUN / "client-3").stat().st_mode & 0o077 == 0
    with pytest.raises(ValueError, match="does not identify a run"):
        ClientStates(tmp_path, "../../x", 3)


def test_a_sealed_file_notices_every_change(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    arrays = {"x": np.arange(6, dtype=np.float32), "none": np.zeros((0, 4)), "step": np.array(3.0)}
    write_checksummed(path, arrays, {"round": 3})
    back = read_checksummed(path)
    assert back.facts == {"round": 3}
    assert all(np.array_equal(back.arrays[name], value) for name, value in arrays.items())
    assert back.arrays["step"].shape == ()
    data = path.read_bytes()
    for position in range(0, len(data), 7):
        path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        with pytest.raises(TornFileError):
            read_checksummed(path)
        path.write_bytes(data[:position])
        with pytest.raises(TornFileError):
            read_checksummed(path)


@pytest.mark.parametrize(
    ("keep", "rounds"), [("last", [7, 8]), ("all", list(range(1, 9))), ("every", [3, 6, 7, 8])]
)
def test_checkpoints_that_are_kept(tmp_path: Path, keep: Any, rounds: list[int]) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", CheckpointConfig(keep, 3))
    for round_ in range(1, 9):
        state = RunState(round_, {"x": np.ones(2)}, {0: 1}, {0: round_})
        store.save(Checkpoint(RUN, {"seed": 1}, (8,), state, LinesPosition(round_, "0" * 64)))
    assert store.rounds() == rounds
    newest = next(iter(store.intact()))
    assert (newest.state.round, newest.state.last_rounds, newest.metrics.bytes) == (8, {0: 8}, 8)


def test_a_half_line_is_neither_read_nor_kept(run_config: RunConfig) -> None:
    expected = outcome(serve_here(run_config | {"out-dir": f"{run_config['out-dir']}-whole"}))
    path = interrupted(run_config, 5)
    directory = RunDirectory(path)
    with directory.metrics.open("a") as file:
        file.write('{"kind": "round", "round": 5, "cli')
    assert [line["round"] for line in directory.lines() if line["kind"] == "round"] == [1, 2, 3, 4]
    serve_here(run_config | {"resume": str(path)})
    assert outcome(path) == expected


def test_metrics_that_a_power_cut_took_are_mended(run_config: RunConfig) -> None:
    expected = outcome(serve_here(run_config | {"out-dir": f"{run_config['out-dir']}-whole"}))
    path = interrupted(run_config, 6)
    metrics = RunDirectory(path).metrics
    os.truncate(metrics, 10)
    serve_here(run_config | {"resume": str(path)})
    assert outcome(path) == expected


def test_the_command_line_asks_for_what_was_asked_for(
    run_config: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    path = interrupted(run_config, 3)
    again = resumed(path, Selection(overrides="schedule.rounds=12"))
    assert (again.method, again.seed, again.data_dir) == ("ncm", 7, run_config["data-dir"])
    assert again.overrides.endswith("schedule.rounds=12")
    assert again.overrides.startswith(run_config["overrides"])
    assert main(["run", "--resume", "/nowhere"]) == 2
    assert "'/nowhere' is not a run directory" in capsys.readouterr().err
