"""What each part of pip-drift is worth: one training, many endings, on validation images.

    python benchmarks/drift_study.py --experiment real-small --data-dir DATA --overrides "backbone.weights=…"

Prompts are trained once. After each task every variant moves its own Gaussians and solves for its own head,
from the sums that the clients sent, and is tested on the validation images of all tasks seen. Beside them
stand references: `oracle` has all old images at hand again, `frozen` are the features of the frozen ViT, and
`diagonal` is what PIP's prototypes hold.
"""

import argparse
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.config.compose import Selection
from pip_flower.data.samples import Samples
from pip_flower.method.configuration import load_config
from pip_flower.method.exchange import Contribution
from pip_flower.method.round import Round
from pip_flower.method.workspace import shared_workspace
from pip_flower.methods import moments as sums
from pip_flower.methods.moments import Floats, Moments
from pip_flower.methods.pip.discriminant import Gaussians, discriminant, linear_drift, mean_drift
from pip_flower.methods.pip.drift import DriftingPIP
from pip_flower.methods.pip.task_moments import TaskMoments
from pip_flower.rounds.strategy import TaskStrategy
from pip_flower.server.in_process import InProcessGrid

RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
SHRINKAGES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
RANKS = (0, 8, 16, 32, 64)
SPLIT = "dataset.validation_fraction=0.2 evaluation.split=validation"


@dataclass(frozen=True)
class Variant:
    """One way to end a task; `rank` -1 keeps the whole covariance, 0 only variances."""

    transport: str
    ridge: float
    shrinkage: float
    rank: int = -1

    def __str__(self) -> str:
        how = f"linear, ridge {self.ridge:g}" if self.transport == "linear" else self.transport
        kept = {-1: "full", 0: "diagonal"}.get(self.rank, f"rank {self.rank}")
        return f"{how}; {kept}, shrinkage {self.shrinkage:g}"


def variants() -> list[Variant]:
    """All combinations worth a look."""
    found = [
        Variant("linear", ridge, shrinkage) for ridge, shrinkage in itertools.product(RIDGES, SHRINKAGES)
    ]
    found += [
        Variant(transport, 1.0, shrinkage) for transport in ("none", "shift") for shrinkage in SHRINKAGES
    ]
    found += [
        Variant(transport, 1.0, shrinkage, rank)
        for transport in ("shift", "linear")
        for rank in RANKS
        for shrinkage in (0.1, 0.2, 0.3)
    ]
    found += [Variant("oracle", 1.0, shrinkage) for shrinkage in SHRINKAGES]
    found += [Variant("frozen", 1.0, shrinkage, rank) for shrinkage in SHRINKAGES for rank in (-1, 0)]
    return found


class StudiedMoments(TaskMoments):
    """Keeps each client's moments for the variants."""

    clients: Sequence[Moments] = ()

    def merge(self, round_: Round, contributions: Sequence[Contribution], arrays: Arrays) -> NamedArrays:
        """As ever."""
        self.clients = [self.wire.decoded("all", found.update.arrays) for found in contributions]
        return super().merge(round_, contributions, arrays)


class StudiedDrift(DriftingPIP):
    """Ends each task in every way, beside its own."""

    def __init__(self, workspace: Any, options: Any) -> None:
        super().__init__(workspace, options)
        self.moments = StudiedMoments(workspace, self.structure, self.latest_features, options.drift)
        self.conclusion = self.moments
        self.known: dict[Variant, Gaussians] = {}
        self.accuracies: dict[Variant, list[float]] = {}

    def end_task(self, task: int, arrays: Arrays) -> NamedArrays:
        """Accuracy of every variant after the task."""
        state = {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}
        tests = [self.workspace.test_samples(earlier) for earlier in range(task + 1)]
        prompted = [self._features(state, test, task) for test in tests]
        frozen = [self._frozen(test) for test in tests]
        train = [self._train(earlier) for earlier in range(task + 1)]
        oracle = self._moments([self._features(state, found, task) for found in train], train)
        plain = self._moments([self._frozen(found) for found in train], train)
        for variant in variants():
            if variant.transport == "oracle":
                known = Gaussians(oracle.count, oracle.mean, oracle.scatter)
            elif variant.transport == "frozen":
                known = Gaussians(plain.count, plain.mean, _reduced(plain.scatter, variant.rank))
            else:
                known = self._ended(variant, task)
            self.known[variant] = known
            weight, bias = discriminant(known, variant.shrinkage)
            features = frozen if variant.transport == "frozen" else prompted
            right = []
            for test, found in zip(tests, features, strict=True):
                best = (found @ weight.T + bias).argmax(axis=1)
                right.append(float((best == self.workspace.tasks.positions(test.labels, task + 1)).mean()))
            self.accuracies.setdefault(variant, []).append(100 * float(np.mean(right)))
        return super().end_task(task, arrays)

    def _ended(self, variant: Variant, task: int) -> Gaussians:
        clients = [_with_rank(found, variant.rank) for found in self.moments.clients]
        found = sums.pool(clients)
        if task == 0:
            dim = self.workspace.backbone.dim
            return Gaussians(np.zeros(0), np.zeros((0, dim)), np.zeros((dim, dim))).joined(found)
        known, drift = self.known[variant], found.drift
        assert drift is not None
        if variant.transport != "none":
            by = mean_drift(drift) if variant.transport == "shift" else linear_drift(drift, variant.ridge)
            known = known.moved(by)
        if variant.rank == 0:
            known = Gaussians(known.count, known.mean, np.diag(np.diag(known.scatter)))
        return known.joined(found)

    def _train(self, task: int) -> Samples:
        train = self.workspace.data.train
        return train.take(self.workspace.tasks.rows(train.labels, task))

    def _features(self, state: dict[str, Any], samples: Samples, task: int) -> Floats:
        return self.latest_features(state, samples, task).numpy().astype(np.float64)

    def _frozen(self, samples: Samples) -> Floats:
        return np.asarray(self.workspace.queries(samples).numpy(), dtype=np.float64)

    def _moments(self, features: list[Floats], samples: list[Samples]) -> Moments:
        labels = np.concatenate([found.labels for found in samples])
        tasks = len(samples)
        positions = self.workspace.tasks.positions(labels, tasks)
        classes = len(self.workspace.tasks.seen(tasks))
        return sums.moments_of(np.concatenate(features), positions, classes)


def _with_rank(found: Moments, rank: int) -> Moments:
    return Moments(found.count, found.mean, _reduced(found.scatter, rank), found.drift)


def _reduced(scatter: Floats, rank: int) -> Floats:
    if rank < 0:
        return scatter
    if rank == 0:
        return np.diag(np.diag(scatter))
    return sums.unfactored(*sums.factored(scatter, rank))


def study(selection: Selection) -> dict[Variant, list[float]]:
    """A_1, A_2, … of every variant."""
    config = load_config(selection)
    method = StudiedDrift(shared_workspace(config), config.method.options)
    run_config = {
        "experiment": selection.experiment,
        "method": selection.method,
        "overrides": selection.overrides,
        "data-dir": selection.data_dir,
        "dataset": selection.dataset,
        "seed": selection.seed,
    }
    TaskStrategy(method).run(InProcessGrid(config.federation.clients, run_config))
    return method.accuracies


def best_of(found: dict[Variant, list[float]]) -> Iterator[tuple[Variant, list[float]]]:
    """Of each transport and rank the variant with the best Avg, best first."""
    groups: dict[tuple[str, int], tuple[Variant, list[float]]] = {}
    for variant, row in found.items():
        key = (variant.transport, variant.rank)
        if key not in groups or np.mean(row) > np.mean(groups[key][1]):
            groups[key] = (variant, row)
    yield from sorted(groups.values(), key=lambda pair: -float(np.mean(pair[1])))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--experiment", default="digits")
    parser.add_argument("--method", default="pip-drift", help="a variant of pip-drift")
    parser.add_argument("--dataset", default="")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--overrides", default="")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument(
        "--json", default="", metavar="FILE", help="all variants, not only the best of each kind"
    )
    options = parser.parse_args()
    overrides = " ".join((options.overrides, SPLIT))
    found = study(
        Selection(
            options.experiment, options.method, options.dataset, overrides, options.data_dir, options.seed
        )
    )
    if options.json:
        rows = {str(variant): row for variant, row in found.items()}
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    table = Table(title=f"{options.experiment}: accuracy (%) on validation images, seed {options.seed}")
    table.add_column("end of a task: best of its kind")
    for title in (*(f"T{task + 1}" for task in range(len(next(iter(found.values()))))), "Avg"):
        table.add_column(title, justify="right")
    for variant, row in best_of(found):
        table.add_row(str(variant), *(f"{value:.1f}" for value in (*row, float(np.mean(row)))))
    Console(soft_wrap=True).print(table)


if __name__ == "__main__":
    main()
