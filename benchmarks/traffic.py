"""What a client and the server send each other in a round, beside the paper's figures.

    python benchmarks/traffic.py                                   # CIFAR-100, ten tasks, ViT-B/16
    python benchmarks/traffic.py --backbone vit_tiny_patch16_224 --methods pip-l2p

Messages are built by the project's own code and counted as Flower serialises them, for a client that holds
60 % of a task's classes; once slim, as sent by default, and once with the whole model (`wire.full`). No
training is needed: what a message weighs does not depend on the values in it.
"""

import argparse

import numpy as np
from rich.console import Console
from rich.table import Table

from pip_flower.config.compose import Selection
from pip_flower.flower.records import SAMPLES, content, serialised_bytes, to_record
from pip_flower.method.configuration import load_config
from pip_flower.method.registry import make_method
from pip_flower.method.workspace import shared_workspace
from pip_flower.prototypes import Prototypes
from pip_flower.reporting.published import PUBLISHED
from pip_flower.rounds.strategy import TaskStrategy

METHODS = "pip-dualprompt,pip-l2p,fed-dualprompt,fed-l2p"


def started(method: str, backbone: str, *, full: bool) -> TaskStrategy:
    """The server's side of a run on CIFAR-100 in ten tasks, with all tasks begun and every class known."""
    overrides = f"backbone.name={backbone} schedule.tasks=10 schedule.rounds=100"
    overrides += f" wire.full={str(full).lower()}"
    selection = Selection(method=method, dataset="cifar100", overrides=overrides)
    strategy = TaskStrategy(make_method(shared_workspace(load_config(selection))))
    workspace = strategy.method.workspace
    for task in range(10):
        strategy.arrays |= strategy.method.start_task(task, strategy.arrays)
    if "prototype.mean" in strategy.arrays:
        rows = np.zeros((100, workspace.backbone.dim))
        strategy.arrays |= Prototypes(np.arange(100), rows, rows, np.ones(100, np.int64)).as_arrays()
    return strategy


def kilobytes(strategy: TaskStrategy, task: int) -> tuple[float, float]:
    """A round of `task` in KB: up and down."""
    down = strategy.method.message(task, strategy.arrays)
    specs = strategy.method.expected(task, strategy.arrays, 300)
    # What has no fixed length has a row for each class that the client holds.
    up = {
        name: np.zeros([6 if size is None else size for size in spec.shape], spec.dtype)
        for name, spec in specs.items()
    }
    # The figures that a client of the prompt methods reports.
    metrics = dict.fromkeys(("first_epoch_loss", "last_epoch_loss", "backbone_loads", "fit_seconds"), 1.0)
    sizes = (
        serialised_bytes(content(to_record(up), metrics={SAMPLES: 300, **metrics})),
        serialised_bytes(content(to_record(down), config={"round": 1, "task": task})),
    )
    return sizes[0] / 1000, sizes[1] / 1000


def measure(methods: list[str], backbone: str) -> Table:
    """A row for each method; means over the ten tasks."""
    table = Table(title=f"KB per client and round: CIFAR-100, ten tasks, {backbone}")
    table.add_column("method")
    for title in ("slim up", "slim down", "full up", "full down", "paper"):
        table.add_column(title, justify="right")
    for method in methods:
        cells = []
        for full in (False, True):
            strategy = started(method, backbone, full=full)
            sizes = np.mean([kilobytes(strategy, task) for task in range(10)], axis=0)
            cells += [f"{size:,.1f}" for size in sizes]
        published = PUBLISHED[method].kilobytes if method in PUBLISHED else None
        table.add_row(method, *cells, f"{published:,.0f}" if published else "")
    return table


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--methods", default=METHODS, help="methods, separated by commas")
    parser.add_argument("--backbone", default="vit_base_patch16_224", help="a timm ViT")
    options = parser.parse_args()
    Console(soft_wrap=True).print(measure(options.methods.split(","), options.backbone))


if __name__ == "__main__":
    main()
