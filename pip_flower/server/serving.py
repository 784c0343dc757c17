"""The server's side of a run: configuration in, run directory out."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid

from pip_flower.config.compose import Selection
from pip_flower.config.paths import absolute_path
from pip_flower.method.configuration import load_config
from pip_flower.method.registry import make_method
from pip_flower.method.workspace import shared_workspace
from pip_flower.reporting.progress import ProgressFile, ProgressLines
from pip_flower.reporting.run_directory import RunDirectory
from pip_flower.reporting.run_log import RunLog
from pip_flower.rounds.observer import Observers
from pip_flower.rounds.strategy import TaskStrategy
from pip_flower.server.checkpointer import Checkpointer
from pip_flower.server.resume import go_back, reopen, run_directory
from pip_flower.storage.checkpoints import CheckpointStore

_SELECTION = ("experiment", "method", "dataset", "overrides", "data-dir", "seed")
DEFAULT_OUT_DIR = Path("~/pip-flower-runs")


def serve(grid: Grid, context: Context) -> Path:
    """Play all rounds, or those that an interrupted run has left; returns the run's directory."""
    asked = context.run_config
    config = load_config(Selection.from_run_config(asked))
    method = make_method(shared_workspace(config))
    selection = {key: asked[key] for key in _SELECTION if key in asked}
    resume = str(asked.get("resume", ""))
    if resume:
        directory = run_directory(resume)
    else:
        out_dir = _out_dir(str(asked.get("out-dir", "")))
        directory = RunDirectory.create(out_dir, config, context.run_id, method, selection)
    with directory.locked():
        if resume:
            reopen(directory, config, context.run_id, method, selection)
        print(f"pip-flower: results go to {directory.path}", flush=True)
        _play(grid, directory, TaskStrategy(method), resume=bool(resume))
        print(f"pip-flower: results are in {directory.path}", flush=True)
    return directory.path


def _play(grid: Grid, directory: RunDirectory, strategy: TaskStrategy, *, resume: bool) -> None:
    config = strategy.config
    run = str(directory.read_environment()["run"])
    store = CheckpointStore(directory.checkpoints, config.checkpoint)
    log = RunLog(directory, config)
    roster = strategy.meet(grid, run)
    done = go_back(strategy, store, log, roster) if resume else 0
    schedule = strategy.schedule
    if resume:
        print(f"pip-flower: going on after round {done} of {schedule.rounds}", flush=True)
    strategy.observer = Observers(
        [
            log,
            Checkpointer(store, run, config, schedule, log),
            ProgressFile(directory, schedule, done),
            ProgressLines(schedule, done),
        ]
    )
    strategy.play()


def _out_dir(given: str) -> Path:
    return absolute_path("out-dir", given) if given else DEFAULT_OUT_DIR.expanduser()
