"""The server's side of a run: configuration in, run directory out."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid

from pip_flower.config_files import Selection, load_config
from pip_flower.methods.registry import make_method, make_strategy, options_type
from pip_flower.reporting.progress import ProgressFile, ProgressLines
from pip_flower.reporting.run_directory import RunDirectory
from pip_flower.reporting.run_log import RunLog
from pip_flower.schema import ConfigError
from pip_flower.workbench import shared_workbench

DEFAULT_OUT_DIR = Path("~/pip-flower-runs")


def serve(grid: Grid, context: Context) -> Path:
    """Play all rounds; returns the run's directory."""
    config = load_config(Selection.from_run_config(context.run_config), options_type)
    if context.run_config.get("resume"):
        raise ConfigError("resume", "runs cannot be resumed yet", "Leave it empty")
    method = make_method(shared_workbench(config))
    strategy = make_strategy(method)
    out_dir = _out_dir(str(context.run_config.get("out-dir", "")))
    directory = RunDirectory.create(out_dir, config, context.run_id, method)
    print(f"pip-flower: results go to {directory.path}", flush=True)
    schedule = strategy.schedule
    strategy.observers = [
        RunLog(directory, config),
        ProgressFile(directory, schedule),
        ProgressLines(schedule),
    ]
    strategy.run(grid)
    print(f"pip-flower: results are in {directory.path}", flush=True)
    return directory.path


def _out_dir(given: str) -> Path:
    path = Path(given).expanduser() if given else DEFAULT_OUT_DIR.expanduser()
    if not path.is_absolute():
        raise ConfigError(
            "out-dir",
            f"{given!r} is a relative path, and Flower runs the app in another directory",
            "Give an absolute path",
        )
    return path
