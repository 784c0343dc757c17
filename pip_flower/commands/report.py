"""`pip-flower report`: a table and a picture of finished runs."""

import argparse
from pathlib import Path

from rich.console import Console

from pip_flower.commands.running import show_tables
from pip_flower.reporting.plots import plot_accuracy
from pip_flower.reporting.results import RunResult
from pip_flower.storage.files import write_json


def report(options: argparse.Namespace, console: Console) -> int:
    """Read the runs and report on them."""
    results = [RunResult.read(Path(run)) for run in options.runs]
    report_on(results, Path(options.output), console)
    return 0


def report_on(results: list[RunResult], output: Path, console: Console) -> None:
    output.mkdir(parents=True, exist_ok=True)
    picture = output / "accuracy.png"
    plot_accuracy(results, picture)
    write_json(
        output / "results.json",
        [
            {
                "run": run.path.name,
                "method": run.method,
                "seed": run.seed,
                **run.matrix.summary(),
                "failures": dict(run.failures),
            }
            for run in results
        ],
    )
    show_tables(results, console)
    console.print(f"metrics: {output / 'results.json'}", highlight=False)
    console.print(f"picture: {picture}", highlight=False)
