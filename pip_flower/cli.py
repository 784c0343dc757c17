"""The `pip-flower` command."""

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import yaml
from rich.console import Console

from pip_flower.commands import data, deploy, doctor
from pip_flower.commands.choices import choosing_parser, listed, seed_of, selection_of
from pip_flower.commands.running import run_one, show_tables
from pip_flower.config.schema import ConfigError
from pip_flower.deployment.connection import deployment_runner
from pip_flower.flower.launcher import LaunchError, flower_runner
from pip_flower.method.configuration import load_config, method_labels
from pip_flower.parity import check_all, parity_table
from pip_flower.reporting.plots import plot_accuracy
from pip_flower.reporting.results import RunResult
from pip_flower.server.resume import resumed
from pip_flower.storage.files import write_json

_BAD_INPUT, _FAILED, _INTERRUPTED = 2, 1, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 1 the run failed, 2 bad input, 130 interrupted."""
    options = _parser().parse_args(arguments)
    console = Console()
    try:
        return int(options.command(options, console))
    except ConfigError as error:
        print(f"pip-flower: {error}", file=sys.stderr)
        return _BAD_INPUT
    except FileNotFoundError as error:
        print(f"pip-flower: {error}", file=sys.stderr)
        return _BAD_INPUT
    except LaunchError as error:
        print(f"pip-flower: {error}", file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt:
        print("pip-flower: interrupted; the run was stopped", file=sys.stderr)
        return _INTERRUPTED


def _run(options: argparse.Namespace, console: Console) -> int:
    selection = selection_of(options)
    if options.resume:
        options.resume = str(Path(options.resume).expanduser().resolve())
        options.out_dir = str(Path(options.resume).parent)
        selection = resumed(Path(options.resume), selection)
    bundle = Path(options.deployment).expanduser().resolve()
    with deployment_runner(bundle) if options.deployment else flower_runner() as runner:
        result = run_one(runner, selection, _out_dir(options), console, options.resume)
    show_tables([result], console)
    console.print(f"results: {result.path}", highlight=False)
    return 0


def _suite(options: argparse.Namespace, console: Console) -> int:
    base = selection_of(options)
    methods = listed(options.methods)
    if not methods:
        known = ", ".join(method_labels())
        raise ConfigError("--methods", f"{options.methods!r} names none", f"Choose from: {known}")
    seeds = [seed_of(text, "--seeds") for text in listed(options.seeds)] or [base.seed]
    selections = [dataclasses.replace(base, method=method, seed=seed) for method in methods for seed in seeds]
    for selection in selections:
        load_config(selection)
    with flower_runner() as runner:
        results = [run_one(runner, selection, _out_dir(options), console) for selection in selections]
    stamp = time.strftime("%Y%m%d-%H%M%S")
    output = _out_dir(options) / f"suite-{base.experiment}-{stamp}"
    _report_on(results, output, console)
    return 0


def _report(options: argparse.Namespace, console: Console) -> int:
    results = [RunResult.read(Path(run)) for run in options.runs]
    _report_on(results, Path(options.output), console)
    return 0


def _config_show(options: argparse.Namespace, console: Console) -> int:
    config = load_config(selection_of(options))
    console.out(yaml.safe_dump(config.as_mapping(), sort_keys=False), end="", highlight=False)
    return 0


def _methods(options: argparse.Namespace, console: Console) -> int:
    labels = method_labels()
    if options.names:
        console.out("\n".join(labels))
        return 0
    for label, about in labels.items():
        console.out(f"{label:20} {about}", highlight=False)
    return 0


def _parity(options: argparse.Namespace, console: Console) -> int:
    deviations = check_all(Path(options.fixtures).expanduser())
    console.print(parity_table(deviations))
    far = [found for found in deviations if not found.ok]
    largest = max(found.largest for found in deviations)
    console.print(f"{len(deviations)} arrays, {len(far)} beyond tolerance, largest deviation {largest:.1e}")
    return _FAILED if far else 0


def _report_on(results: list[RunResult], output: Path, console: Console) -> None:
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
                **({"own_classes": run.own.summary()} if run.own else {}),
                "traffic": run.traffic.as_mapping(),
                **({"kept_share": run.kept_share} if run.kept_share is not None else {}),
                "failures": dict(run.failures),
            }
            for run in results
        ],
    )
    show_tables(results, console)
    console.print(f"metrics: {output / 'results.json'}", highlight=False)
    console.print(f"picture: {picture}", highlight=False)


def _out_dir(options: argparse.Namespace) -> Path:
    return Path(options.out_dir).expanduser().resolve()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pip-flower", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")

    chosen = choosing_parser()
    one = argparse.ArgumentParser(add_help=False)
    one.add_argument("--method", default="", help="see `pip-flower methods`")
    written = argparse.ArgumentParser(add_help=False)
    written.add_argument("--out-dir", default="runs", help="parent of the run directory")

    run = commands.add_parser("run", parents=[chosen, one, written], help="run one experiment")
    run.add_argument("--resume", default="", metavar="RUN_DIR", help="go on with an interrupted run")
    run.add_argument(
        "--deployment",
        default="",
        metavar="SERVER_BUNDLE",
        help="run on the nodes of this server's SuperLink",
    )
    run.set_defaults(command=_run)

    suite = commands.add_parser("suite", parents=[chosen, written], help="compare methods, seeds")
    suite.add_argument("--methods", required=True, metavar="A,B", help="methods to compare")
    suite.add_argument("--seeds", default="", metavar="1,2", help="seeds; default: the file's")
    suite.set_defaults(command=_suite)

    report = commands.add_parser("report", help="table and picture of finished runs")
    report.add_argument("runs", nargs="+", metavar="RUN_DIR")
    report.add_argument("--output", default="report", help="directory for picture and metrics")
    report.set_defaults(command=_report)

    config = commands.add_parser("config", help="the configuration")
    shown = config.add_subparsers(required=True, metavar="what")
    show = shown.add_parser("show", parents=[chosen, one], help="check, resolve and print it")
    show.set_defaults(command=_config_show)

    methods = commands.add_parser("methods", help="list what --method can be")
    methods.add_argument("--names", action="store_true", help="only the names")
    methods.set_defaults(command=_methods)

    data.add_parser(commands)

    parity = commands.add_parser("parity", help="compare with numbers of the authors' released code")
    parity.add_argument("fixtures", metavar="DIR", help="directory of fixture files (.npz)")
    parity.set_defaults(command=_parity)

    deploy.add_parser(commands)
    doctor.add_parser(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
