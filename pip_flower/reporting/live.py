"""A run's progress on the terminal: a bar where there is one to draw on, lines elsewhere."""

import contextlib
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from pip_flower.config.schema import ConfigError
from pip_flower.reporting.progress import describe
from pip_flower.reporting.run_directory import RunDirectory


class LiveProgress:
    """Follows the run directory that belongs to a Flower run id."""

    def __init__(self, console: Console, title: str, out_dir: Path, *, bar: bool = True) -> None:
        self.console = console
        self.title = title
        self.out_dir = out_dir
        self.directory: RunDirectory | None = None
        self._last: dict[str, Any] = {}
        self._printed = 0
        self._bar = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=12),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
        )
        self._task: TaskID | None = None
        self._draws = bar and console.is_terminal

    def __enter__(self) -> "LiveProgress":
        if self._draws:
            # The title on a line of its own leaves room for the rest in 80 columns.
            self.console.print(self.title, highlight=False)
            self._bar.start()
            self._task = self._bar.add_task("starting Flower", total=None)
        else:
            self.console.print(f"{self.title}: starting Flower", highlight=False)
        return self

    def __exit__(self, *_: object) -> None:
        if self._task is not None:
            # The terminal may have been closed.
            with contextlib.suppress(OSError):
                self._bar.stop()

    def update(self, run_id: int) -> None:
        """Read progress.json, if it is there, and show it."""
        self.directory = self.directory or find_run(self.out_dir, run_id)
        if self.directory is None or not self.directory.progress.is_file():
            return
        progress = json.loads(self.directory.progress.read_text(encoding="utf-8"))
        if progress == self._last or not progress["round"]:
            return
        if self._task is not None:
            # A client counts for its share of the round, so that long rounds move too.
            done = progress["rounds_done"]
            if progress["round"] > done and progress["clients"]:
                done += progress["clients_done"] / progress["clients"]
            self._bar.update(
                self._task,
                description=describe(progress),
                total=progress["rounds"],
                completed=done,
            )
        elif progress["rounds_done"] > self._printed:
            self._printed = progress["rounds_done"]
            line = f"{self.title}: {describe(_as_of_last_round(progress))}"
            self.console.print(line, soft_wrap=True, highlight=False)
        self._last = progress


def _as_of_last_round(progress: dict[str, Any]) -> dict[str, Any]:
    """The position at the end of the last finished round, whatever has started since."""
    done, task = progress["rounds_done"], progress["task_done"]
    return progress | {"round": done, "task": task, "clients_done": progress["clients"]}


def find_run(out_dir: Path, run_id: int) -> RunDirectory | None:
    """The directory that the Flower run `run_id` made below `out_dir`, whatever else may be there."""
    for path in sorted(out_dir.glob("[!.]*/environment.json"), reverse=True):
        directory = RunDirectory(path.parent)
        with contextlib.suppress(ConfigError):
            if directory.read_environment()["flower_run_id"] == run_id:
                return directory
    return None
