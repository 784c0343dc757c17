"""Result tables for the terminal."""

from statistics import mean, stdev

from rich.table import Table

from pip_flower.reporting.results import RunResult, by_method


def result_table(results: list[RunResult]) -> Table:
    """One row per method: accuracy after each task, summary figures, traffic and time."""
    tasks = max(len(run.matrix.rows) for run in results)
    seeds = sorted({run.seed for run in results})
    title = f"{results[0].experiment}: accuracy in %, seed {', '.join(map(str, seeds))}"
    table = Table(title=title, title_justify="left", pad_edge=False)
    table.add_column("method", no_wrap=True)
    for column in (
        *(f"T{task}" for task in range(1, tasks + 1)),
        *("Avg", "last", "PD", "forget", "KB up", "KB down", "s"),
    ):
        table.add_column(column, justify="right", no_wrap=True)
    for method, runs in by_method(results).items():
        after = zip(*(run.matrix.after_task() for run in runs), strict=True)
        table.add_row(
            method,
            *(_figure(list(values)) for values in after),
            _figure([run.matrix.average() for run in runs]),
            _figure([run.matrix.last() for run in runs]),
            _figure([run.matrix.performance_drop() for run in runs]),
            _figure([mean(run.matrix.forgetting() or [0.0]) for run in runs]),
            f"{mean(run.bytes_up for run in runs) / 1000:.1f}",
            f"{mean(run.bytes_down for run in runs) / 1000:.1f}",
            f"{mean(run.seconds for run in runs):.0f}",
        )
    return table


def _figure(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{mean(values):.1f}±{stdev(values):.1f}"
