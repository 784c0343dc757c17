"""AttachedPrompts at any block of any plain timm ViT, against timm itself and against the plain pass."""

from typing import Any

import pytest
import torch
from timm import create_model
from torch import Tensor

from pip_flower.models.backbone import freeze
from pip_flower.models.plain_vit import encode_plainly
from pip_flower.models.prompted_vit import (
    CLS,
    NO_PROMPTS,
    AttachedPrompts,
    Prefix,
    cls_position,
    encode,
    unsupported,
)
from support.toy import NO_SCALE, NO_SHIFT, images, runtime, toy_backbone, toy_vit

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "layer scale": {"init_values": 0.5},
    "registers": {"reg_tokens": 3, "no_embed_class": True},
    "qk norm": {"qk_norm": True},
    "pre norm": {"pre_norm": True},
    "no bias": {"qkv_bias": False},
    "scaled norms": {"scale_attn_norm": True},
    "dynamic size": {"dynamic_img_size": True},
    "small patches": {"patch_size": 4, "depth": 3, "embed_dim": 48, "num_heads": 3},
}


def prompts(vit: Any, batch: int, block: int, seed: int = 3) -> AttachedPrompts:
    """A prefix of four in `block` and three inserted tokens before it, for each sample of its own."""
    generator = torch.Generator().manual_seed(seed)
    heads, width = vit.blocks[0].attn.num_heads, vit.blocks[0].attn.head_dim

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).requires_grad_()

    prefix = Prefix(drawn(batch, heads, 4, width), drawn(batch, heads, 4, width))
    return AttachedPrompts({block: prefix}, {block: drawn(batch, 3, vit.embed_dim)})


@pytest.mark.parametrize("kind", KINDS)
def test_without_prompts_it_is_timms_own_forward(kind: str) -> None:
    vit = toy_vit(**KINDS[kind]).eval()
    with torch.inference_mode():
        expected = vit.forward_features(images(3))[:, :1]
        assert torch.allclose(encode(vit, images(3), NO_PROMPTS, CLS), expected, atol=1e-5)
        assert torch.allclose(encode_plainly(vit, images(3), NO_PROMPTS, CLS), expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [0, 1, -1])
@pytest.mark.parametrize("read", [CLS, slice(1, 4)])
def test_fast_and_plain_pass_agree_in_features_and_gradients(kind: str, block: int, read: slice) -> None:
    vit = toy_vit(**KINDS[kind]).eval().requires_grad_(False)
    place = block % len(vit.blocks)
    found: list[list[Tensor]] = []
    for pass_ in (encode, encode_plainly):
        given = prompts(vit, 3, place)
        tokens = pass_(vit, images(3), given, read)
        (tokens * torch.linspace(-1, 1, tokens.numel()).view(tokens.shape)).sum().backward()
        prefix, insertion = given.prefixes[place], given.insertions[place]
        found.append([tokens, prefix.key.grad, prefix.value.grad, insertion.grad])
    for fast, plain in zip(*found, strict=True):
        assert fast.abs().max() > 1e-3
        assert torch.allclose(fast, plain, atol=1e-5, rtol=1e-5)


def test_a_prefix_does_not_lengthen_the_sequence_and_inserted_tokens_do() -> None:
    vit = toy_vit().eval()
    with torch.inference_mode():
        both = prompts(vit, 2, 1)
        tokens = encode(vit, images(2), AttachedPrompts(both.prefixes), slice(None))
        longer = encode(vit, images(2), AttachedPrompts(insertions=both.insertions), slice(None))
    assert tokens.shape == (2, 17, 32)
    assert longer.shape == (2, 20, 32)


def test_another_input_size_is_taken_where_timm_takes_it() -> None:
    vit = toy_vit(dynamic_img_size=True).eval()
    with torch.inference_mode():
        larger = images(2, size=48)
        tokens = encode(vit, larger, NO_PROMPTS, slice(None))
        assert torch.allclose(tokens, vit.forward_features(larger), atol=1e-5)


def test_large_batches_are_encoded_in_pieces_with_each_samples_own_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backbone = toy_backbone()
    given = prompts(backbone.vit, 5, 0)
    with torch.inference_mode():
        whole = backbone.encode(images(5), given)
        monkeypatch.setattr("pip_flower.runtime.devices.images_at_once", lambda tokens, device: 2)
        assert torch.allclose(backbone.encode(images(5), given), whole, atol=1e-6)


def test_prompt_tokens_take_the_position_of_cls_where_it_has_one() -> None:
    vit = toy_vit()
    position = cls_position(vit)
    assert isinstance(position, Tensor)
    assert torch.equal(position, vit.pos_embed[:, :1])
    assert cls_position(toy_vit(reg_tokens=2, no_embed_class=True)) == 0.0


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("resnet18", "not a timm VisionTransformer"),
        ("vit_medium_patch16_gap_240", "no CLS token"),
        ("vit_base_patch16_plus_240", None),
        ("deit_tiny_distilled_patch16_224", None),
        ("vit_small_patch14_reg4_dinov2", None),
        ("vit_tiny_r_s16_p8_224", None),
        ("deit3_small_patch16_224", None),
    ],
)
def test_which_backbones_take_prompts(name: str, problem: str | None) -> None:
    with torch.device("meta"):
        found = unsupported(create_model(name, num_classes=0))
    assert (found is None) if problem is None else (problem in str(found))


def test_bfloat16_holds_the_weights_once_and_returns_float32_features() -> None:
    exact = toy_backbone()
    rough = freeze(toy_vit(), NO_SHIFT, NO_SCALE, runtime(precision="bfloat16"), torch.device("cpu"))
    assert rough.vit.blocks[0].attn.qkv.weight.dtype is torch.bfloat16
    assert rough.digest == exact.digest
    query = rough.query(images(4))
    assert query.dtype is torch.float32
    assert torch.nn.functional.cosine_similarity(query, exact.query(images(4))).min() > 0.98
