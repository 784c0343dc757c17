"""Prototypes, aggregation and whole local epochs."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from pip_flower import prototypes
from pip_flower.aggregation import weighted_mean
from pip_flower.fidelity import Paper, Released
from pip_flower.methods.pip.training import Injection
from pip_flower.models.backbone import Backbone
from pip_flower.models.prompts import Batch
from pip_flower.parity.deviation import TOLERANCE_AFTER_STEP, Deviation, compare, difference
from pip_flower.parity.fixtures import Array, Fixture
from pip_flower.parity.reference import ReferenceModel
from pip_flower.prototypes import Prototypes

_HEAD = ("head.weight", "head.bias")


def check_prototypes(fixture: Fixture, backbone: Backbone, class_mask: Array) -> Iterator[Deviation]:
    """`prototype.npz`: a client's own prototypes from three batches, and a class with one sample."""
    model = ReferenceModel(backbone, fixture.under("param."), class_mask, matching=1.0)
    tables = []
    for batch in fixture.groups(r"(batch\d+)\.x"):
        kept = np.isin(fixture[f"{batch}.y"], fixture["available_classes"])
        features = _features(model, fixture, batch, kept)
        yield compare(fixture, f"{batch}.features", features)
        labels = fixture[f"{batch}.y"][kept]
        yield compare(fixture, f"{batch}.kept_y", labels, tolerance=0.0)
        tables.append(prototypes.summarise(features, labels, model.fidelity))
    yield from _check_table(fixture, "", prototypes.pool(tables))
    everything = np.ones(len(fixture["nan.y"]), dtype=np.bool_)
    single = _features(model, fixture, "nan", everything)
    table = prototypes.pool([prototypes.summarise(single, fixture["nan.y"], model.fidelity)])
    yield from _check_table(fixture, "nan.", table)


def check_global_prototypes(fixture: Fixture) -> Iterator[Deviation]:
    """`fed_weighted_avg_prototype.npz`: the released code's table, and Eq. 15 beside it."""
    tables = [
        _table(fixture[f"{client}.classes"], fixture[f"{client}.mu"], fixture[f"{client}.var"])
        for client in fixture.groups(r"(client\d+)\.mu")
    ]
    released, paper = Released(), Paper()
    weights = _weights(fixture)
    merged = prototypes.merge(tables, weights, released)
    order = _order(fixture["global.classes"])
    classes = fixture["global.classes"][order]
    yield difference(fixture.name, "global.classes", merged.classes, classes, tolerance=0.0)
    yield difference(fixture.name, "global.mu", merged.mean, fixture["global.mu"][order])
    reference = fixture["global.var_reference"][order]
    yield difference(fixture.name, "global.var_reference", merged.variance, reference)
    exact = prototypes.merge(tables, weights, paper).variance
    yield difference(fixture.name, "paper_eq15.var", exact, fixture["paper_eq15.var"][order])


def check_averages(fixture: Fixture) -> Iterator[Deviation]:
    """`fed_weighted_avg.npz`: the three ways in which the server averages prompts, keys and head."""
    clients = [fixture.under(f"{client}.") for client in fixture.groups(r"(client\d+)\.g_prompt")]
    before = fixture.under("server_before.")
    released, equal = Released(), [1.0] * len(clients)
    rules = {
        "FedWeightedAvg": (_weights(fixture), released.averages_head(False)),
        "FedWeightedAvgWithHead": (_weights(fixture), released.averages_head(True)),
        "FedAvg": (equal, released.averages_head(False)),
    }
    for rule, (weights, with_head) in rules.items():
        averaged = [name for name in before if with_head or name not in _HEAD]
        mean = weighted_mean([{name: client[name] for name in averaged} for client in clients], weights)
        for name, ours in (before | mean).items():
            yield compare(fixture, f"{rule}.{name}", ours)


def check_epochs(fixture: Fixture, backbone: Backbone, class_mask: Array) -> Iterator[Deviation]:
    """`local_epoch.npz`: an epoch without (v1) and with (v2) injected global prototypes."""
    matching = fixture.number("pull_coeff")
    model = ReferenceModel(backbone, fixture.under("param."), class_mask, matching)
    task = int(fixture["task_id"])
    injection, features = _injection(fixture, model, task)
    yield compare(fixture, "v2.injected_proto", features)
    for version, injected in (("v1", None), ("v2", injection)):
        trainer = model.trainer(task, fixture.number("lr"))
        loss = trainer.epoch(_batches(fixture, model, task), injected)
        for name, ours in model.as_reference(trainer.state, otherwise=model.state).items():
            yield compare(fixture, f"{version}.after_epoch.{name}", ours, TOLERANCE_AFTER_STEP)
        yield compare(fixture, f"{version}.mean_loss", loss)


class Replay(np.random.Generator):
    """A generator that gives out a stored draw."""

    def __init__(self, draw: Array) -> None:
        super().__init__(np.random.PCG64(0))
        self._draw = draw

    def random(self, size: Any = None, dtype: Any = None, out: Any = None) -> Any:  # noqa: ARG002
        """The stored draw, if it has the shape that is asked for."""
        if tuple(size) != self._draw.shape:
            raise ValueError(f"a draw of shape {size} was asked for, the stored one is {self._draw.shape}")
        return self._draw


def _injection(fixture: Fixture, model: ReferenceModel, task: int) -> tuple[Injection, Array]:
    table = _table(fixture["v2.global.classes"], fixture["v2.global.mu"], fixture["v2.global.var"])
    draw = fixture["v2.rand_u01"][_order(fixture["v2.global.classes"])]
    copies = np.full(len(table), 2)
    features, labels = prototypes.augmented(table, copies, Replay(draw), model.fidelity)
    return Injection(torch.from_numpy(features).float(), model.targets(labels, task)), features


def _batches(fixture: Fixture, model: ReferenceModel, task: int) -> Iterator[Batch]:
    for batch in fixture.groups(r"(batch\d+)\.x"):
        kept = np.isin(fixture[f"{batch}.y"], fixture["available_classes"])
        images = torch.from_numpy(fixture[f"{batch}.x"][kept])
        query = model.structure.backbone.query(images)
        yield Batch(images, query, model.targets(fixture[f"{batch}.y"][kept], task))


def _features(model: ReferenceModel, fixture: Fixture, batch: str, kept: Array) -> Array:
    task = int(fixture["task_id"])
    images = torch.from_numpy(fixture[f"{batch}.x"][kept])
    return model.trainer(task, 1.0).features(images, None).numpy()


def _check_table(fixture: Fixture, part: str, table: Prototypes) -> Iterator[Deviation]:
    order = _order(fixture[f"{part}classes"])
    for name, ours in (("classes", table.classes), ("mu", table.mean), ("var", table.variance)):
        yield difference(fixture.name, f"{part}{name}", ours, fixture[f"{part}{name}"][order])


def _table(classes: Array, mean: Array, variance: Array) -> Prototypes:
    order = _order(classes)
    count = np.ones(len(classes), dtype=np.int64)
    return Prototypes(
        classes[order], mean[order].astype(np.float64), variance[order].astype(np.float64), count
    )


def _weights(fixture: Fixture) -> list[float]:
    return [Released().client_weight(int(rho), samples=1) for rho in fixture["clients_weight"].reshape(-1)]


def _order(classes: Array) -> Array:
    """Our tables are sorted by class, the reference's are not."""
    return np.argsort(classes)
