"""What a checkpoint costs per round, in milliseconds and bytes.

    python benchmarks/checkpoint.py                        # in a temporary directory
    python benchmarks/checkpoint.py --directory /data/x    # on the disk that matters

Times are medians of the wall clock and include flushing to disk; sizes are those of the files. The models are
as large as those of the runs they are named after, in the last task; their numbers are random.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from pip_flower.client.state import ClientStates
from pip_flower.config.compose import Selection
from pip_flower.config.sections import CheckpointConfig
from pip_flower.method.configuration import load_config
from pip_flower.storage.checkpoints import Checkpoint, CheckpointStore, RunState
from pip_flower.storage.files import append_line
from pip_flower.storage.twin_lines import LinesPosition

Arrays = dict[str, NDArray[Any]]
RUN = "0" * 32


def prompts(dim: int, tasks: int, classes: int) -> Arrays:
    """PIP-DualPrompt after `tasks` tasks: prompts, keys, head and a Gaussian per class."""
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"general": (2, 2, 5, dim)}
    for task in range(tasks):
        shapes[f"expert.{task}"] = (3, 2, 5, dim)
        shapes[f"key.{task}"] = (dim,)
        shapes[f"head.{task}.weight"] = (classes // tasks, dim)
        shapes[f"head.{task}.bias"] = (classes // tasks,)
    shapes |= {"prototype.mean": (classes, dim), "prototype.variance": (classes, dim)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def sizes(count: int) -> Arrays:
    """So many float32 numbers in arrays of a million."""
    rng = np.random.default_rng(0)
    parts = [min(10**6, count - start) for start in range(0, count, 10**6)]
    return {f"x.{i}": rng.normal(size=size).astype(np.float32) for i, size in enumerate(parts)}


MODELS: dict[str, Callable[[], Arrays]] = {
    "pip-dualprompt, digits, embedded ViT": lambda: prompts(96, 5, 10),
    "pip-dualprompt, CIFAR-100, ViT-B/16": lambda: prompts(768, 10, 100),
    "icarl, ResNet-18 and its teacher": lambda: sizes(2 * 11_200_000),
}


def milliseconds(work: Callable[[int], object], repeats: int) -> float:
    """Median of the wall clock."""
    found = []
    for repeat in range(1, repeats + 1):
        began = time.perf_counter()
        work(repeat)
        found.append(1000 * (time.perf_counter() - began))
    return median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, default=None, help="where to write (and clean up)")
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    plain = load_config(Selection()).as_mapping()
    metrics = LinesPosition()
    table = Table("what", "KB", "ms", title="cost of a round's checkpoint", title_justify="left")
    with tempfile.TemporaryDirectory(dir=options.directory) as scratch:
        for number, (name, make) in enumerate(MODELS.items()):
            arrays = make()
            store = CheckpointStore(Path(scratch) / str(number), CheckpointConfig("last", 1))
            written: list[int] = []

            def save(round_: int, store: CheckpointStore = store, arrays: Arrays = arrays) -> None:
                clients = dict.fromkeys(range(30), round_)
                state = RunState(round_, arrays, clients, clients)
                written.append(store.save(Checkpoint(RUN, plain, (10,) * 10, state, metrics)))  # noqa: B023

            cost = milliseconds(save, options.repeats)
            table.add_row(f"server: {name}", f"{written[-1] / 1000:,.0f}", f"{cost:.1f}")
        states = ClientStates(Path(scratch) / "states", RUN, 0)
        head = {"head": np.zeros((100, 769), np.float32)}
        cost = milliseconds(lambda round_: states.save(round_, round_ - 1, head), options.repeats)
        size = max(path.stat().st_size for path in states.directory.iterdir())
        table.add_row("client: private head, 100 classes, ViT-B/16", f"{size / 1000:,.0f}", f"{cost:.1f}")
        line, path = "x" * 700, Path(scratch) / "metrics.jsonl"
        cost = milliseconds(lambda _: append_line(path, line), options.repeats)
        table.add_row("server: a line of metrics.jsonl", "0.7", f"{cost:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
