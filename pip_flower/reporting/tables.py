"""Result tables for the terminal; narrow enough for 80 columns."""

from collections import Counter
from collections.abc import Iterable
from statistics import mean, stdev

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from pip_flower.reporting.published import published_line
from pip_flower.reporting.results import RunResult, by_method

_MOST_REASONS = 10


def accuracy_table(results: list[RunResult]) -> Table:
    """One row per method: accuracy over all classes seen, after each task."""
    tasks = max(len(run.matrix.rows) for run in results)
    seeds = ", ".join(str(seed) for seed in sorted({run.seed for run in results}))
    title = f"{results[0].experiment}: accuracy (%) after each task, seed {seeds}"
    if ways := sorted({run.selection for run in results} - {""}):
        title += f"; prompts chosen by {' or '.join(ways)}"
    table = _table(title, [f"T{task}" for task in range(1, tasks + 1)])
    for method, runs in by_method(results).items():
        after = zip(*(run.matrix.after_task() for run in runs), strict=True)
        table.add_row(method, *(_figure(values) for values in after))
        if owned := [run.own.after_task() for run in runs if run.own]:
            table.add_row("  own classes", *(_figure(values) for values in zip(*owned, strict=True)))
    return table


def forgetting_table(results: list[RunResult]) -> Table:
    """Two rows per method: the mean over earlier tasks after each task, and each task's at the end."""
    tasks = max(len(run.matrix.rows) for run in results)
    title = "forgetting (%): after each task (mean over earlier ones); of each task at the end"
    table = _table(title, [f"T{task}" for task in range(1, tasks + 1)])
    for method, runs in by_method(results).items():
        if len(runs[0].matrix.rows) == 1:
            continue
        after = zip(*(run.matrix.forgetting() for run in runs), strict=True)
        at_end = zip(*(run.matrix.forgetting_by_task()[-1] for run in runs), strict=True)
        table.add_row(method, "", *(_figure(values) for values in after))
        table.add_row("  at the end", *(_figure(values) for values in at_end))
    return table


def summary_table(results: list[RunResult]) -> Table:
    """One row per method: summary metrics, what clients keep of their data, if any do, and time."""
    keep = any(run.kept_share is not None for run in results)
    columns = ["Avg", "last", "PD", "forget", *(["kept"] if keep else []), "s"]
    table = _table("summary (%); seconds", columns)
    table.caption, table.caption_justify = published_line({run.method for run in results}), "left"
    for method, runs in by_method(results).items():
        table.add_row(
            method,
            _figure(run.matrix.average() for run in runs),
            _figure(run.matrix.last() for run in runs),
            _figure(run.matrix.performance_drop() for run in runs),
            _figure(mean(run.matrix.forgetting() or [0.0]) for run in runs),
            *([_figure(100 * (run.kept_share or 0.0) for run in runs)] if keep else []),
            f"{mean(run.seconds for run in runs):.0f}",
        )
    return table


def traffic_table(results: list[RunResult]) -> Table:
    """One row per method: messages of training and of the end of tasks, means over seeds."""
    ways = ("up", "down")
    columns = [f"{what}\n{way}" for what in ("message", "task") for way in ways]
    columns += [f"run\n{way}" for way in (*ways, "both")]
    table = _table("traffic: KB per message, KB per client and task, MB per run", columns)
    for method, runs in by_method(results).items():
        found = [run.traffic for run in runs]
        kilobytes = [
            mean(traffic.up.per_message for traffic in found),
            mean(traffic.down.per_message for traffic in found),
            mean(traffic.per_client_task(traffic.up) for traffic in found),
            mean(traffic.per_client_task(traffic.down) for traffic in found),
        ]
        up = mean(traffic.up.bytes for traffic in found)
        down = mean(traffic.down.bytes for traffic in found)
        cells = [f"{value / 1000:,.1f}" for value in kilobytes]
        table.add_row(method, *cells, *(f"{value / 1e6:,.1f}" for value in (up, down, up + down)))
    return table


def failure_table(results: list[RunResult]) -> Table:
    """How many replies of clients were not used, by method and reason, the most frequent first."""
    table = Table(title="replies not used", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column("method", no_wrap=True)
    table.add_column("replies", justify="right")
    table.add_column("reason", overflow="fold")
    for method, runs in by_method(results).items():
        reasons = sum((run.failures for run in runs), Counter[str]())
        for reason, count in reasons.most_common(_MOST_REASONS):
            table.add_row(method, str(count), escape(reason))
    return table


def _table(title: str, columns: list[str]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("method", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _figure(values: Iterable[float]) -> str:
    """The value of one seed; mean and standard deviation of several."""
    listed = list(values)
    if len(listed) == 1:
        return f"{listed[0]:.1f}"
    return f"{mean(listed):.1f}±{stdev(listed):.1f}"
