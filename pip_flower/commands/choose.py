"""`pip-flower choose`: settings chosen on validation images, never on test images."""

import argparse
import dataclasses
import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from pip_flower.commands.choices import listed, seed_of, selection_of
from pip_flower.commands.in_process import Job, run_all
from pip_flower.config.compose import Selection
from pip_flower.config.schema import ConfigError
from pip_flower.method.configuration import load_config
from pip_flower.reporting.results import RunResult
from pip_flower.reporting.run_directory import RunDirectory
from pip_flower.storage.files import write_json

# By method and values, the score of each seed.
Scores = Mapping[tuple[str, str], Mapping[int, float]]


def choose(options: argparse.Namespace, console: Console) -> int:
    """Run every method with every combination of values, and record which did best."""
    base, methods = selection_of(options), listed(options.methods)
    default = load_config(base)
    seeds = [seed_of(text, "--seeds") for text in listed(options.seeds)] or [default.seed]
    combinations = _combinations(options.values)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    output = Path(options.output or Path(options.out_dir) / f"choice-{default.experiment}-{stamp}")
    output = output.expanduser().resolve()
    jobs = {
        (method, values, seed): Job(
            _validated(base, method, values, seed, options.fraction),
            output / "runs" / method / values.replace(" ", "_").replace("/", "-"),
        )
        for method in methods
        for values in combinations
        for seed in seeds
    }
    for job in jobs.values():
        load_config(job.selection)
    results = _play(jobs, options.jobs, console)
    scores = {
        (method, values): {seed: _score(results[method, values, seed], options.by) for seed in seeds}
        for method in methods
        for values in combinations
    }
    chosen = {method: best(scores, method, combinations) for method in methods}
    record = {
        "experiment": default.experiment,
        "overrides": base.overrides,
        "by": f"{options.by} accuracy on validation images, mean over seeds",
        "validation_fraction": options.fraction,
        "seeds": seeds,
        "chosen": chosen,
        "from": {method: {values: scores[method, values] for values in combinations} for method in methods},
    }
    output.mkdir(parents=True, exist_ok=True)
    write_json(output / "choice.json", record)
    console.print(_table(scores, chosen, methods, combinations, options.by))
    console.print(f"choice: {output / 'choice.json'}", highlight=False, soft_wrap=True)
    return 0


def best(scores: Scores, method: str, combinations: Sequence[str]) -> str:
    """The values with the best mean over seeds; of equals, those that were given first."""
    return max(combinations, key=lambda values: mean(scores[method, values].values()))


def _combinations(given: Sequence[str]) -> list[str]:
    """ "a=1,2 b=3,4" as overrides: a=1 b=3, a=1 b=4, …"""
    options = []
    for word in given:
        key, equals, values = word.partition("=")
        if not key or not equals or not listed(values):
            raise ConfigError(
                "choose", f"{word!r} gives no values", "Write training.learning_rate=0.002,0.02"
            )
        options.append([f"{key}={value}" for value in listed(values)])
    return [" ".join(combination) for combination in itertools.product(*options)]


def _validated(base: Selection, method: str, values: str, seed: int, fraction: float) -> Selection:
    split = f"dataset.validation_fraction={fraction} evaluation.split=validation"
    overrides = " ".join(filter(None, (base.overrides, split, values)))
    return dataclasses.replace(base, method=method, seed=seed, overrides=overrides)


def _play(
    jobs: Mapping[tuple[str, str, int], Job], processes: int, console: Console
) -> dict[tuple[str, str, int], RunResult]:
    results = {key: found for key, job in jobs.items() if (found := _finished(job))}
    keys = {job: key for key, job in jobs.items()}
    with Progress(console=console) as progress:
        bar = progress.add_task("runs on validation images", total=len(jobs), completed=len(results))
        for job, result in run_all([job for key, job in jobs.items() if key not in results], processes):
            results[keys[job]] = result
            progress.advance(bar)
    return results


def _finished(job: Job) -> RunResult | None:
    """The run of an earlier call, if it was this very one and came to its end."""
    wanted = load_config(job.selection)
    for path in sorted(job.out_dir.glob(f"*-{wanted.seed}-*")):
        directory = RunDirectory(path)
        if directory.model.is_file() and directory.read_environment()["config"] == wanted.digest():
            return RunResult.read(path)
    return None


def _score(result: RunResult, by: str) -> float:
    return result.matrix.average() if by == "average" else result.matrix.last()


def _table(
    scores: Scores, chosen: Mapping[str, str], methods: Sequence[str], combinations: Sequence[str], by: str
) -> Table:
    table = Table(title=f"{by} accuracy (%) on validation images", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("values")
    for method in methods:
        table.add_column(method, justify="right")
    for values in combinations:
        cells = []
        for method in methods:
            cell = f"{mean(scores[method, values].values()):.1f}"
            cells.append(f"[bold]{cell} *[/bold]" if chosen[method] == values else f"{cell}  ")
        table.add_row(values, *cells)
    return table
