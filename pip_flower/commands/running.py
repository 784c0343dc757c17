"""Runs with their progress on the terminal, in simulation or on a deployment."""

import json
import shlex
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from pip_flower.config.compose import Selection
from pip_flower.config.sections import Config
from pip_flower.deployment.connection import DeploymentRunner
from pip_flower.flower.launcher import FlowerRunner, LaunchError, Simulation, StoppedRunError
from pip_flower.flower.log import FlowerLog, say_all, say_nothing
from pip_flower.method.configuration import load_config
from pip_flower.reporting.live import LiveProgress
from pip_flower.reporting.results import RunResult
from pip_flower.reporting.run_directory import RunDirectory
from pip_flower.reporting.tables import (
    accuracy_table,
    failure_table,
    forgetting_table,
    summary_table,
    traffic_table,
)


class FailedRunError(LaunchError):
    """The run failed; `directory` is what it has left, if anything."""

    def __init__(self, cause: LaunchError, directory: RunDirectory | None, options: tuple[str, ...]) -> None:
        hint = resume_command(directory, options)
        kept = f"\nWhat was done is kept. To go on:  {hint}" if hint else ""
        log = f"\nAll that Flower said is in {directory.flower_log}" if directory else ""
        super().__init__(f"{cause}{log}{kept}", passing=cause.passing)
        self.cause = str(cause)
        self.directory = directory


class Runners:
    """The runner in use; a fresh one takes its place after a failure, of which nothing must be left."""

    def __init__(self, make: Callable[[], AbstractContextManager[FlowerRunner]]) -> None:
        self._make = make
        self._stack = ExitStack()
        self._current: FlowerRunner | None = None

    def __enter__(self) -> "Runners":
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    @property
    def current(self) -> FlowerRunner:
        """Started if need be."""
        if self._current is None:
            self._current = self._stack.enter_context(self._make())
        return self._current

    def drop(self) -> None:
        """End it, and all that it started."""
        self._current = None
        self._stack.close()


@dataclass(frozen=True)
class Terminal:
    """Where and how much is shown; with `debug`, all that Flower says."""

    console: Console
    debug: bool = False

    def say(self, text: str) -> None:
        """A line."""
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)


def run_to_end(
    runners: Runners, selection: Selection, out_dir: Path, terminal: Terminal, retries: int, resume: str = ""
) -> RunResult:
    """Run the app to its end, and go on by itself, `retries` times, where a failure says nothing about the
    app: a machine that was suspended, a process that was killed."""
    before: tuple[str, int] | None = None
    for attempt in range(retries + 1):
        try:
            return run_one(runners.current, selection, out_dir, terminal, resume)
        except FailedRunError as error:
            runners.drop()
            if error.passing and error.directory and error.directory.finished():
                # Whatever became of the SuperLink meanwhile.
                return RunResult.read(error.directory.path)
            standing = (error.cause, _rounds_done(error.directory))
            if not error.passing or attempt == retries or standing == before:
                raise
            before = standing
            resume = str(error.directory.path) if error.directory else resume
            terminal.say(f"{error.cause}\ngoing on by itself ({attempt + 1} of at most {retries} times)")
    raise AssertionError("unreachable")


def run_config_of(selection: Selection, out_dir: Path, resume: str = "") -> dict[str, str | int]:
    """What the app is told by Flower's run config."""
    return {
        "experiment": selection.experiment,
        "method": selection.method,
        "dataset": selection.dataset,
        "overrides": selection.overrides,
        "out-dir": str(out_dir),
        "data-dir": selection.data_dir,
        "seed": selection.seed,
        "resume": resume,
    }


def run_one(
    runner: FlowerRunner, selection: Selection, out_dir: Path, terminal: Terminal, resume: str = ""
) -> RunResult:
    """Run the app to its end; what it left behind."""
    config = load_config(selection)
    run_config = run_config_of(selection, out_dir, resume)
    simulation = None if isinstance(runner, DeploymentRunner) else _simulation(config)
    title = f"{config.method.label} (seed {config.seed})"
    tell = say_all if terminal.debug else say_nothing
    given = RunDirectory(Path(resume)) if resume else None
    if given:
        log = FlowerLog(given.flower_log, tell)
    else:
        log = FlowerLog.draft(out_dir, tell)
        runner.launch.remove_afterwards(log.path)
    with LiveProgress(terminal.console, title, out_dir, bar=not terminal.debug) as live:

        def watch(run_id: int) -> None:
            live.update(run_id)
            if live.directory:
                log.move(live.directory.flower_log)

        try:
            runner.run(run_config, simulation, watch, log=log)
        except KeyboardInterrupt:
            left = live.directory or given
            raise StoppedRunError(lambda: resume_command(left, runner.resume_options)) from None
        except LaunchError as error:
            raise FailedRunError(error, live.directory or given, runner.resume_options) from None
        finally:
            if live.directory is None and given is None:
                log.path.unlink(missing_ok=True)
    if live.directory is None:
        raise LaunchError(f"the run left no directory in {out_dir}")
    return RunResult.read(live.directory.path)


def resume_command(directory: RunDirectory | None, options: tuple[str, ...]) -> str:
    """What goes on with a run; empty if no round was finished."""
    if directory is None or not any(directory.checkpoints.glob("round-*.ckpt")):
        return ""
    return shlex.join(["pip-flower", "run", *options, "--resume", str(directory.path)])


def show_tables(results: list[RunResult], console: Console) -> None:
    """Accuracies, forgetting, their summary, traffic and, if there are any, failures."""
    console.print(accuracy_table(results))
    if any(len(run.matrix.rows) > 1 for run in results):
        console.print(forgetting_table(results))
    console.print(summary_table(results), traffic_table(results))
    if any(run.failures for run in results):
        console.print(failure_table(results))


def _rounds_done(directory: RunDirectory | None) -> int:
    if directory is None or not directory.progress.is_file():
        return 0
    return int(json.loads(directory.progress.read_text(encoding="utf-8"))["rounds_done"])


def _simulation(config: Config) -> Simulation:
    return Simulation(config.federation.clients, config.runtime.client_cpus, config.runtime.client_gpus)
