"""Images per second that pip-drift and PIP-DualPrompt classify, in one process, with nothing cached.

    python benchmarks/prediction.py --backbone vit_tiny_patch16_224 --images 200

PIP passes every image through the frozen ViT for its query, and again with the prompts that the query finds;
pip-drift passes it once. Weights are random: what a pass costs does not depend on their values.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from pip_flower.arrays import pick
from pip_flower.config.compose import Selection
from pip_flower.data.samples import Samples
from pip_flower.method.base import Method
from pip_flower.method.configuration import load_config
from pip_flower.method.registry import make_method
from pip_flower.method.workspace import Workspace

METHODS = ("pip-dualprompt", "pip-drift")
TASKS = 10


def made(label: str, backbone: str, cache: Path) -> Method:
    """The method on its own, for ten tasks of ten classes."""
    overrides = (
        f"backbone.name={backbone} backbone.pretrained=false runtime.cache_dir={cache} dataset.classes=100 "
        f"schedule.tasks={TASKS} schedule.rounds={TASKS} evaluation.batch_size=32"
    )
    return make_method(Workspace(load_config(Selection(method=label, overrides=overrides))))


def learnt(method: Method) -> dict[str, torch.Tensor]:
    """Arrays as they are after the last task, with random values where training would have put others."""
    arrays: dict[str, np.ndarray] = {}
    for task in range(TASKS):
        arrays |= method.start_task(task, arrays)
    dim = method.workspace.backbone.dim
    arrays |= {"discriminant.weight": np.zeros((100, dim), np.float32)}
    arrays |= {"discriminant.bias": np.zeros(100, np.float32)}
    needed = pick(arrays, method.predicting(TASKS))
    return {name: torch.from_numpy(np.array(value)) for name, value in needed.items()}


def images(count: int, side: int, seed: int) -> Samples:
    """Noise, new with every seed, so that no query is known yet."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    ids = np.arange(count) + seed * count
    return Samples(pixels, np.zeros(count, np.int64), ids)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--backbone", default="vit_tiny_patch16_224", help="a timm ViT")
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    best: dict[str, float] = dict.fromkeys(METHODS, 0.0)
    with tempfile.TemporaryDirectory() as cache:
        methods = {label: made(label, options.backbone, Path(cache)) for label in METHODS}
        states = {label: learnt(method) for label, method in methods.items()}
        for repeat in range(options.repeats + 1):
            for label, method in methods.items():
                samples = images(options.images, 64, repeat)
                began = time.perf_counter()
                method.scores(states[label], samples, TASKS)
                # The first repeat warms up.
                rate = options.images / (time.perf_counter() - began)
                best[label] = max(best[label], rate if repeat else 0.0)
    table = Table(title=f"images per second, {options.backbone}, {torch.get_num_threads()} thread(s)")
    table.add_column("method")
    table.add_column("images/s", justify="right")
    table.add_column("ratio", justify="right")
    for label, rate in best.items():
        table.add_row(label, f"{rate:.1f}", f"{rate / best[METHODS[0]]:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
