"""`pip-flower data`: get a data set ready, look at it, and see who would hold what."""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pip_flower.commands.choices import selection_of
from pip_flower.config.compose import Selection
from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import Config, DatasetConfig
from pip_flower.data.download import fetch
from pip_flower.data.loading import load_data, open_data
from pip_flower.data.notices import say
from pip_flower.data.partition import partition_task
from pip_flower.data.population import active_clients
from pip_flower.data.samples import ImageData, Samples
from pip_flower.data.sources.base import Source
from pip_flower.data.sources.registry import source_named
from pip_flower.data.sources.trees import ARCHIVES, MissingDataError
from pip_flower.data.tasks import split_tasks
from pip_flower.method.configuration import load_config
from pip_flower.models import embedded
from pip_flower.reporting.data_pictures import contact_sheet, partition_picture
from pip_flower.runtime.process import cache_directory
from pip_flower.storage.places import require_writable

# Looking at data takes no backbone; naming one settles that none need be chosen.
_ANY_BACKBONE = f"backbone.name={embedded.NAME}"


def prepare(options: argparse.Namespace, console: Console) -> int:
    """Download what is missing, where that is possible, and decode it."""
    config = _config_of(options)
    source = source_named(config.dataset.source)
    if source.needs_files and not config.dataset.data_dir:
        raise ConfigError("--data-dir", "is missing", f"Give {source.wanted}")
    dataset = _downloaded(config.dataset, source) if source.archive else config.dataset
    data = open_data(dataset, cache_directory(config.runtime))
    console.print(_summary(options.name, dataset, data))
    given = f" --data-dir {dataset.data_dir}" if source.needs_files else ""
    console.print(f"ready; use it with:  --dataset {options.name}{given}", highlight=False, soft_wrap=True)
    return 0


def info(options: argparse.Namespace, console: Console) -> int:
    """Print classes, counts and sizes, and draw a contact sheet."""
    sheet = Path(options.sheet or f"{options.name}-images.png").expanduser().resolve()
    require_writable("--sheet", sheet.parent)
    config = _config_of(options)
    data = open_data(config.dataset, cache_directory(config.runtime))
    console.print(_summary(options.name, config.dataset, data))
    console.print(f"classes: {_class_list(data.class_names)}", highlight=False)
    contact_sheet(data, sheet)
    console.print(f"contact sheet: {sheet}", highlight=False, soft_wrap=True)
    return 0


def partition(options: argparse.Namespace, console: Console) -> int:
    """Print, and draw if asked to, how many samples of each task clients hold."""
    config = load_config(_with(selection_of(options), _ANY_BACKBONE))
    plot = Path(options.plot).expanduser().resolve()
    require_writable("--plot", plot.parent)
    if config.partition.scheme == "local":
        raise ConfigError(
            "partition.scheme", "every node holds its own images", "There is nothing to deal out"
        )
    data = load_data(config.dataset, cache_directory(config.runtime))
    tasks = split_tasks(config)
    order = np.array(tasks.seen(len(tasks)))
    counts = np.zeros((config.federation.clients, len(order)), dtype=np.int64)
    table = Table(box=SIMPLE_HEAD, title=f"{config.dataset.source}: samples per client, seed {config.seed}")
    for title in ("task", "classes", "clients", "samples", "fewest", "median", "most", "without"):
        table.add_column(title, justify="right")
    for task, classes in enumerate(tasks.classes):
        parts = partition_task(config, tasks, data.train.labels, task, "train")
        for client, rows in enumerate(parts):
            held = np.bincount(data.train.labels[rows], minlength=config.dataset.classes)
            counts[client] += np.where(np.isin(order, classes), held[order], 0)
        active = active_clients(config, task)
        sizes = [len(parts[client]) for client in active]
        spread = (min(sizes), int(np.median(sizes)), max(sizes), sizes.count(0))
        table.add_row(*map(str, (task + 1, len(classes), len(active), sum(sizes), *spread)))
    console.print(table)
    if options.plot:
        partition_picture(counts, [len(classes) for classes in tasks.classes], plot)
        console.print(f"picture: {plot}", highlight=False, soft_wrap=True)
    return 0


def _parts(data: ImageData) -> list[tuple[str, Samples]]:
    parts = [("training", data.train), ("validation", data.validation), ("test", data.test)]
    return [(title, samples) for title, samples in parts if title != "validation" or len(samples)]


def _summary(name: str, config: DatasetConfig, data: ImageData) -> Table:
    table = Table(box=SIMPLE_HEAD, title=f"{name}: {len(data.class_names)} classes", show_header=True)
    for title in ("", "images", "per class", "size", "MB decoded"):
        table.add_column(title, justify="right")
    for title, samples in _parts(data):
        per_class = np.bincount(samples.labels, minlength=len(data.class_names))
        low, high = (int(per_class.min(initial=1 << 60)), int(per_class.max(initial=0)))
        shape = samples.images[:1].shape[1:]
        table.add_row(
            title,
            f"{len(samples):,}",
            str(high) if low == high else f"{low} to {high}",
            f"{shape[1]} x {shape[0]}",
            f"{len(samples) * int(np.prod(shape)) / 1e6:,.1f}",
        )
    if len(data.class_names) != config.classes:
        table.caption = f"set dataset.classes={len(data.class_names)} to use all of them"
    if data.skipped:
        table.caption = f"{len(data.skipped)} unreadable images skipped, the first: {data.skipped[0]}"
    return table


def _class_list(names: tuple[str, ...], shown: int = 12) -> str:
    listed = [f"{label} {name.split(',')[0]}" for label, name in enumerate(names)]
    return ", ".join(listed if len(listed) <= shown else [*listed[: shown - 1], "...", listed[-1]])


def _downloaded(config: DatasetConfig, source: Source) -> DatasetConfig:
    """The archive in the directory given, checked or downloaded, unless the data set is there unpacked."""
    directory = Path(config.data_dir)
    if source.archive is None or directory.is_file() or directory.name.endswith(ARCHIVES):
        return config
    if not (directory / source.archive.name).is_file():
        try:
            source.listed(config)
        except MissingDataError:
            say(f"downloading {source.archive.url} to {directory}")
        else:
            return config
    return replace(config, data_dir=str(fetch(source.archive, directory)))


def _config_of(options: argparse.Namespace) -> Config:
    """The data set of a conf/dataset file as it is, however many classes and tasks it may get."""
    selection = replace(selection_of(options), dataset=options.name)
    return load_config(_with(selection, f"schedule.tasks=1 schedule.rounds=1 {_ANY_BACKBONE}"))


def _with(selection: Selection, overrides: str) -> Selection:
    """What was selected wins."""
    return replace(selection, overrides=f"{overrides} {selection.overrides}")
