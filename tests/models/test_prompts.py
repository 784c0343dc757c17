"""Prompt structures: growth, selection and what a task trains."""

import pytest
import torch

from pip_flower.config.schema import ConfigError
from pip_flower.fidelity import Paper
from pip_flower.models.prompted_vit import AttachedPrompts, Prefix
from pip_flower.models.prompts import PromptStructure, SinglePromptOptions, make_structure
from pip_flower.models.prompts.l2p import L2P
from support.toy import config, images, toy_backbone, toy_state, toy_structure

METHODS = ["pip-dualprompt", "pip-l2p", "coda-prompt"]


def forward(structure: PromptStructure, state: dict, count: int, **kwargs: int | None) -> torch.Tensor:
    given = {"task": None, "tasks": 3, **kwargs}
    query = structure.backbone.query(images(8))[:count]
    with torch.inference_mode():
        return structure.forward(state, images(8)[:count], query, **given).features


@pytest.mark.parametrize("method", METHODS)
def test_each_sample_is_predicted_as_if_it_were_alone(method: str) -> None:
    structure = toy_structure(method)
    state = toy_state(structure, tasks=3)
    together = forward(structure, state, 8)
    assert torch.allclose(together[:1], forward(structure, state, 1), atol=1e-5)


def test_with_a_vote_the_majority_decides_for_the_others() -> None:
    backbone = toy_backbone()
    query = backbone.query(images(8))
    state = toy_state(toy_structure(backbone=backbone), tasks=2)
    # Sample 0 alone would take slot 0; most others take slot 1.
    state |= {"key.0": query[0], "key.1": query[1:].mean(dim=0)}
    own, voted = (
        forward(toy_structure(backbone=backbone, selection=how), state, 8, tasks=2)
        for how in ("sample", "batch")
    )
    structure = toy_structure(backbone=backbone)
    first, second = (forward(structure, state, 8, task=slot, tasks=2)[0] for slot in (0, 1))
    assert torch.allclose(own[0], first, atol=1e-6)
    assert torch.allclose(voted[0], second, atol=1e-6)
    assert not torch.allclose(first, second, atol=1e-3)


def test_a_vote_gives_all_samples_the_most_frequent_choice_and_ties_to_the_first() -> None:
    structure = toy_structure(selection="batch")
    keys = torch.eye(32)[:4]
    query = torch.eye(32)[[2, 1, 2, 0, 1]]
    assert structure.choose(query, keys, 1).slots.tolist() == [[1]]
    assert structure.choose(query[:3], keys, 1).slots.tolist() == [[2]]
    # 2, 1 and 2 match exactly; cos is 0 for the other samples.
    assert structure.choose(query[:3], keys, 1).similarity == pytest.approx(2 / 3)


def test_per_sample_choice_and_its_similarity() -> None:
    structure = toy_structure()
    keys, query = torch.eye(32)[:4], 3 * torch.eye(32)[[2, 1, 3]]
    choice = structure.choose(query, keys, 1)
    assert choice.slots.tolist() == [[2], [1], [3]]
    assert choice.similarity == pytest.approx(1.0)


def test_the_dualprompt_pool_grows_without_knowing_how_many_tasks_come() -> None:
    structure = toy_structure()
    generator = torch.Generator().manual_seed(0)
    state: dict[str, torch.Tensor] = {}
    for task in range(13):
        added = structure.start_task(task, state, generator)
        assert set(added) == ({"general"} if task == 0 else set()) | {f"expert.{task}", f"key.{task}"}
        state |= added
        if task:
            assert torch.equal(state[f"expert.{task}"], state[f"expert.{task - 1}"])
            assert not torch.equal(state[f"key.{task}"], state[f"key.{task - 1}"])
    assert structure.trained(12) == ("general", "expert.12", "key.12")
    assert len(structure.used(13)) == 27


def test_training_uses_the_slot_of_the_task_and_prediction_the_best_key() -> None:
    structure = toy_structure()
    state = toy_state(structure, tasks=3)
    query = structure.backbone.query(images(8))
    for slot in range(3):
        favoured = {**state, f"key.{slot}": query.mean(dim=0)}
        favoured |= {f"key.{other}": -query.mean(dim=0) for other in range(3) if other != slot}
        by_task = forward(structure, favoured, 8, task=slot)
        assert torch.allclose(forward(structure, favoured, 8), by_task, atol=1e-6)
        assert not torch.allclose(forward(structure, favoured, 8, task=(slot + 1) % 3), by_task, atol=1e-3)


def test_dualprompt_needs_no_query_for_the_features_of_a_task() -> None:
    structure = toy_structure()
    state = toy_state(structure)
    assert not structure.needs_query(1)
    assert structure.needs_query(None)
    with torch.inference_mode():
        without = structure.forward(state, images(4), None, task=1, tasks=2).features
    assert torch.equal(without, forward(structure, state, 4, task=1, tasks=2))
    with pytest.raises(ValueError, match="needs the query"):
        structure.forward(state, images(4), None, task=None, tasks=2)


def test_l2p_reads_the_mean_of_its_inserted_tokens() -> None:
    structure = toy_structure("pip-l2p", top_k=1, length=3, pool=1)
    state = toy_state(structure)
    vit = structure.backbone.vit
    with torch.inference_mode():
        tokens = vit._pos_embed(vit.patch_embed(images(4)))
        prompt = (state["pool.prompt"][0] + vit.pos_embed[0, :1]).expand(4, -1, -1)
        tokens = torch.cat([tokens[:, :1], prompt, tokens[:, 1:]], dim=1)
        expected = vit.norm(vit.blocks(tokens))[:, 1:4].mean(dim=1)
    assert torch.allclose(forward(structure, state, 4), expected, atol=1e-5)


def test_blocks_that_the_backbone_does_not_have_are_refused() -> None:
    with pytest.raises(ConfigError, match="method.prompt.expert_blocks.*6 blocks.*0 to 5"):
        toy_structure("pip-dualprompt", expert_blocks=(5, 6))


@pytest.mark.parametrize("method", METHODS)
def test_structures_work_on_any_depth_width_and_kind(method: str) -> None:
    backbone = toy_backbone(embed_dim=48, num_heads=4, depth=5, patch_size=16, reg_tokens=2, init_values=0.3)
    structure = toy_structure(method, backbone=backbone)
    state = toy_state(structure, tasks=3)
    assert forward(structure, state, 3).shape == (3, 48)


@pytest.mark.parametrize(("tasks", "pool", "top_k"), [(3, 3, 3), (5, 5, 5), (20, 20, 5)])
def test_l2p_has_a_prompt_for_each_task(tasks: int, pool: int, top_k: int) -> None:
    options = config("pip-l2p").method.options.prompt
    structure = make_structure(options, toy_backbone(), Paper(), tasks)
    assert isinstance(structure, L2P)
    state = toy_state(structure)
    assert state["pool.prompt"].shape == (pool, 5, 32)
    assert state["pool.key"].shape == (pool, 32)
    query = structure.backbone.query(images(2))
    assert structure.choose(query, state["pool.key"], structure.top_k).slots.shape == (2, top_k)


def test_a_pool_of_a_given_size_has_that_size() -> None:
    options = config("pip-l2p", "method.prompt.pool=7").method.options.prompt
    structure = make_structure(options, toy_backbone(), Paper(), tasks=3)
    assert toy_state(structure)["pool.prompt"].shape == (7, 5, 32)
    with pytest.raises(ConfigError, match="8 prompts cannot be chosen from a pool of 7"):
        config("pip-l2p", "method.prompt.pool=7 method.prompt.top_k=8")


def test_a_single_prompt_is_one_prefix_for_all_tasks_and_needs_no_query() -> None:
    backbone = toy_backbone()
    structure = make_structure(SinglePromptOptions("single", 3, (1, 4)), backbone, Paper(), tasks=2)
    generator = torch.Generator().manual_seed(0)
    state = structure.start_task(0, {}, generator)
    assert {name: value.shape for name, value in state.items()} == {"prompt": (2, 2, 3, 2, 16)}
    assert structure.start_task(1, state, generator) == {}
    assert structure.trained(1) == structure.used(2) == ("prompt",)
    assert not structure.needs_query(None)
    assert not structure.trains_with_query
    with torch.inference_mode():
        found = structure.forward(state, images(4), None, task=None, tasks=2)
        stored = state["prompt"].transpose(2, 3)
        prefixes = {block: Prefix(stored[i, :1], stored[i, 1:]) for i, block in enumerate((1, 4))}
        wanted = backbone.encode(images(4), AttachedPrompts(prefixes))[:, 0]
    assert torch.allclose(found.features, wanted, atol=1e-6)
    assert structure.matching_loss(found.similarity).item() == 0.0
    with pytest.raises(ConfigError, match="method.prompt.blocks.*6 blocks"):
        make_structure(SinglePromptOptions("single", 3, (6,)), backbone, Paper(), tasks=2)
    with pytest.raises(ConfigError, match="method.prompt.blocks"):
        SinglePromptOptions("single", 3, (1, 1)).check()
