"""One run with its progress on the terminal, in simulation or on a deployment."""

import shlex
from pathlib import Path

from rich.console import Console

from pip_flower.config.compose import Selection
from pip_flower.config.sections import Config
from pip_flower.deployment.connection import DeploymentRunner
from pip_flower.flower.launcher import FlowerRunner, LaunchError, Simulation
from pip_flower.method.configuration import load_config
from pip_flower.reporting.live import LiveProgress
from pip_flower.reporting.results import RunResult
from pip_flower.reporting.tables import (
    accuracy_table,
    failure_table,
    forgetting_table,
    summary_table,
    traffic_table,
)


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
    runner: FlowerRunner, selection: Selection, out_dir: Path, console: Console, resume: str = ""
) -> RunResult:
    """Run the app to its end; what it left behind."""
    config = load_config(selection)
    run_config = run_config_of(selection, out_dir, resume)
    simulation = None if isinstance(runner, DeploymentRunner) else _simulation(config)
    title = f"{config.method.label} (seed {config.seed})"
    with LiveProgress(console, title, out_dir) as live:
        try:
            runner.run(run_config, simulation, live.update)
        except LaunchError as error:
            if live.directory is None or not any(live.directory.checkpoints.glob("*.ckpt")):
                raise
            where = f"--deployment {runner.bundle} " if isinstance(runner, DeploymentRunner) else ""
            hint = f"pip-flower run {where}--resume {shlex.quote(str(live.directory.path))}"
            raise LaunchError(f"{error}\nWhat was done is kept. To go on:  {hint}") from None
    if live.directory is None:
        raise LaunchError(f"the run left no directory in {out_dir}")
    return RunResult.read(live.directory.path)


def show_tables(results: list[RunResult], console: Console) -> None:
    """Accuracies, forgetting, their summary, traffic and, if there are any, failures."""
    console.print(accuracy_table(results))
    if any(len(run.matrix.rows) > 1 for run in results):
        console.print(forgetting_table(results))
    console.print(summary_table(results), traffic_table(results))
    if any(run.failures for run in results):
        console.print(failure_table(results))


def _simulation(config: Config) -> Simulation:
    return Simulation(config.federation.clients, config.runtime.client_cpus, config.runtime.client_gpus)
