"""Accuracy when a fifth of the clients are hostile, with and without robust aggregation.

    python benchmarks/hostile_clients.py                          # every attack against every defence
    python benchmarks/hostile_clients.py --attacks none,sign-flip --defences mean,median
    python benchmarks/hostile_clients.py --method ncm --seed 2022 --json

The federation is the embedded one (digits, ten clients) with all clients in every round, in this process, and
without Ray. Two clients train as they should and have their replies replaced on the way; the project itself
contains no attacks.
"""

import argparse
import contextlib
import io
import json
import logging
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from pip_flower.config.compose import Selection  # noqa: E402
from pip_flower.flower.records import ARRAYS, from_record, to_record  # noqa: E402
from pip_flower.method.configuration import load_config  # noqa: E402
from pip_flower.method.registry import make_method  # noqa: E402
from pip_flower.method.workspace import shared_workspace  # noqa: E402
from pip_flower.metrics import AccuracyMatrix  # noqa: E402
from pip_flower.rounds.observer import EvaluationRecord, Observer  # noqa: E402
from pip_flower.rounds.strategy import TaskStrategy  # noqa: E402
from pip_flower.runtime.streams import stream  # noqa: E402
from support.local_grid import LocalGrid  # noqa: E402

Arrays = dict[str, NDArray[Any]]
Attack = Callable[[Arrays, Arrays, np.random.Generator], Arrays]

HOSTILE = (3, 7)
FEDERATION = "federation.clients_per_round=10 schedule.rounds=10"
DEFENCES = {
    "mean": "",
    # The longest changes of honest clients are 1.7 (model) and 2.9 (a class's mean and deviation).
    "clip": "aggregation.clip_norm=1.5 aggregation.clip_prototypes=3",
    "median": "aggregation.rule=median",
    "trimmed-mean": "aggregation.rule=trimmed-mean aggregation.trim=0.2",
}


def sign_flip(sent: Arrays, reply: Arrays, rng: np.random.Generator) -> Arrays:  # noqa: ARG001
    """Five times the change that was learnt, backwards; means and sums of features with the sign turned."""
    flipped = dict(reply)
    for name, value in reply.items():
        if name in sent and value.shape == sent[name].shape and not name.startswith("prototype."):
            flipped[name] = (sent[name] - 5 * (value - sent[name])).astype(value.dtype)
        elif name in ("prototype.mean",) or name.startswith(("sum.", "cross.")):
            flipped[name] = -5 * value
    return flipped


def noise(sent: Arrays, reply: Arrays, rng: np.random.Generator) -> Arrays:  # noqa: ARG001
    """Gaussian noise ten times as large as what it is added to, wherever numbers are not counts."""
    noisy = dict(reply)
    for name, value in reply.items():
        if value.dtype.kind == "f" and not name.startswith(("count", "labels", "prototype.variance", "gram")):
            scale = 10 * float(np.sqrt(np.mean(value.astype(np.float64) ** 2)) if value.size else 0.0)
            noisy[name] = (value + rng.normal(0.0, scale, value.shape)).astype(value.dtype)
    return noisy


def label_swap(sent: Arrays, reply: Arrays, rng: np.random.Generator) -> Arrays:  # noqa: ARG001
    """What is said of one class of the task is said of the other: prototypes, head rows, sums."""
    swapped = dict(reply)
    if len(classes := reply.get("prototype.classes", np.zeros(0, dtype=np.int64))):
        # Tasks of two classes in label order: 2k and 2k + 1.
        other = classes ^ 1
        order = np.argsort(other)
        swapped["prototype.classes"] = other[order]
        for name in ("prototype.mean", "prototype.variance", "prototype.count"):
            swapped[name] = reply[name][order]
    for name, value in reply.items():
        if name.startswith(("head.", "sum.", "count.")) and value.shape[0] == 2:
            swapped[name] = value[::-1].copy()
        elif name.startswith(("cross.", "labels.")):
            swapped[name] = value[..., ::-1].copy()
    return swapped


ATTACKS: dict[str, Attack | None] = {
    "none": None,
    "sign-flip": sign_flip,
    "noise": noise,
    "label-swap": label_swap,
}


class HostileGrid(LocalGrid):
    """Replaces what hostile clients reply."""

    def __init__(self, nodes: int, run_config: dict[str, Any], attack: Attack | None, seed: int) -> None:
        super().__init__(nodes, run_config)
        self.attack = attack
        self.seed = seed

    def reply_to(self, message: Message) -> Message:
        reply = super().reply_to(message)
        partition = int(self.contexts[message.metadata.dst_node_id].node_config["partition-id"])
        if self.attack and partition in HOSTILE and message.metadata.message_type == "train":
            sent = from_record(message.content.array_records[ARRAYS])
            returned = from_record(reply.content.array_records[ARRAYS])
            rng = stream(self.seed, "attack", str(message.metadata.group_id), partition)
            reply.content[ARRAYS] = to_record(self.attack(sent, returned, rng))
        return reply


class Accuracies(Observer):
    """Keeps the accuracy matrix, and how many replies were rejected."""

    def __init__(self) -> None:
        self.matrix = AccuracyMatrix()
        self.rejected = 0

    def round_finished(self, record: Any) -> None:
        self.rejected += record.failed

    def task_evaluated(self, record: EvaluationRecord) -> None:
        self.matrix.add(record.accuracies)


def measure(method: str, seed: int, attack: str, defence: str, overrides: str) -> dict[str, Any]:
    """One run."""
    chosen = f"{FEDERATION} {DEFENCES[defence]} {overrides}"
    run_config = {"experiment": "digits", "method": method, "overrides": chosen, "seed": seed}
    config = load_config(Selection.from_run_config(run_config))
    strategy = TaskStrategy(make_method(shared_workspace(config)))
    found = Accuracies()
    strategy.observer = found
    with contextlib.redirect_stdout(io.StringIO()):
        strategy.run(HostileGrid(config.federation.clients, run_config, ATTACKS[attack], seed))
    figures = {"average": found.matrix.average(), "last": found.matrix.last(), "rejected": found.rejected}
    return {"method": method, "seed": seed, "attack": attack, "defence": defence, **figures}


def table(results: Iterable[dict[str, Any]], title: str) -> Table:
    """Avg (last) per attack and defence."""
    rows = list(results)
    shown = Table(title=title, title_justify="left")
    shown.add_column("attack")
    defences = list(dict.fromkeys(row["defence"] for row in rows))
    for defence in defences:
        shown.add_column(defence, justify="right")
    for attack in dict.fromkeys(row["attack"] for row in rows):
        cells = {row["defence"]: row for row in rows if row["attack"] == attack}
        shown.add_row(attack, *(f"{cells[d]['average']:.1f} ({cells[d]['last']:.1f})" for d in defences))
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="pip-dualprompt")
    parser.add_argument("--seed", type=int, default=2021)
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    parser.add_argument("--defences", default=",".join(DEFENCES))
    parser.add_argument("--overrides", default="")
    parser.add_argument("--json", action="store_true", help="one line per run instead of a table")
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    pairs = [(a, d) for a in options.attacks.split(",") for d in options.defences.split(",")]
    results = []
    console = Console(stderr=True)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(pairs))
        for attack, defence in pairs:
            progress.update(task, description=f"{attack} against {defence}")
            results.append(measure(options.method, options.seed, attack, defence, options.overrides))
            progress.advance(task)
            if options.json:
                print(json.dumps(results[-1]), flush=True)
    if not options.json:
        title = f"{options.method}, seed {options.seed}, 2 of 10 clients hostile: Avg (last), %"
        Console().print(table(results, title))


if __name__ == "__main__":
    main()
