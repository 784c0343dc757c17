"""What no single key can tell about tasks, classes and clients."""

from collections.abc import Callable

from pip_flower.config import Config

Fail = Callable[[str, str, str], None]


def check_data_keys(config: Config, fail: Fail) -> None:
    """`fail(key, problem, remedy)` for what does not go together."""
    _check_tasks(config, fail)
    _check_classes(config, fail)
    _check_population(config, fail)
    if config.partition.scheme == "local":
        _check_local(config, fail)


def _check_tasks(config: Config, fail: Fail) -> None:
    classes, tasks, base = config.dataset.classes, config.schedule.tasks, config.schedule.base_classes
    if not base and classes % tasks:
        fail(
            "schedule.tasks",
            f"{tasks} tasks do not divide the {classes} classes equally",
            f"Give a divisor of dataset.classes = {classes}, or a larger first task by schedule.base_classes",
        )
    increments = tasks - 1
    if base and (not increments or base >= classes or (classes - base) % increments):
        fail(
            "schedule.base_classes",
            f"{base} classes first leave {classes - base} for {increments} further tasks of equal size",
            "Let (dataset.classes - schedule.base_classes) be a multiple of (schedule.tasks - 1)",
        )


def _check_classes(config: Config, fail: Fail) -> None:
    dataset = config.dataset
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
