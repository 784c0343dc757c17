"""`pip-flower suite`: every method with every seed, in spite of failures."""

import argparse
import json
import shlex
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from pip_flower.commands.choices import listed, out_dir_of, seed_of, selection_of
from pip_flower.commands.report import report_on
from pip_flower.commands.running import Runners, Terminal, run_to_end
from pip_flower.config.compose import Selection
from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import Config
from pip_flower.flower.launcher import LaunchError, StoppedRunError, flower_runner
from pip_flower.method.configuration import load_config, method_labels
from pip_flower.reporting.results import RunResult
from pip_flower.reporting.run_directory import RunDirectory
from pip_flower.server.preflight import check_start
from pip_flower.storage.places import require_writable

_FAILED = 1


def suite(options: argparse.Namespace, console: Console) -> int:
    """Every run to its end, or to its failure, and a report on those that were finished."""
    terminal = Terminal(console, options.debug)
    results: list[RunResult] = []
    failures: dict[str, str] = {}
    selections = _selections(options)
    try:
        with Runners(flower_runner) as runners:
            for selection, config in selections:
                try:
                    results.append(_cell(runners, selection, config, options, terminal))
                except (LaunchError, ConfigError) as error:
                    name = _name(config)
                    failures[name] = str(error)
                    terminal.say(f"{name} failed: {error}")
    except KeyboardInterrupt:
        raise StoppedRunError(lambda: _again(options)) from None
    if results:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        experiment = selections[0][1].experiment
        report_on(results, out_dir_of(options) / f"suite-{experiment}-{stamp}", console)
    if not failures:
        return 0
    terminal.say(f"{len(failures)} of {len(selections)} runs failed:")
    for name, reason in failures.items():
        terminal.say(f"  {name}: {reason}")
    terminal.say(f"To finish what is missing:  {_again(options)}")
    return _FAILED


def _selections(options: argparse.Namespace) -> list[tuple[Selection, Config]]:
    """All that is to be run; what is wrong with any of it is said before anything starts."""
    base = selection_of(options)
    methods = listed(options.methods)
    if not methods:
        known = ", ".join(method_labels())
        raise ConfigError("--methods", f"{options.methods!r} names none", f"Choose from: {known}")
    seeds = [seed_of(text, "--seeds") for text in listed(options.seeds)] or [base.seed]
    chosen = [replace(base, method=method, seed=seed) for method in methods for seed in seeds]
    found = [(selection, load_config(selection)) for selection in chosen]
    require_writable("--out-dir", out_dir_of(options))
    for _, config in found:
        check_start(config)
    return found


def _cell(
    runners: Runners, selection: Selection, config: Config, options: argparse.Namespace, terminal: Terminal
) -> RunResult:
    """One method with one seed."""
    out_dir = out_dir_of(options)
    resume = ""
    if options.resume and (found := find_cell(out_dir, config)):
        if found.finished():
            terminal.say(f"{_name(config)}: done before, in {found.path}")
            return RunResult.read(found.path)
        found.require_free()
        resume = str(found.path)
    return run_to_end(runners, selection, out_dir, terminal, options.retries, resume)


def find_cell(out_dir: Path, config: Config) -> RunDirectory | None:
    """The run of this very configuration below `out_dir`: a finished one, or else the newest."""
    found = list(_same(out_dir, config))
    return next(filter(RunDirectory.finished, found), found[0] if found else None)


def _same(out_dir: Path, config: Config) -> Iterator[RunDirectory]:
    wanted = _identity(config.as_mapping())
    made = sorted(out_dir.glob("[!.]*/environment.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in made:
        directory = RunDirectory(path.parent)
        try:
            about = directory.read_environment()
            before = _identity(yaml.safe_load(directory.config.read_text(encoding="utf-8")))
        except (OSError, ValueError, LookupError, TypeError, yaml.YAMLError):
            # Not a run, or a damaged one.
            continue
        if about.get("config") == config.digest() and before == wanted:
            yield directory


def _identity(plain: dict[str, Any]) -> str:
    """What a configuration's digest leaves out, because it may differ between machines."""
    parts = [plain["experiment"], plain["method"]["label"], plain["dataset"], plain["backbone"]]
    return json.dumps(parts, sort_keys=True)


def _name(config: Config) -> str:
    return f"{config.method.label} (seed {config.seed})"


def _again(options: argparse.Namespace) -> str:
    resume = [] if options.resume else ["--resume"]
    return shlex.join(["pip-flower", *options.arguments, *resume])
