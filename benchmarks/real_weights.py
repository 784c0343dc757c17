"""Nearest-class-mean accuracy of frozen features on real images: real weights beside a random-init twin.

    PIP_FLOWER_ASSETS=... python benchmarks/real_weights.py
    python benchmarks/real_weights.py --assets DIR --sizes 224,112 --train 20 --test 20

DIR holds weight files named after the timm ViT they fit (deit_tiny_patch16_224.safetensors), and images:
*.npz (x_train, y_train, x_test, y_test) and *.zip (TinyImageNet's layout).
"""

import argparse
import os
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from pip_flower import prototypes
from pip_flower.config.compose import Selection
from pip_flower.config.sections import BackboneConfig, Config
from pip_flower.data.batches import batches
from pip_flower.data.loading import load_data
from pip_flower.data.samples import ImageData, Samples
from pip_flower.data.views import Views
from pip_flower.fidelity import Paper
from pip_flower.method.configuration import load_config
from pip_flower.models.backbone import Backbone, load_backbone
from pip_flower.runtime.devices import prepare_process

ENDINGS = (".safetensors", ".pth", ".pt", ".bin")
SOURCES = {".npz": "npz", ".zip": "tinyimagenet"}


def nearest_class_mean(backbone: Backbone, views: Views, data: ImageData) -> float:
    """Percent of test images whose feature is nearest (cosine) to the mean of its own class."""
    table = prototypes.summarise(_features(backbone, views, data.train), data.train.labels, Paper())
    means = table.mean / np.linalg.norm(table.mean, axis=1, keepdims=True)
    nearest = table.classes[(_features(backbone, views, data.test) @ means.T).argmax(axis=1)]
    return float(100 * (nearest == data.test.labels).mean())


def _features(backbone: Backbone, views: Views, samples: Samples) -> NDArray[np.float32]:
    rows = batches(np.arange(len(samples)), 32)
    return torch.cat([backbone.query(views.test(samples.images[part])) for part in rows]).numpy()


def backbones(path: Path, size: int, config: Config) -> Iterator[tuple[str, Backbone]]:
    """The ViT that the file is named after, with the file's weights and with random ones."""
    for title, weights in ((path.name, str(path)), ("random init", "")):
        settings = BackboneConfig(name=path.stem, pretrained=False, weights=weights, image_size=size)
        yield title, load_backbone(settings, config.runtime, torch.device("cpu"))


def configuration(options: argparse.Namespace, source: Path) -> Config:
    """The first images of the first classes of a file."""
    overrides = f"dataset.normalize=backbone dataset.classes={options.classes} schedule.tasks=1"
    overrides += " backbone.name=embedded"  # none is used: each file has its own
    overrides += f" schedule.rounds=1 runtime.device=cpu runtime.threads={options.threads}"
    keep = {"classes": options.classes, "train": options.train, "test": options.test}
    overrides += "".join(f" dataset.keep.{name}={count}" for name, count in keep.items())
    chosen = Selection(dataset=SOURCES[source.suffix], overrides=overrides, data_dir=str(source))
    return load_config(chosen)


def measure(options: argparse.Namespace, assets: Path) -> Table:
    """A row for each weight file, data set, input size, and twin."""
    sources = sorted(path for path in assets.iterdir() if path.suffix in SOURCES)
    weights = sorted(path for path in assets.iterdir() if path.suffix in ENDINGS)
    if not weights or not sources:
        sys.exit(f"{assets} holds no weight files or no images (*.npz, *.zip)")
    table = Table(title=f"Nearest class mean, {options.classes} classes, {options.train} images each")
    for title in ("images", "px", "weights"):
        table.add_column(title)
    table.add_column("accuracy (%)", justify="right")
    for source in sources:
        config = configuration(options, source)
        device = prepare_process(config.runtime)
        data = load_data(config.dataset)
        for size, path in product(map(int, options.sizes.split(",")), weights):
            for title, backbone in backbones(path, size, config):
                views = Views(config.dataset, size, backbone.mean, backbone.std, device)
                accuracy = nearest_class_mean(backbone, views, data)
                table.add_row(source.name, str(size), title, f"{accuracy:.1f}")
    return table


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--assets", default=os.environ.get("PIP_FLOWER_ASSETS", ""), help="default: $PIP_FLOWER_ASSETS"
    )
    parser.add_argument("--sizes", default="224,112", help="input sizes in pixels, separated by commas")
    parser.add_argument("--classes", type=int, default=50, help="number of classes")
    parser.add_argument("--train", type=int, default=20, help="images of a class that make its mean")
    parser.add_argument("--test", type=int, default=20, help="test images of a class")
    parser.add_argument("--threads", type=int, default=2, help="torch threads")
    options = parser.parse_args()
    if not options.assets or not Path(options.assets).is_dir():
        sys.exit("Give a directory of weights and images: --assets DIR or PIP_FLOWER_ASSETS")
    Console(soft_wrap=True).print(measure(options, Path(options.assets)))


if __name__ == "__main__":
    main()
