"""Prototypes, aggregation and whole local epochs."""

from collections.abc import Iterator

import numpy as np
import torch

from pip_flower import prototypes
from pip_flower.aggregation import weighted_mean
from pip_flower.fidelity import Paper, Released
from pip_flower.models.backbone import Backbone
from pip_flower.parity.client_round import RawBatches, RecordedClient, Replay, check_table
from pip_flower.parity.deviation import TOLERANCE_AFTER_STEP, Deviation, compare, difference
from pip_flower.parity.fixtures import Array, Fixture
from pip_flower.parity.reference import ReferenceModel, table_of

_HEAD = ("head.weight", "head.bias")


def check_prototypes(fixture: Fixture, backbone: Backbone, class_mask: Array) -> Iterator[Deviation]:
    """`prototype.npz`: a client's own prototypes from three raw batches, and a class with one sample."""
    model = ReferenceModel(backbone, fixture.under("param."), class_mask, matching=1.0)
    task = int(fixture["task_id"])
    for batch in fixture.groups(r"(batch\d+)\.x"):
        kept = np.isin(fixture[f"{batch}.y"], fixture["available_classes"])
        images = torch.from_numpy(fixture[f"{batch}.x"][kept])
        yield compare(fixture, f"{batch}.features", model.trainer(task, 1.0).features(images, None))
        yield compare(fixture, f"{batch}.kept_y", fixture[f"{batch}.y"][kept], tolerance=0.0)
    client = RecordedClient(model, task, RawBatches.stored(fixture, epochs=1))
    yield from check_table(fixture, "", client.prototypes())
    labels = fixture["nan.y"]
    order = np.arange(len(labels))
    single = RawBatches(fixture["nan.x"], labels, len(labels), [order, order], np.unique(labels))
    yield from check_table(fixture, "nan.", RecordedClient(model, task, single).prototypes())


def check_global_prototypes(fixture: Fixture) -> Iterator[Deviation]:
    """`fed_weighted_avg_prototype.npz`: the released code's table, and Eq. 15 beside it."""
    tables = [table_of(fixture, f"{client}.") for client in fixture.groups(r"(client\d+)\.mu")]
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
    """`local_epoch.npz`: a round of one epoch over three raw batches, without (v1) and with (v2) injected
    global prototypes."""
    model = ReferenceModel(backbone, fixture.under("param."), class_mask, fixture.number("pull_coeff"))
    task = int(fixture["task_id"])
    known = table_of(fixture, "v2.global.")
    draw = fixture["v2.rand_u01"][_order(fixture["v2.global.classes"])]
    copies = np.full(len(known), 2)
    injected, _ = prototypes.augmented(known, copies, Replay(draw), model.fidelity)
    yield compare(fixture, "v2.injected_proto", injected)
    raw = RawBatches.stored(fixture, epochs=1)
    client = RecordedClient(model, task, raw, [draw], fixture.number("lr"))
    for version, sent in (("v1", prototypes.empty(backbone.dim)), ("v2", known)):
        update = client.fit(sent)
        trained = {name: torch.from_numpy(np.array(value)) for name, value in update.arrays.items()}
        for name, ours in model.as_reference(trained, otherwise=model.state).items():
            yield compare(fixture, f"{version}.after_epoch.{name}", ours, TOLERANCE_AFTER_STEP)
        yield compare(fixture, f"{version}.mean_loss", update.metrics["last_epoch_loss"])


def _weights(fixture: Fixture) -> list[float]:
    return [Released().client_weight(int(rho), samples=1) for rho in fixture["clients_weight"].reshape(-1)]


def _order(classes: Array) -> Array:
    """Our tables are sorted by class, the reference's are not."""
    return np.argsort(classes)
