"""`pip-flower doctor`: look at an installation or a node and say what to fix."""

import argparse
from pathlib import Path

from rich.console import Console

from pip_flower.client.node_settings import with_node_settings
from pip_flower.commands.choices import selection_of
from pip_flower.config.sections import Config
from pip_flower.deployment.bundles import NODE_CONFIG, bundle_settings
from pip_flower.deployment.doctor import Finding, examine
from pip_flower.method.configuration import load_config

_COLOURS = {"ok": "green", "warning": "yellow", "wrong": "red"}


def doctor(options: argparse.Namespace, console: Console) -> int:
    """Print what was looked at, and what to fix."""
    bundle = Path(options.bundle).expanduser().resolve() if options.bundle else None
    wrong = 0
    for finding in examine(_config(options, bundle), bundle):
        _show(finding, console)
        wrong += finding.state == "wrong"
    console.print("nothing is wrong" if not wrong else f"{wrong} to fix", highlight=False)
    return 1 if wrong else 0


def _config(options: argparse.Namespace, bundle: Path | None) -> Config:
    selection = selection_of(options)
    if bundle is None or not (bundle / NODE_CONFIG).is_file():
        return load_config(selection)
    return with_node_settings(selection, bundle_settings(bundle))


def _show(finding: Finding, console: Console) -> None:
    colour = _COLOURS[finding.state]
    line = f"[{colour}]{finding.state:8}[/{colour}] {finding.what}: "
    console.print(line, end="", highlight=False)
    console.out(finding.found, highlight=False)
    if finding.remedy:
        console.out(f"         -> {finding.remedy}", highlight=False)
