"""`pip-flower config` and `pip-flower methods`: what a run would be, and what can be chosen."""

import argparse

import yaml
from rich.console import Console

from pip_flower.commands.choices import selection_of
from pip_flower.method.configuration import load_config, method_entry, method_labels


def show(options: argparse.Namespace, console: Console) -> int:
    """Check and print the resolved configuration."""
    config = load_config(selection_of(options))
    console.out(yaml.safe_dump(config.as_mapping(), sort_keys=False), end="", highlight=False)
    return 0


def methods(options: argparse.Namespace, console: Console) -> int:
    """List what `--method` can be, and what of a client's images each keeps or sends."""
    labels = method_labels()
    if options.names:
        console.out("\n".join(labels))
        return 0
    for label, about in labels.items():
        console.out(f"{label:20} {about}", highlight=False)
        if disclosed := _disclosed(label):
            console.out(f"{'':20} {disclosed}", highlight=False)
    return 0


def _disclosed(label: str) -> str:
    """What clients keep of their images, and what they send beside the model; empty if neither."""
    entry = method_entry(label)
    parts = {"clients keep": entry.keeps, "clients send": entry.sends}
    return "; ".join(f"{verb}: {what}" for verb, what in parts.items() if what)
