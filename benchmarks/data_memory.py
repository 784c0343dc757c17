"""What a data set costs in time and memory when two Ray actors use it.

    python benchmarks/data_memory.py                            # CIFAR-100's and TinyImageNet's sizes
    python benchmarks/data_memory.py --images 5000              # smaller ones

Synthetic images in the true layouts (python pickles; a zip of JPEG files). Two actors start at the same
time: one decodes while the other waits. Two new actors then find the images decoded, read every one of them,
and report what memory that took. Memory is what the kernel says of the process: anonymous memory is its own,
file memory is mapped and shared. For comparison the actors then make a copy each, as they would need without
a store.
"""

import argparse
import io
import os
import pickle
import resource
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import numpy as np
import ray
from PIL import Image
from rich.console import Console
from rich.table import Table

ACTORS = 2
MB = 1e6


def write_cifar(directory: Path, count: int) -> Path:
    """Pickles of `count` training images and a fifth as many test images, 32 x 32."""
    rng = np.random.default_rng(0)
    root = directory / "cifar-100-python"
    root.mkdir()
    for name, n in (("train", count), ("test", count // 5)):
        labels = [row % 100 for row in range(n)]
        data = {"data": rng.integers(0, 256, (n, 3072), dtype=np.uint8), "fine_labels": labels}
        (root / name).write_bytes(pickle.dumps(data))
    (root / "meta").write_bytes(pickle.dumps({"fine_label_names": [f"class {c}" for c in range(100)]}))
    return root


def write_tiny(directory: Path, count: int) -> Path:
    """A zip of `count` training JPEGs and a tenth as many for validation, 64 x 64; a few hundred differ."""
    rng = np.random.default_rng(0)
    pool = [_jpeg(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)) for _ in range(500)]
    wnids = [f"n{label:08d}" for label in range(200)]
    path = directory / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny-imagenet-200/wnids.txt", "\n".join(wnids))
        for row in range(count):
            wnid = wnids[row % 200]
            name = f"tiny-imagenet-200/train/{wnid}/images/{wnid}_{row // 200}.JPEG"
            archive.writestr(name, pool[row % len(pool)])
        lines = []
        for row in range(count // 10):
            archive.writestr(f"tiny-imagenet-200/val/images/val_{row}.JPEG", pool[row % len(pool)])
            lines.append(f"val_{row}.JPEG\t{wnids[row % 200]}\t0\t0\t62\t62\n")
        archive.writestr("tiny-imagenet-200/val/val_annotations.txt", "".join(lines))
    return path


def _jpeg(small: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(small).resize((64, 64), Image.Resampling.BICUBIC).save(buffer, "JPEG")
    return buffer.getvalue()


def memory() -> dict[str, float]:
    """Of this process, in MB: its own (anonymous) and mapped from files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kilobytes = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Rss")}
    return {"own": int(kilobytes["RssAnon"]) * 1024 / MB, "mapped": int(kilobytes["RssFile"]) * 1024 / MB}


class User:
    """A process that works with the data set."""

    def __init__(self, source: str, path: str, cache: str) -> None:
        from pip_flower.config.compose import Selection
        from pip_flower.method.configuration import load_config

        chosen = Selection(dataset=source, data_dir=path, overrides="backbone.name=embedded")
        self.config = load_config(chosen).dataset
        self.cache = Path(cache)
        self.before = memory()

    def open(self) -> tuple[float, float]:
        """Seconds to open the data set, and the most memory of its own that took, in MB."""
        from pip_flower.data.loading import load_data

        high = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.monotonic()
        self.data = load_data(self.config, self.cache)
        seconds = time.monotonic() - began
        return seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - high) * 1024 / MB

    def read(self, batch: int = 256) -> tuple[float, dict[str, float]]:
        """Read every training image; seconds and what memory has grown by."""
        began = time.monotonic()
        images = self.data.train.images
        for first in range(0, len(images), batch):
            images[np.arange(first, min(first + batch, len(images)))]
        return time.monotonic() - began, self._growth()

    def copy(self) -> dict[str, float]:
        """What memory grows by with a copy of the images."""
        self.copied = self.data.train.images[:]
        return self._growth()

    def _growth(self) -> dict[str, float]:
        now = memory()
        return {kind: now[kind] - self.before[kind] for kind in now}


def measure(source: str, path: Path, cache: Path) -> dict[str, Any]:
    """All figures of one data set."""

    def actors() -> list[Any]:
        return [ray.remote(num_cpus=1)(User).remote(source, str(path), str(cache)) for _ in range(ACTORS)]

    first = ray.get([actor.open.remote() for actor in actors()])
    users = actors()
    again = ray.get([actor.open.remote() for actor in users])
    read = ray.get([actor.read.remote() for actor in users])
    copied = ray.get([actor.copy.remote() for actor in users])
    return {
        "first start (s)": [f"{seconds:.1f}" for seconds, _ in first],
        "  peak of it (MB)": [f"{peak:,.0f}" for _, peak in first],
        "later start (s)": [f"{seconds:.3f}" for seconds, _ in again],
        "all images read (s)": [f"{seconds:.1f}" for seconds, _ in read],
        "  own memory (MB)": [f"{grown['own']:,.0f}" for _, grown in read],
        "  shared, mapped (MB)": [f"{grown['mapped']:,.0f}" for _, grown in read],
        "a copy would be (MB)": [f"{grown['own']:,.0f}" for grown in copied],
    }


def main() -> None:
    """Make the data sets, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, default=0, help="training images; default: as published")
    options = parser.parse_args()
    makers: dict[str, tuple[Callable[[Path, int], Path], int]] = {
        "cifar100": (write_cifar, 50_000),
        "tinyimagenet": (write_tiny, 100_000),
    }
    # Without the variable the actors would import an installed package, not this checkout.
    paths = os.pathsep.join([str(Path(__file__).resolve().parent.parent), *sys.path])
    ray.init(num_cpus=ACTORS, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": paths}})
    console = Console()
    for source, (make, published) in makers.items():
        count = options.images or published
        with tempfile.TemporaryDirectory() as scratch:
            path = make(Path(scratch), count)
            figures = measure(source, path, Path(scratch) / "cache")
        titles = [f"actor {actor + 1}" for actor in range(ACTORS)]
        table = Table("", *titles, title=f"{source}, {count:,} training images")
        for name, values in figures.items():
            table.add_row(name, *values)
        console.print(table)
    ray.shutdown()


if __name__ == "__main__":
    main()
