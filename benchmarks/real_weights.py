"""Nearest-class-mean accuracy of frozen features on real images: real weights beside a random-init twin.

    PIP_FLOWER_ASSETS=... python benchmarks/real_weights.py
    python benchmarks/real_weights.py --assets DIR --sizes 224,112 --train 20 --test 20

DIR holds weight files named after the timm ViT they fit (deit_tiny_patch16_224.safetensors), and images:
*.npz (x_train, y_train, x_test, y_test) and *.zip (TinyImageNet's layout).
"""

import argparse
import io
import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.table import Table

from pip_flower import prototypes
from pip_flower.config import BackboneConfig, Config
from pip_flower.config_files import Selection, load_config
from pip_flower.data.views import Views
from pip_flower.fidelity import Paper
from pip_flower.methods.registry import options_type
from pip_flower.models.backbone import Backbone, load_backbone

ENDINGS = (".safetensors", ".pth", ".pt", ".bin")
Images = NDArray[np.uint8]
Labels = NDArray[np.int64]
Split = tuple[Images, Labels, Images, Labels]


def read_npz(path: Path, classes: int, train: int, test: int) -> Split:
    """The first images of the first classes."""
    with np.load(path, allow_pickle=False) as stored:
        parts = [
            _first(stored[f"x_{p}"], stored[f"y_{p}"], classes, n)
            for p, n in (("train", train), ("test", test))
        ]
    return *parts[0], *parts[1]


def read_tiny_imagenet(path: Path, classes: int, train: int, test: int) -> Split:
    """Only the images that are asked for are decoded."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        root = next(name for name in names if name.endswith("wnids.txt")).removesuffix("wnids.txt")
        wnids = archive.read(f"{root}wnids.txt").decode().split()[:classes]
        listed = archive.read(f"{root}val/val_annotations.txt").decode().splitlines()
        held = [line.split("\t")[:2] for line in listed]
        trained, tested = [], []
        for label, wnid in enumerate(wnids):
            inside = [n for n in names if n.startswith(f"{root}train/{wnid}/images/") and n.endswith(".JPEG")]
            trained += [(name, label) for name in sorted(inside)[:train]]
            own = [f"{root}val/images/{name}" for name, found in held if found == wnid]
            tested += [(name, label) for name in own[:test]]
        return *_decoded(archive, trained), *_decoded(archive, tested)


def _decoded(archive: zipfile.ZipFile, listed: list[tuple[str, int]]) -> tuple[Images, Labels]:
    pictures = [np.asarray(Image.open(io.BytesIO(archive.read(name))).convert("RGB")) for name, _ in listed]
    return np.stack(pictures), np.array([label for _, label in listed], dtype=np.int64)


def _first(images: Images, labels: Labels, classes: int, count: int) -> tuple[Images, Labels]:
    rows = np.concatenate([np.flatnonzero(labels == label)[:count] for label in range(classes)])
    return images[rows], labels[rows].astype(np.int64)


def nearest_class_mean(backbone: Backbone, views: Views, split: Split) -> float:
    """Percent of test images whose feature is nearest (cosine) to the mean of its own class."""
    x_train, y_train, x_test, y_test = split
    table = prototypes.summarise(_features(backbone, views, x_train), y_train, Paper())
    means = table.mean / np.linalg.norm(table.mean, axis=1, keepdims=True)
    nearest = table.classes[(_features(backbone, views, x_test) @ means.T).argmax(axis=1)]
    return float(100 * (nearest == y_test).mean())


def _features(backbone: Backbone, views: Views, images: Images) -> NDArray[np.float32]:
    found = [backbone.query(views.test(images[i : i + 32])) for i in range(0, len(images), 32)]
    return torch.cat(found).numpy()


def backbones(path: Path, size: int, config: Config) -> Iterator[tuple[str, Backbone]]:
    """The ViT that the file is named after, with the file's weights and with random ones."""
    for title, weights in ((path.name, str(path)), ("random init", "")):
        settings = BackboneConfig(name=path.stem, pretrained=False, weights=weights, image_size=size)
        yield title, load_backbone(settings, config.runtime, torch.device("cpu"))


def measure(options: argparse.Namespace, assets: Path) -> Table:
    """A row for each weight file, data set, input size, and twin."""
    overrides = f"dataset.normalize=backbone runtime.device=cpu runtime.threads={options.threads}"
    config = load_config(Selection(dataset="npz", overrides=overrides), options_type)
    torch.set_num_threads(options.threads)
    sources = dict.fromkeys(assets.glob("*.npz"), read_npz)
    sources |= dict.fromkeys(assets.glob("*.zip"), read_tiny_imagenet)
    weights = sorted(path for path in assets.iterdir() if path.suffix in ENDINGS)
    if not weights or not sources:
        sys.exit(f"{assets} holds no weight files or no images (*.npz, *.zip)")
    table = Table(title=f"Nearest class mean, {options.classes} classes, {options.train} images each")
    for title in ("images", "px", "weights"):
        table.add_column(title)
    table.add_column("accuracy (%)", justify="right")
    for source, read in sorted(sources.items()):
        split = read(source, options.classes, options.train, options.test)
        for size in map(int, options.sizes.split(",")):
            for path in weights:
                for title, backbone in backbones(path, size, config):
                    views = Views(config.dataset, size, backbone.mean, backbone.std, torch.device("cpu"))
                    accuracy = nearest_class_mean(backbone, views, split)
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
