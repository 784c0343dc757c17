"""How `pip-align` depends on its options: draws, steps, learning rate, variance factor, starting point.

    python benchmarks/align_study.py runs/real-small-pip-dualprompt-11-* runs/real-small-pip-dualprompt-12-*

Takes finished runs of a PIP method, refits the head of the final model from the Gaussians that the server
holds, one option changed at a time, and prints accuracy after the last task. Use runs of other seeds than
those that are reported.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from safetensors.numpy import load_file

from pip_flower.config.compose import Selection
from pip_flower.method.configuration import load_config, restore_config
from pip_flower.method.registry import make_method
from pip_flower.method.workspace import Workspace
from pip_flower.methods.pip.align import AlignOptions, align_head
from pip_flower.methods.pip.pip import PIP
from pip_flower.models.heads import LinearHead
from pip_flower.prototypes import Prototypes
from pip_flower.reporting.run_directory import RunDirectory
from pip_flower.runtime.streams import torch_stream

CHANGES: dict[str, tuple[float, ...]] = {
    "draws": (1, 5, 20, 50),
    "steps": (25, 50, 100, 200, 500, 1000),
    "learning_rate": (0.001, 0.003, 0.01, 0.03),
    "shrinkage": (0.0, 0.5, 1.0),
    "variance": (0.0, 0.25, 0.5, 1.0, 1.5, 2.0),
}
Array = NDArray[Any]


@dataclass(frozen=True)
class Finished:
    """The end of a run: test features [n, D] with their tasks and columns, Gaussians and averaged head."""

    seed: int
    features: Array
    columns: Array
    tasks: Array
    gaussians: Prototypes
    weight: Array
    bias: Array

    @classmethod
    def read(cls, path: Path) -> "Finished":
        """Features are computed anew from the saved model."""
        directory = RunDirectory(path)
        values = yaml.safe_load(directory.config.read_text(encoding="utf-8"))
        method = make_method(Workspace(restore_config(values)))
        arrays = load_file(directory.model)
        if not isinstance(method, PIP) or "prototype.mean" not in arrays:
            raise SystemExit(f"{path} is not a run of a PIP method: it has no prototypes")
        workspace, count = method.workspace, len(method.workspace.tasks)
        state = {name: torch.from_numpy(value) for name, value in arrays.items()}
        tests = [workspace.test_samples(task) for task in range(count)]
        seen = workspace.tasks.seen(count)
        table = Prototypes.from_arrays(arrays)
        weights, biases = zip(*(LinearHead(0).rows(state, task) for task in range(count)), strict=True)
        return cls(
            seed=workspace.config.seed,
            features=torch.cat([method.features(state, test, count) for test in tests]).numpy(),
            columns=workspace.tasks.positions(np.concatenate([test.labels for test in tests]), count),
            tasks=np.repeat(np.arange(count), [len(test) for test in tests]),
            gaussians=table.at(np.searchsorted(table.classes, seen)),
            weight=torch.cat(weights).numpy(),
            bias=torch.cat(biases).numpy(),
        )

    def accuracy(self, weight: Array, bias: Array) -> float:
        """Mean over tasks, in percent."""
        right = (self.features @ weight.T + bias).argmax(axis=1) == self.columns
        return 100 * mean(float(right[self.tasks == task].mean()) for task in np.unique(self.tasks))

    def aligned(self, options: AlignOptions, *, fresh: bool = False) -> float:
        """Accuracy after a refit from the averaged rows, or from zero."""
        start = (self.weight, self.bias)
        if fresh:
            start = (np.zeros_like(self.weight), np.zeros_like(self.bias))
        generator = torch_stream(self.seed, "align", "study")
        return self.accuracy(*align_head(*start, self.gaussians, options, generator))


def rows(runs: list[Finished], default: AlignOptions) -> Iterator[tuple[str, list[float]]]:
    """What was done, and the accuracy of each run."""
    yield "averaged head, no refit", [run.accuracy(run.weight, run.bias) for run in runs]
    yield "as shipped", [run.aligned(default) for run in runs]
    yield "started from zero", [run.aligned(default, fresh=True) for run in runs]
    for option, values in CHANGES.items():
        for value in values:
            changed = replace(default, **{option: type(getattr(default, option))(value)})
            yield f"{option} {value:g}", [run.aligned(changed) for run in runs]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN_DIR", help="finished runs of a PIP method")
    options = parser.parse_args()
    runs = [Finished.read(Path(path)) for path in options.runs]
    default = load_config(Selection(method="pip-align")).method.options.align
    table = Table(title=f"accuracy (%) after the last task; as shipped: {default}")
    table.add_column("refit")
    for run in runs:
        table.add_column(f"seed {run.seed}", justify="right")
    table.add_column("mean", justify="right")
    for title, figures in rows(runs, default):
        table.add_row(title, *(f"{figure:.1f}" for figure in figures), f"{mean(figures):.1f}")
    Console(soft_wrap=True).print(table)


if __name__ == "__main__":
    main()
