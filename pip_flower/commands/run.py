"""`pip-flower run` and `pip-flower suite`."""

import argparse
import dataclasses
import time
from pathlib import Path

from rich.console import Console

from pip_flower.commands.choices import listed, seed_of, selection_of
from pip_flower.commands.in_process import Job, run_here
from pip_flower.commands.report import report_on
from pip_flower.commands.running import run_one, show_tables
from pip_flower.config.schema import ConfigError
from pip_flower.deployment.connection import deployment_runner
from pip_flower.flower.launcher import flower_runner
from pip_flower.method.configuration import load_config, method_labels
from pip_flower.server.preflight import check_start
from pip_flower.server.resume import resumed
from pip_flower.storage.places import require_writable


def run(options: argparse.Namespace, console: Console) -> int:
    """One run, new or taken up again."""
    selection = selection_of(options)
    if options.resume:
        options.resume = str(Path(options.resume).expanduser().resolve())
        options.out_dir = str(Path(options.resume).parent)
        selection = resumed(Path(options.resume), selection)
    if not options.deployment:
        require_writable("--out-dir", _out_dir(options))
        check_start(load_config(selection))
    if options.in_process:
        result = run_here(Job(selection, _out_dir(options)), options.resume)
        show_tables([result], console)
        console.print(f"results: {result.path}", highlight=False)
        return 0
    bundle = Path(options.deployment).expanduser().resolve()
    with deployment_runner(bundle) if options.deployment else flower_runner() as runner:
        result = run_one(runner, selection, _out_dir(options), console, options.resume)
    show_tables([result], console)
    console.print(f"results: {result.path}", highlight=False)
    return 0


def suite(options: argparse.Namespace, console: Console) -> int:
    """Every method with every seed, and a report on them all."""
    base = selection_of(options)
    methods = listed(options.methods)
    if not methods:
        known = ", ".join(method_labels())
        raise ConfigError("--methods", f"{options.methods!r} names none", f"Choose from: {known}")
    seeds = [seed_of(text, "--seeds") for text in listed(options.seeds)] or [base.seed]
    selections = [dataclasses.replace(base, method=method, seed=seed) for method in methods for seed in seeds]
    configs = [load_config(selection) for selection in selections]
    require_writable("--out-dir", _out_dir(options))
    for config in configs:
        check_start(config)
    with flower_runner() as runner:
        results = [run_one(runner, selection, _out_dir(options), console) for selection in selections]
    stamp = time.strftime("%Y%m%d-%H%M%S")
    output = _out_dir(options) / f"suite-{configs[0].experiment}-{stamp}"
    report_on(results, output, console)
    return 0


def _out_dir(options: argparse.Namespace) -> Path:
    return Path(options.out_dir).expanduser().resolve()
