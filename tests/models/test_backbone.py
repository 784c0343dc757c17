"""Loading a backbone by configuration, and where its queries are cached."""

import logging
from pathlib import Path

import pytest
import torch

from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import BackboneConfig
from pip_flower.models.backbone import freeze, load_backbone
from pip_flower.runtime.devices import numerics, uses_bfloat16
from pip_flower.runtime.process import cache_directory
from support.toy import NO_SCALE, NO_SHIFT, images, runtime, toy_backbone, toy_vit

CPU = torch.device("cpu")


def load(name: str, weights: str = "", image_size: int = 0, pretrained: bool = False):
    config = BackboneConfig(name=name, pretrained=pretrained, weights=weights, image_size=image_size)
    return load_backbone(config, runtime(), CPU)


def test_random_weights_are_the_same_in_every_process_and_announced(caplog: pytest.LogCaptureFixture) -> None:
    state = torch.random.get_rng_state()
    with caplog.at_level(logging.WARNING):
        first, second = load("vit_tiny_patch16_224"), load("vit_tiny_patch16_224")
    assert first.digest == second.digest
    assert "random weights" in caplog.text
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_input_size_is_configurable() -> None:
    backbone = load("deit_tiny_patch16_224", image_size=64)
    assert backbone.image_size == 64
    assert backbone.query(images(2, size=64)).shape == (2, 192)


@pytest.mark.parametrize(
    ("name", "weights", "pretrained", "message"),
    [
        ("vit_of_theseus", "", False, "timm cannot make 'vit_of_theseus'"),
        ("resnet18", "", False, "cannot take prompts: it is a ResNet"),
        ("vit_tiny_patch16_224", "/none.pth", False, "there is no file '/none.pth'"),
        (
            "vit_tiny_patch16_224",
            "/none.pth",
            True,
            "backbone.pretrained=false or leave backbone.weights empty",
        ),
    ],
)
def test_impossible_backbones_are_refused(name: str, weights: str, pretrained: bool, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(name, weights, pretrained=pretrained)


def test_frozen_means_frozen() -> None:
    vit = toy_backbone().vit
    assert not vit.training
    assert not any(value.requires_grad for value in vit.parameters())


def test_the_digest_tells_weights_apart() -> None:
    assert toy_backbone(seed=1).digest == toy_backbone(seed=1).digest
    assert toy_backbone(seed=1).digest != toy_backbone(seed=2).digest


@pytest.mark.parametrize(
    ("configured", "environment", "expected"),
    [
        ("/a/b", {"PIP_FLOWER_CACHE": "/c"}, "/a/b"),
        ("", {"PIP_FLOWER_CACHE": "/c"}, "/c"),
        ("", {"PIP_FLOWER_CACHE": "", "XDG_CACHE_HOME": "/x"}, "/x/pip-flower"),
        (
            "",
            {"PIP_FLOWER_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "/home/me"},
            "/home/me/.cache/pip-flower",
        ),
    ],
)
def test_where_the_cache_is(
    configured: str, environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache_directory(runtime(cache_dir=configured)) == Path(expected)


def test_a_relative_cache_directory_is_refused() -> None:
    with pytest.raises(ConfigError, match="runtime.cache_dir: 'here' is a relative path"):
        cache_directory(runtime(cache_dir="here"))


def test_what_the_last_bits_depend_on_is_part_of_the_cache() -> None:
    assert numerics(runtime(), CPU) != numerics(runtime(threads=7), CPU)


@pytest.mark.parametrize(
    ("precision", "device", "expected"),
    [("auto", "cpu", False), ("auto", "cuda", True), ("float32", "cuda", False), ("bfloat16", "cpu", True)],
)
def test_precision(precision: str, device: str, expected: bool) -> None:
    assert uses_bfloat16(runtime(precision=precision), torch.device(device)) is expected


def test_a_compiled_backbone_is_asked_for_by_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[object] = []
    monkeypatch.setattr(torch, "compile", lambda function, **_: compiled.append(function) or function)
    freeze(toy_vit(), NO_SHIFT, NO_SCALE, runtime(compile=True), CPU)
    assert len(compiled) == 1
    freeze(toy_vit(), NO_SHIFT, NO_SCALE, runtime(), CPU)
    assert len(compiled) == 1
