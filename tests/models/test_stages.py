"""Maps after the stages of a network, beside the features it gives anyway."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pip_flower.config.schema import ConfigError
from pip_flower.models.network import make_network
from pip_flower.models.stages import pooled, stage_indices, staged

NETWORKS = [
    ("resnet18", "small"),
    ("resnet18", "imagenet"),
    ("resnet10t", "imagenet"),
    ("regnetx_002", "imagenet"),
]


def pictures(size: int = 64) -> Tensor:
    return torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("name", "stem"), NETWORKS)
def test_features_are_the_networks_own_in_one_pass(name: str, stem: str, training: bool) -> None:
    network = make_network(name, stem, 0).train(training)
    twin = copy.deepcopy(network)
    assert torch.equal(staged(network, pictures()).features, twin(pictures()))
    # A second pass would move the running statistics again.
    for own, other in zip(network.buffers(), twin.buffers(), strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize(("stem", "sizes"), [("small", [32, 16, 8, 4]), ("imagenet", [8, 4, 2, 1])])
def test_there_is_a_map_after_every_stage_and_the_last_is_what_is_pooled(stem: str, sizes: list[int]) -> None:
    maps, features = staged(make_network("resnet18", stem, 0), pictures(32))
    expected = [(3, width, size, size) for width, size in zip((64, 128, 256, 512), sizes, strict=True)]
    assert [tuple(found.shape) for found in maps] == expected
    torch.testing.assert_close(maps[-1].mean(dim=(2, 3)), features)


def test_gradients_reach_the_network_from_every_map() -> None:
    network = make_network("resnet10t", "imagenet", 0)
    stages = (network.layer1, network.layer2, network.layer3, network.layer4)
    for index, found in enumerate(staged(network, pictures()).maps):
        network.zero_grad()
        found.square().sum().backward(retain_graph=True)
        reached = [any(p.grad is not None for p in stage.parameters()) for stage in stages]
        assert reached == [place <= index for place in range(4)]


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "efficientnet_b0", "repvgg_a0"])
def test_a_network_without_stages_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="method.network: a .* has no stages.*resnet18"):
        staged(make_network(name, "imagenet", 0), pictures(224))


def test_a_network_that_is_not_timms_is_refused() -> None:
    with pytest.raises(ConfigError, match="a Linear has no stages"):
        stage_indices(nn.Linear(2, 2))


def test_pooled_by_hand() -> None:
    # Squares [[1, 4], [9, 16]]: 5 and 25 by row, 10 and 20 by column.
    found = pooled(torch.tensor([[[[1.0, -2.0], [3.0, 4.0]]]]))
    expected = torch.tensor([[5.0, 25, 10, 20]])
    torch.testing.assert_close(found, expected / expected.norm())
    assert pooled(torch.rand(2, 3, 4, 5)).shape == (2, 27)


@given(factor=st.floats(0.01, 100), sign=st.sampled_from([-1, 1]))
@settings(deadline=None)
def test_pooled_ignores_a_maps_scale_sample_by_sample(factor: float, sign: int) -> None:
    maps = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    scaled = maps * torch.tensor([sign * factor, 1.0]).view(2, 1, 1, 1)
    torch.testing.assert_close(pooled(scaled), pooled(maps))


def test_a_dead_map_pools_to_nothing_with_finite_gradients() -> None:
    dead = torch.zeros(1, 2, 3, 3, requires_grad=True)
    pooled(dead).sum().backward()
    assert dead.grad is not None
    assert torch.isfinite(dead.grad).all()
