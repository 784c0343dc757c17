"""The server's side of a run: configuration in, run directory out."""

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid

from pip_flower.config.compose import Selection
from pip_flower.config.paths import absolute_path
from pip_flower.config.sections import Config
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
from pip_flower.storage.places import require_writable

_SELECTION = ("experiment", "method", "dataset", "overrides", "data-dir", "seed")
DEFAULT_OUT_DIR = Path("~/pip-flower-runs")


def serve(grid: Grid, context: Context) -> Path:
    """Play all rounds, or those that an interrupted run has left; returns the run's directory."""
    asked = context.run_config
    config = load_config(Selection.from_run_config(asked))
    selection = {key: asked[key] for key in _SELECTION if key in asked}
    if resume := str(asked.get("resume", "")):
        return _go_on(grid, context.run_id, run_directory(resume), config, selection)
    out_dir = _out_dir(str(asked.get("out-dir", "")))
    require_writable("out-dir", out_dir)
    strategy = TaskStrategy(make_method(shared_workspace(config)))
    run = uuid.uuid4().hex
    strategy.meet(grid, run)
    # Only now that all is there: a start that fails leaves nothing behind.
    method, data = strategy.method, strategy.data_digest()
    directory = RunDirectory.create(out_dir, config, context.run_id, method, selection, run, data)
    with directory.locked(context.run_id):
        store = CheckpointStore(directory.checkpoints, config.checkpoint)
        _play(directory, strategy, store, RunLog(directory, config), 0)
    return directory.path


def _go_on(
    grid: Grid, flower_run: int, directory: RunDirectory, config: Config, selection: Mapping[str, Any]
) -> Path:
    strategy = TaskStrategy(make_method(shared_workspace(config)))
    with directory.locked(flower_run):
        reopen(directory, config, flower_run, strategy.method, selection)
        store = CheckpointStore(directory.checkpoints, config.checkpoint)
        log = RunLog(directory, config)
        roster = strategy.meet(grid, str(directory.read_environment()["run"]))
        done = go_back(strategy, store, log, roster)
        print(f"pip-flower: going on after round {done} of {strategy.schedule.rounds}", flush=True)
        _play(directory, strategy, store, log, done)
    return directory.path


def _play(
    directory: RunDirectory, strategy: TaskStrategy, store: CheckpointStore, log: RunLog, done: int
) -> None:
    print(f"pip-flower: results go to {directory.path}", flush=True)
    config, schedule = strategy.config, strategy.schedule
    run = str(directory.read_environment()["run"])
    strategy.observer = Observers(
        [
            log,
            Checkpointer(store, run, config, schedule, log),
            ProgressFile(directory, schedule, done),
            ProgressLines(schedule, done),
        ]
    )
    strategy.play()
    print(f"pip-flower: results are in {directory.path}", flush=True)


def _out_dir(given: str) -> Path:
    return absolute_path("out-dir", given) if given else DEFAULT_OUT_DIR.expanduser()
