"""The training step: what is minimised, what is trained, and that shortcuts change nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pip_flower.methods.pip.training import Injection, PromptTrainer
from pip_flower.models.heads import LinearHead
from pip_flower.models.prompts import Batch, PromptStructure
from support.toy import config, images, toy_backbone, toy_state, toy_structure, toy_trainer

METHODS = ["pip-dualprompt", "pip-l2p", "coda-prompt"]
TARGETS = torch.tensor([0, 3, 1, 2, 2, 0])


def batch(structure: PromptStructure) -> Batch:
    return Batch(images(6), structure.backbone.query(images(6)), TARGETS)


def injection() -> Injection:
    return Injection(
        torch.randn(5, 32, generator=torch.Generator().manual_seed(4)), torch.tensor([0, 1, 2, 3, 3])
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("injected", [None, injection()])
def test_fast_and_plain_path_give_the_same_loss_gradients_and_features(
    method: str, injected: Injection | None
) -> None:
    backbone = toy_backbone()
    found = []
    for passed in (backbone, backbone.without_shortcuts()):
        structure = toy_structure(method, backbone=passed)
        trainer = toy_trainer(structure, toy_state(structure))
        loss = trainer.loss(batch(structure), injected).total
        loss.backward()
        gradients = {name: leaf.grad for name, leaf in trainer.state.items()}
        features = trainer.features(images(6), batch(structure).queries)
        found.append({"loss": loss.detach(), "features": features, **gradients})
    fast, plain = found
    for name, value in plain.items():
        assert value.abs().max() > 1e-4, name
        assert (fast[name] - value).abs().max() <= 1e-5, name


@pytest.mark.parametrize("method", METHODS)
def test_the_objective_is_that_of_section_3_with_injected_features(method: str) -> None:
    structure = toy_structure(method)
    state = toy_state(structure)
    trainer = toy_trainer(structure, state)
    given = batch(structure)
    loss = trainer.loss(given, injection())
    prompted = structure.forward(state, given.images, given.queries, task=1, tasks=2)
    features = torch.cat([prompted.features, injection().features])
    logits = LinearHead(0).logits(state, features, [0, 1])
    logits[:, :4] = -torch.inf
    targets = torch.cat([TARGETS, injection().targets]) + 4
    assert torch.allclose(loss.cross_entropy, F.cross_entropy(logits, targets), atol=1e-6)
    assert torch.allclose(loss.matching, -structure.matching * prompted.similarity)
    assert structure.matching == {"pip-dualprompt": 1.0, "pip-l2p": 0.1, "coda-prompt": 0.0}[method]


@pytest.mark.parametrize("method", METHODS)
def test_an_epoch_learns_and_touches_nothing_but_what_the_task_trains(method: str) -> None:
    structure = toy_structure(method)
    trainer = toy_trainer(structure, toy_state(structure))
    weights = {k: v.clone() for k, v in structure.backbone.vit.state_dict().items()}
    before = {k: v.detach().clone() for k, v in trainer.state.items()}
    losses = [trainer.epoch([batch(structure)] * 3, None) for _ in range(3)]
    assert losses[2] < losses[0]
    assert all(not torch.equal(value, before[name]) for name, value in trainer.state.items())
    assert all(torch.equal(v, weights[k]) for k, v in structure.backbone.vit.state_dict().items())


def test_gradients_are_clipped_to_the_configured_norm() -> None:
    structure = toy_structure()
    trainer = toy_trainer(structure, toy_state(structure))
    trainer.training = replace(trainer.training, clip_norm=1e-3)
    trainer.loss(batch(structure), None).total.backward()
    norm = trainer.update()
    clipped = torch.cat([leaf.grad.flatten() for leaf in trainer.state.values() if leaf.grad is not None])
    assert norm > 1e-3
    assert clipped.norm() == pytest.approx(1e-3, rel=1e-3)


def test_a_restored_optimizer_goes_on_as_if_it_had_never_stopped() -> None:
    structure = toy_structure()
    state = toy_state(structure)
    straight, stopped = toy_trainer(structure, state), toy_trainer(structure, state)
    for _ in range(2):
        straight.epoch([batch(structure)], None)
        stopped.epoch([batch(structure)], None)
    leaves = {name: leaf.detach().clone().requires_grad_() for name, leaf in stopped.state.items()}
    resumed = PromptTrainer(structure, leaves, 1, config().training, stopped.others)
    resumed.restore_optimizer(stopped.optimizer_arrays())
    forgetful = toy_trainer(structure, {**state, **{k: v.detach() for k, v in stopped.state.items()}})
    for trainer in (straight, resumed, forgetful):
        trainer.epoch([batch(structure)], None)
    assert all(torch.equal(leaf, straight.state[name]) for name, leaf in resumed.state.items())
    assert not torch.equal(forgetful.state["general"], straight.state["general"])


def test_the_total_is_the_sum_of_both_terms() -> None:
    structure = toy_structure()
    trainer = toy_trainer(structure, toy_state(structure))
    loss = trainer.loss(batch(structure), None)
    assert torch.equal(loss.total, loss.cross_entropy + loss.matching)
    assert loss.matching.abs() > 1e-3


def test_an_epoch_reports_the_mean_loss_with_what_is_injected_and_clips() -> None:
    structure = toy_structure()
    trainer = toy_trainer(structure, toy_state(structure))
    trainer.training = replace(trainer.training, clip_norm=1e-3)
    trainer.optimizer = torch.optim.SGD(trainer.state.values(), lr=1.0)
    before = {name: leaf.detach().clone() for name, leaf in trainer.state.items()}
    wanted = trainer.loss(batch(structure), injection()).total.item()
    assert trainer.epoch([batch(structure)], injection()) == pytest.approx(wanted, rel=1e-6)
    moved = torch.cat([(leaf - before[name]).flatten() for name, leaf in trainer.state.items()])
    assert moved.norm().item() == pytest.approx(1e-3, rel=1e-2)


def test_an_update_lets_adam_use_the_gradients() -> None:
    structure = toy_structure()
    trainer = toy_trainer(structure, toy_state(structure))
    before = {name: leaf.detach().clone() for name, leaf in trainer.state.items()}
    trainer.loss(batch(structure), None).total.backward()
    trainer.update()
    rate = trainer.training.learning_rate
    for name, leaf in trainer.state.items():
        # No entry moves further than the rate in the first step, and some move so far.
        assert (leaf - before[name]).abs().max().item() == pytest.approx(rate, rel=1e-2)


def test_the_state_of_the_optimizer_has_names_and_may_be_of_other_arrays() -> None:
    structure = toy_structure()
    state = toy_state(structure)
    trainer, fresh = toy_trainer(structure, state), toy_trainer(structure, state)
    trainer.epoch([batch(structure)], None)
    kept = trainer.optimizer_arrays()
    assert set(kept) == {
        f"adam.{name}.{what}" for name in trainer.state for what in ("step", "exp_avg", "exp_avg_sq")
    }
    some = {name: value for name, value in kept.items() if "general" in name}
    fresh.restore_optimizer({**some, "adam.unknown.step": np.ones(1)})
    found = fresh.optimizer_arrays()
    assert set(found) == set(some)
    assert all(np.array_equal(found[name], value) for name, value in some.items())
