"""`pip-flower report`: tables and pictures of finished runs."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from pip_flower.commands.running import show_tables
from pip_flower.config.schema import ConfigError
from pip_flower.reporting.comparison import compare_runs
from pip_flower.reporting.plots import plot_accuracy
from pip_flower.reporting.results import RunResult, UnusableRunError
from pip_flower.storage.files import write_json
from pip_flower.storage.places import require_writable


def report(options: argparse.Namespace, console: Console) -> int:
    """Read the runs, as far as they are finished, and report on them."""
    output = Path(options.output).expanduser().resolve()
    require_writable("--output", output)
    results = list(_finished(options.runs))
    if not results:
        raise ConfigError("RUN_DIR", "there is no finished run among them", "Give the directories of runs")
    report_on(results, output, console)
    return 0


def _finished(paths: list[str]) -> Iterator[RunResult]:
    for path in paths:
        try:
            yield RunResult.read(Path(path))
        except UnusableRunError as error:
            print(f"pip-flower: skipped: {error.problem}. {error.remedy}", file=sys.stderr)


def report_on(results: list[RunResult], output: Path, console: Console) -> None:
    """A table and a picture of the runs that belong together, and their metrics in one file."""
    output.mkdir(parents=True, exist_ok=True)
    comparison = compare_runs(results)
    pictures = []
    for number, runs in enumerate(comparison.tables, start=1):
        if len(comparison.tables) > 1:
            console.print(f"table {number}", highlight=False)
        show_tables(runs, console)
        pictures.append(output / (f"accuracy-{number}.png" if number > 1 else "accuracy.png"))
        plot_accuracy(runs, pictures[-1])
    write_json(
        output / "results.json",
        [
            {
                "run": run.path.name,
                "table": number,
                "row": run.row,
                "method": run.method,
                "seed": run.seed,
                **run.matrix.summary(),
                **({"own_classes": run.own.summary()} if run.own else {}),
                "traffic": run.traffic.as_mapping(),
                **({"kept_share": run.kept_share} if run.kept_share is not None else {}),
                "failures": dict(run.failures),
            }
            for number, runs in enumerate(comparison.tables, start=1)
            for run in runs
        ],
    )
    for notice in comparison.notices:
        console.print(f"note: {notice}", highlight=False, soft_wrap=True, markup=False)
    console.print(f"metrics: {output / 'results.json'}", highlight=False, soft_wrap=True)
    for picture in pictures:
        console.print(f"picture: {picture}", highlight=False, soft_wrap=True)
