"""The server's side of a run: configuration in, run directory out."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid

from pip_flower.checkpoint import CheckpointStore
from pip_flower.config import Config
from pip_flower.config_files import Selection, load_config
from pip_flower.methods.base import Method
from pip_flower.methods.registry import make_method, make_strategy, options_type
from pip_flower.reporting.checkpointer import Checkpointer
from pip_flower.reporting.progress import ProgressFile, ProgressLines
from pip_flower.reporting.run_directory import RunDirectory
from pip_flower.reporting.run_log import RunLog
from pip_flower.resume import go_back, reopen
from pip_flower.schema import ConfigError
from pip_flower.workbench import shared_workbench

_SELECTION = ("experiment", "method", "dataset", "overrides", "data-dir", "seed")
DEFAULT_OUT_DIR = Path("~/pip-flower-runs")


def serve(grid: Grid, context: Context) -> Path:
    """Play all rounds; returns the run's directory."""
    config = load_config(Selection.from_run_config(context.run_config), options_type)
    method = make_method(shared_workbench(config))
    strategy = make_strategy(method)
    directory = _directory(context, config, method)
    print(f"pip-flower: results go to {directory.path}", flush=True)
    run = str(directory.read_environment()["run"])
    store = CheckpointStore(directory.checkpoints, config.checkpoint)
    log = RunLog(directory, config)
    roster = strategy.meet(grid, run)
    done = 0
    if context.run_config.get("resume"):
        done = go_back(strategy, store, log, roster)
        print(f"pip-flower: going on after round {done} of {strategy.schedule.rounds}", flush=True)
    schedule = strategy.schedule
    strategy.observers = [
        log,
        Checkpointer(store, run, config, schedule, log),
        ProgressFile(directory, schedule, done),
        ProgressLines(schedule, done),
    ]
    strategy.play()
    print(f"pip-flower: results are in {directory.path}", flush=True)
    return directory.path


def _directory(context: Context, config: Config, method: Method) -> RunDirectory:
    """A new one, or the one of the run to resume."""
    asked = context.run_config
    if resume := str(asked.get("resume", "")):
        return reopen(resume, config, method, context.run_id)
    selection = {key: asked[key] for key in _SELECTION if key in asked}
    return RunDirectory.create(
        _out_dir(str(asked.get("out-dir", ""))), config, context.run_id, method, selection
    )


def _out_dir(given: str) -> Path:
    path = Path(given).expanduser() if given else DEFAULT_OUT_DIR.expanduser()
    if not path.is_absolute():
        raise ConfigError(
            "out-dir",
            f"{given!r} is a relative path, and Flower runs the app in another directory",
            "Give an absolute path",
        )
    return path
