"""What no single key of a configuration can tell: values that do not go together."""

import re
from collections.abc import Callable, Mapping

from pip_flower.config.paths import absolute_path
from pip_flower.config.schema import ConfigError, origin_of
from pip_flower.config.sections import Config

PATH_KEYS = ("dataset.data_dir", "backbone.weights", "runtime.state_dir", "runtime.cache_dir")
_SUGGESTED = 3
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
Fail = Callable[[str, str, str], None]


def check_config(config: Config, origins: Mapping[str, str]) -> None:
    """Refuse what does not go together; `origins` tells which source set a key."""

    def fail(key: str, problem: str, remedy: str) -> None:
        raise ConfigError(key, problem, remedy, origin_of(key, origins))

    _check_federation(config, fail)
    _check_aggregation(config, fail)
    _check_classes(config, fail)
    _check_tasks(config, fail)
    _check_population(config, fail)
    if config.partition.scheme == "local":
        _check_local(config, fail)
    _check_evaluation(config, fail)
    _check_views(config, fail)
    _check_device(config, fail)


def _check_federation(config: Config, fail: Fail) -> None:
    federation = config.federation
    if federation.clients_per_round > federation.clients:
        fail(
            "federation.clients_per_round",
            f"{federation.clients_per_round} clients cannot be drawn from {federation.clients}",
            f"Give at most federation.clients = {federation.clients}",
        )
    if federation.min_nodes > federation.clients:
        fail(
            "federation.min_nodes",
            f"{federation.min_nodes} nodes cannot be there: there are {federation.clients} clients",
            f"Give at most federation.clients = {federation.clients}",
        )
    if federation.min_clients > federation.clients_per_round:
        fail(
            "federation.min_clients",
            f"{federation.min_clients} replies cannot come from {federation.clients_per_round} clients",
            f"Give at most federation.clients_per_round = {federation.clients_per_round}",
        )


def _check_aggregation(config: Config, fail: Fail) -> None:
    rule = config.aggregation
    if config.fidelity == "released" and (rule.rule != "mean" or rule.clip_norm or rule.clip_prototypes):
        fail(
            "aggregation",
            "the released code averages, and knows no other rule and no clipping",
            "Give rule=mean, clip_norm=0 and clip_prototypes=0, or fidelity=paper",
        )


def _check_evaluation(config: Config, fail: Fail) -> None:
    if config.evaluation.split == "validation" and not config.dataset.validation_fraction:
        fail(
            "evaluation.split",
            "there are no validation images: dataset.validation_fraction is 0",
            "Set dataset.validation_fraction=0.2, or evaluation.split=test",
        )


def _check_views(config: Config, fail: Fail) -> None:
    for key in ("crop_scale", "crop_ratio"):
        low, high = getattr(config.dataset, key)
        if low > high:
            fail(f"dataset.{key}", f"{low} is above {high}", "Give [low, high]")


def _check_device(config: Config, fail: Fail) -> None:
    device = config.runtime.device
    if not _DEVICE.fullmatch(device):
        fail("runtime.device", f"{device!r} is not a device", "Give auto, cpu, cuda or cuda:N")


def check_paths(config: Config, origins: Mapping[str, str]) -> None:
    """Refuse paths that mean something else in another directory."""
    for key in PATH_KEYS:
        section, name = key.split(".")
        if path := getattr(getattr(config, section), name):
            absolute_path(key, path, origin_of(key, origins))


def _check_tasks(config: Config, fail: Fail) -> None:
    rounds = config.schedule.rounds
    if rounds % config.schedule.tasks:
        fail(
            "schedule.rounds",
            f"{rounds} rounds do not divide into {config.schedule.tasks} tasks",
            f"Give a multiple of schedule.tasks = {config.schedule.tasks}",
        )
    classes, tasks, base = config.dataset.classes, config.schedule.tasks, config.schedule.base_classes
    if not base and classes % tasks:
        fail(
            "schedule.tasks",
            f"{tasks} tasks do not divide the {classes} classes equally",
            f"Give {_splits(classes, tasks, rounds)}",
        )
    increments = tasks - 1
    if base and (not increments or base >= classes or (classes - base) % increments):
        fail(
            "schedule.base_classes",
            f"{base} classes first leave {classes - base} for {increments} further tasks of equal size",
            "Let (dataset.classes - schedule.base_classes) be a multiple of (schedule.tasks - 1)",
        )


def _splits(classes: int, tasks: int, rounds: int) -> str:
    """Overrides that share out the classes: in equal tasks, the numbers nearest to the one asked for first,
    and in as many as asked for with a larger first one."""

    def override(count: int) -> str:
        fitting = max(1, round(rounds / count)) * count
        more = f" schedule.rounds={fitting}" if fitting != rounds else ""
        return f"schedule.tasks={count}{more} ({count} x {classes // count} classes)"

    equal = [count for count in range(2, classes + 1) if classes % count == 0]
    told = [override(count) for count in sorted(equal, key=lambda count: abs(count - tasks))[:_SUGGESTED]]
    if 1 < tasks <= classes:
        size = classes // tasks
        first = classes - size * (tasks - 1)
        told.append(f"schedule.base_classes={first} ({first} classes, then {tasks - 1} x {size})")
    return ", or ".join(told)


def _check_classes(config: Config, fail: Fail) -> None:
    dataset = config.dataset
    if dataset.classes < 2:
        fail("dataset.classes", f"{dataset.classes} is too few to tell apart", "Give two or more")
    if dataset.class_order == "given" and sorted(dataset.given_order) != list(range(dataset.classes)):
        fail(
            "dataset.given_order",
            f"{len(dataset.given_order)} labels are not an order of all {dataset.classes} classes",
            f"Give every label from 0 to {dataset.classes - 1} once",
        )
    if dataset.class_order != "given" and dataset.given_order:
        fail(
            "dataset.given_order",
            f"is not used with dataset.class_order={dataset.class_order}",
            "Set dataset.class_order=given, or leave it empty",
        )
    if len(set(dataset.class_names)) != len(dataset.class_names):
        fail("dataset.class_names", "has a name twice", "Give every name once")
    if dataset.class_names and not dataset.keep.classes and len(dataset.class_names) != dataset.classes:
        fail(
            "dataset.class_names",
            f"{len(dataset.class_names)} names are not those of dataset.classes = {dataset.classes}",
            "Name every class once, or set dataset.classes to their number",
        )


def _check_population(config: Config, fail: Fail) -> None:
    initial, federation = config.population.initial, config.federation
    if initial > federation.clients:
        fail(
            "population.initial",
            f"{initial} clients cannot be there from the start: there are {federation.clients} in all",
            f"Give at most federation.clients = {federation.clients}",
        )
    if 0 < initial < federation.clients_per_round:
        fail(
            "population.initial",
            f"{federation.clients_per_round} clients cannot be drawn from the {initial} of the first task",
            f"Give at least federation.clients_per_round = {federation.clients_per_round}",
        )


def _check_local(config: Config, fail: Fail) -> None:
    if not config.dataset.class_names:
        fail(
            "dataset.class_names",
            "is empty, but a node that holds only some classes cannot tell their labels without it",
            "Give the names of all classes, in label order",
        )
    if config.fidelity == "released":
        fail(
            "partition.scheme",
            "clients of the released code draw from one pool of images, which local nodes do not have",
            "Set fidelity=paper",
        )
    if config.population.initial or config.population.retire:
        fail(
            "population",
            "who learns a task is known from the images that local nodes hold",
            "Leave population.initial and population.retire at 0",
        )
