"""`pip-flower parity`: this code against numbers of the authors' released code."""

import argparse
from pathlib import Path

from rich.console import Console

from pip_flower.parity import check_all, parity_table


def parity(options: argparse.Namespace, console: Console) -> int:
    """Print the largest deviation of every array; 1 if any is beyond tolerance."""
    deviations = check_all(Path(options.fixtures).expanduser())
    console.print(parity_table(deviations))
    far = [found for found in deviations if not found.ok]
    largest = max(found.largest for found in deviations)
    console.print(f"{len(deviations)} arrays, {len(far)} beyond tolerance, largest deviation {largest:.1e}")
    return 1 if far else 0
