"""Whole runs in child processes that can be killed at any moment, as servers and machines are."""

import json
import os
import signal
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from flwr.app import Context, RecordDict

from pip_flower.reporting.run_directory import RunDirectory
from pip_flower.rounds import federation
from pip_flower.rounds.watched_grid import WatchedGrid
from pip_flower.server.serving import serve
from support.local_grid import LocalGrid

RunConfig = dict[str, Any]


def serve_here(run_config: RunConfig, grid: LocalGrid | None = None, run_id: int = 1) -> Path:
    """The real server on an in-process grid that is not waited for."""
    context = Context(run_id, 1, {}, RecordDict(), run_config)
    quick = partial(WatchedGrid, poll_seconds=0.001)
    with mock.patch.object(federation, "WatchedGrid", quick):
        return serve(grid or LocalGrid(4, run_config, id_seed=run_id), context)


class StoppingGrid(LocalGrid):
    """Goes away for good when the round comes."""

    def __init__(self, run_config: RunConfig, round_: int) -> None:
        super().__init__(4, run_config)
        self.round = str(round_)

    def push_messages(self, messages: Any) -> list[str]:
        waiting = list(messages)
        if any(message.metadata.group_id == self.round for message in waiting):
            raise KeyboardInterrupt
        return super().push_messages(waiting)


def interrupted(run_config: RunConfig, round_: int) -> Path:
    """The directory of a run that ended before the round."""
    with pytest.raises(KeyboardInterrupt):
        serve_here(run_config, StoppingGrid(run_config, round_))
    (path,) = Path(run_config["out-dir"]).iterdir()
    return path


def start(run_config: RunConfig, log: Path) -> int:
    """A child process that serves; its process id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        with log.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        serve_here(run_config, run_id=os.getpid())
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def finished_within(child: int, seconds: float, log: Path) -> bool:
    """Whether the child ends by itself in that time; otherwise it is killed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0, log.read_text()
            return True
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def cut_newest(directories: list[Path], since: float, keep: float) -> Path | None:
    """Lose the end of the file that was written last, after `since`, as a power cut may."""
    files = [path for directory in directories for path in directory.rglob("*") if path.is_file()]
    recent = [path for path in files if path.stat().st_mtime > since]
    if not recent:
        return None
    newest = max(recent, key=lambda path: path.stat().st_mtime_ns)
    os.truncate(newest, int(newest.stat().st_size * keep))
    return newest


def outcome(path: Path) -> dict[str, Any]:
    """All that a finished run must have in common with one that was never stopped."""
    directory = RunDirectory(path)
    return {
        "model": directory.model.read_bytes(),
        "accuracy": directory.matrix.read_bytes(),
        "metrics": [json.dumps(_timeless(line)) for line in directory.lines()],
        "half lines": not directory.metrics.read_bytes().endswith(b"\n"),
        "litter": [file.name for file in path.rglob(".*")],
    }


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(inner) for name, inner in value.items() if "seconds" not in name}
    return value
