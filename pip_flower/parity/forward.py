"""Forward passes, losses, gradients and one optimizer step of both prompt structures."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from pip_flower.methods.pip.training import Injection
from pip_flower.models.backbone import Backbone
from pip_flower.models.prompts import Batch
from pip_flower.models.prompts.base import cosine, unit
from pip_flower.models.prompts.dualprompt import DualPrompt
from pip_flower.models.prompts.l2p import L2P
from pip_flower.parity.deviation import TOLERANCE_AFTER_STEP, Deviation, compare, difference
from pip_flower.parity.fixtures import Fixture
from pip_flower.parity.reference import ReferenceModel


def check_forward(fixture: Fixture, backbone: Backbone) -> Iterator[Deviation]:
    """Every case of `dualprompt_forward.npz` or `l2p_forward.npz`."""
    params, mask = fixture.under("param."), fixture["class_mask"]
    model = ReferenceModel(backbone, params, mask, fixture.number("pull_coeff"))
    task = int(fixture["task_id"])
    for case in fixture.groups(r"([^.]+)\.x"):
        yield from _check_case(fixture, model, task, case)


def _check_case(fixture: Fixture, model: ReferenceModel, task: int, case: str) -> Iterator[Deviation]:
    images = fixture.tensor(f"{case}.x")
    query = model.structure.backbone.query(images)
    yield compare(fixture, f"{case}.query_pre_logits", query)
    yield compare(fixture, f"{case}.train.x_embed_norm", unit(query))
    yield from _check_training(fixture, model, task, case, query)
    yield from _check_selection(fixture, model, task, f"{case}.train", query)
    if fixture.has(f"{case}.eval.logits"):
        yield from _check_evaluation(fixture, model, case, images, query)
        yield from _check_selection(fixture, model, None, f"{case}.eval", query)


def _check_training(
    fixture: Fixture, model: ReferenceModel, task: int, case: str, query: Tensor
) -> Iterator[Deviation]:
    trainer = model.trainer(task, fixture.number("lr"))
    batch = Batch(fixture.tensor(f"{case}.x"), query, model.targets(fixture[f"{case}.y"], task))
    injection = None
    if fixture.has(f"{case}.proto"):
        labels = model.targets(fixture[f"{case}.proto_label"], task)
        injection = Injection(fixture.tensor(f"{case}.proto"), labels)
    yield from _check_features(fixture, model, task, case, batch, injection)

    loss = trainer.loss(batch, injection)
    yield compare(fixture, f"{case}.train.ce", loss.cross_entropy)
    yield compare(fixture, f"{case}.train.reduce_sim", -loss.matching / model.structure.matching)
    yield compare(fixture, f"{case}.train.loss", loss.total)
    loss.total.backward()
    zeros = {name: torch.zeros_like(value) for name, value in model.state.items()}
    gradients = {name: leaf.grad for name, leaf in trainer.state.items() if leaf.grad is not None}
    for name, ours in model.as_reference(gradients, otherwise=zeros).items():
        yield compare(fixture, f"{case}.grad.{name}", ours)
    yield compare(fixture, f"{case}.grad_norm", trainer.update())
    for name, ours in model.as_reference(trainer.state, otherwise=model.state).items():
        yield compare(fixture, f"{case}.after_step.{name}", ours, TOLERANCE_AFTER_STEP)


def _check_features(
    fixture: Fixture,
    model: ReferenceModel,
    task: int,
    case: str,
    batch: Batch,
    injection: Injection | None,
) -> Iterator[Deviation]:
    """Features by the path of the prototype pass, and logits of all classes before masking."""
    features = model.trainer(task, 1.0).features(batch.images, batch.queries)
    yield compare(fixture, f"{case}.train.pre_logits", features)
    if fixture.has(f"{case}.train.prelogits_fn"):
        yield compare(fixture, f"{case}.train.prelogits_fn", features)
    if injection is not None:
        features = torch.cat([features, injection.features])
    yield compare(fixture, f"{case}.train.logits", _all_logits(model, features))


@torch.inference_mode()
def _check_evaluation(
    fixture: Fixture, model: ReferenceModel, case: str, images: Tensor, query: Tensor
) -> Iterator[Deviation]:
    tasks = len(model.class_mask)
    found = model.structure.forward(model.state, images, query, task=None, tasks=tasks)
    yield compare(fixture, f"{case}.eval.pre_logits", found.features)
    yield compare(fixture, f"{case}.eval.logits", _all_logits(model, found.features))
    yield compare(fixture, f"{case}.eval.reduce_sim", found.similarity)


@torch.inference_mode()
def _check_selection(
    fixture: Fixture, model: ReferenceModel, task: int | None, part: str, query: Tensor
) -> Iterator[Deviation]:
    """Which prompts a batch gets; a choice of several is compared as a set."""
    structure, batch = model.structure, len(query)
    if isinstance(structure, DualPrompt):
        tasks = len(model.class_mask)
        choice, experts = structure.experts(model.state, batch, query, task=task, tasks=tasks)
        keys = torch.stack([model.state[name] for name in structure.used(tasks) if "key." in name])
        if fixture.has(f"{part}.batched_prompt"):
            yield compare(fixture, f"{part}.batched_prompt", experts.transpose(0, 1))
    else:
        assert isinstance(structure, L2P)
        keys = model.state["pool.key"]
        choice = structure.choose(query, keys, structure.top_k)
    yield compare(fixture, f"{part}.similarity", cosine(query, keys))
    ours = np.sort(choice.slots.expand(batch, -1).numpy(), axis=1)
    reference = np.sort(fixture[f"{part}.prompt_idx"], axis=1)
    yield difference(fixture.name, f"{part}.prompt_idx", ours, reference, tolerance=0.0)


def _all_logits(model: ReferenceModel, features: Tensor) -> Tensor:
    """Logits [B, classes] in label order."""
    columns = model.head.logits(model.state, features, range(len(model.class_mask)))
    return columns[:, np.argsort(model.class_mask.reshape(-1))]
