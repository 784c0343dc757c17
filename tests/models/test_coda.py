"""CODA-Prompt's components: their weights, their start, and that old ones stay as they are."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pip_flower.config.schema import ConfigError
from pip_flower.models.prompts import Batch
from pip_flower.models.prompts.coda import component_weights, from_orthonormal, orthogonal_rows
from support.local_grid import LocalGrid
from support.runs import digest, play
from support.toy import config, images, toy_state, toy_structure, toy_trainer

GENERATOR = torch.Generator()


def test_weights_are_the_cosine_of_the_attended_query_and_the_key() -> None:
    query, key, attention = (
        torch.randn(size, generator=GENERATOR) for size in ((3, 8), (5, 2, 8), (5, 2, 8))
    )
    found = component_weights(query, key, attention)
    for block in range(2):
        attended = query[:, None] * attention[:, block]
        expected = F.cosine_similarity(attended, key[None, :, block], dim=2)
        assert torch.allclose(found[:, block], expected, atol=1e-6)


def test_the_prefix_is_the_weighted_sum_of_all_components_so_far() -> None:
    structure = toy_structure("coda-prompt", components=3, length=2, blocks=(1, 4))
    state = toy_state(structure, tasks=2)
    query = structure.backbone.query(images(4))
    with torch.inference_mode():
        features = structure.forward(state, images(4), query, task=None, tasks=2).features
        # One component whose weight is 1 and whose prompt is the sum gives the same.
        joined = [
            torch.cat([state[f"coda.{t}.{kind}"] for t in range(2)])
            for kind in ("prompt", "key", "attention")
        ]
        weights = component_weights(query, *joined[1:])
        for row in range(4):
            summed = torch.einsum("ln,nlkshd->lkshd", weights[row], joined[0])
            fixed = {
                "coda.0.prompt": summed.unsqueeze(0),
                "coda.0.key": query[row].expand(1, 2, -1),
                "coda.0.attention": torch.ones(1, 2, 32),
            }
            alone = structure.forward(
                fixed, images(4)[row : row + 1], query[row : row + 1], task=None, tasks=1
            )
            assert torch.allclose(features[row], alone.features[0], atol=1e-5)


def test_later_components_are_unused() -> None:
    structure = toy_structure("coda-prompt")
    state = toy_state(structure, tasks=3)
    query = structure.backbone.query(images(4))
    with torch.inference_mode():
        given = structure.forward(state, images(4), query, task=None, tasks=2).features
        alone = {name: value for name, value in state.items() if not name.startswith("coda.2.")}
        assert torch.equal(structure.forward(alone, images(4), query, task=None, tasks=2).features, given)
        assert torch.equal(structure.forward(alone, images(4), query, task=1, tasks=2).features, given)


@pytest.mark.parametrize("orthogonality", [0.0, 0.1])
def test_old_components_get_no_gradient(orthogonality: float) -> None:
    structure = toy_structure("coda-prompt", orthogonality=orthogonality)
    state = toy_state(structure, tasks=2)
    trainer = toy_trainer(structure, state)
    trainer.context = {name: state[name].requires_grad_() for name in structure.context(1)}
    batch = Batch(images(4), structure.backbone.query(images(4)), torch.tensor([0, 1, 2, 3]))
    trainer.loss(batch, None).total.backward()
    assert all(state[name].grad is None for name in structure.used(1))
    assert all(trainer.state[name].grad.abs().max() > 0 for name in structure.trained(1))


def test_components_start_orthonormal_to_whatever_there_is() -> None:
    generator = torch.Generator().manual_seed(3)
    earlier = torch.randn(4, 12, generator=generator)
    fresh = orthogonal_rows(earlier, 5, generator)
    assert torch.allclose(fresh @ fresh.T, torch.eye(5), atol=1e-6)
    assert (fresh @ earlier.T).abs().max() < 1e-5


def test_components_that_find_no_free_direction_are_merely_random() -> None:
    generator = torch.Generator().manual_seed(3)
    earlier = torch.randn(10, 12, generator=generator)
    fresh = orthogonal_rows(earlier, 5, generator)
    assert (fresh[:2] @ earlier.T).abs().max() < 1e-5
    assert torch.allclose(fresh.norm(dim=1), torch.ones(5))
    full = orthogonal_rows(torch.randn(20, 12, generator=generator), 3, generator)
    assert torch.allclose(full.norm(dim=1), torch.ones(3))


def test_the_penalty_is_zero_for_orthonormal_components_only() -> None:
    structure = toy_structure("coda-prompt", components=2, orthogonality=0.5)
    state = structure.start_task(0, {}, torch.Generator().manual_seed(0))
    assert float(structure.penalty(state, 0)) == pytest.approx(0.0, abs=1e-10)
    doubled = torch.eye(3, 8).unsqueeze(1) * 2
    # B B' - I = 3 I: a mean square of 9 * 3 / 9.
    assert float(from_orthonormal(doubled)) == pytest.approx(3.0)
    twice = {**state, "coda.0.key": 2 * state["coda.0.key"]}
    assert float(structure.penalty(twice, 0)) == pytest.approx(0.5 * 5 * 9 * 2 / 4, rel=1e-5)


def test_the_paper_s_sizes() -> None:
    """3.84 million parameters beside the head: ten tasks on a ViT of width 768."""
    options = config("coda-prompt").method.options.prompt
    per_block = 2 * options.length * 768 + 2 * 768
    assert 10 * options.components * len(options.blocks) * per_block == 3_840_000


@pytest.mark.parametrize("method", ["coda-prompt", "fed-codap-pip"])
def test_finished_components_stay_and_travel_once(small_run: dict[str, Any], method: str) -> None:
    run_config = small_run | {"method": method}
    run_config["overrides"] += " training.epochs=1 method.prompt.components=2"
    notes = play(run_config, LocalGrid(4, run_config))
    first = play(
        run_config
        | {
            "overrides": f"{run_config['overrides']} dataset.keep.classes=2 dataset.classes=2 "
            "schedule.tasks=1 schedule.rounds=2"
        }
    )
    kept = {name: value for name, value in notes.final.items() if name.startswith("coda.0.")}
    assert digest(kept) == digest({name: first.final[name] for name in kept})
    full = play(run_config | {"overrides": f"{run_config['overrides']} wire.full=true"})
    assert digest(full.final) == digest(notes.final)
    assert all(np.isfinite(value).all() for value in notes.final.values())


def test_two_prefixes_for_a_block_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"method\.prompt\.blocks"):
        config("coda-prompt", "method.prompt.blocks=[1,1]")
