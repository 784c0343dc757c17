"""Every kind of weight file, and what happens with a wrong one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer

from pip_flower.config.schema import ConfigError
from pip_flower.models.weights import check_weights, load_weights
from support.toy import images, toy_vit

State = dict[str, torch.Tensor]


def features(vit: VisionTransformer) -> torch.Tensor:
    with torch.inference_mode():
        return vit.eval().forward_features(images(2, size=vit.patch_embed.img_size[0]))[:, 0]


def save(state: State, path: Path) -> str:
    if path.suffix == ".safetensors":
        save_file({k: v.contiguous() for k, v in state.items()}, path)
    elif path.suffix == ".npz":
        np.savez(path, **{k: v.numpy() for k, v in state.items()})
    else:
        torch.save(state, path)
    return str(path)


def as_jax(vit: VisionTransformer, prefix: str, block: dict[str, str]) -> dict[str, np.ndarray]:
    """The arrays of `vit` in the layout of a JAX release."""
    w = {k: v.detach().numpy() for k, v in vit.state_dict().items()}
    heads, dim = vit.blocks[0].attn.num_heads, vit.embed_dim
    out = {
        "cls": w["cls_token"],
        "embedding/kernel": w["patch_embed.proj.weight"].transpose(2, 3, 1, 0),
        "embedding/bias": w["patch_embed.proj.bias"],
        block["position"]: w["pos_embed"],
        "Transformer/encoder_norm/scale": w["norm.weight"],
        "Transformer/encoder_norm/bias": w["norm.bias"],
        "head/kernel": np.zeros((dim, 7), np.float32),
        "head/bias": np.zeros(7, np.float32),
        "pre_logits/kernel": np.zeros((dim, dim), np.float32),
        "pre_logits/bias": np.zeros(dim, np.float32),
    }
    for i in range(len(vit.blocks)):
        p, j = f"blocks.{i}.", f"Transformer/encoderblock_{i}/"
        for norm, name in (("norm1", "LayerNorm_0"), ("norm2", block["norm2"])):
            out |= {f"{j}{name}/scale": w[f"{p}{norm}.weight"], f"{j}{name}/bias": w[f"{p}{norm}.bias"]}
        for number, layer in enumerate(("fc1", "fc2")):
            out[f"{j}{block['mlp']}/Dense_{number}/kernel"] = w[f"{p}mlp.{layer}.weight"].T
            out[f"{j}{block['mlp']}/Dense_{number}/bias"] = w[f"{p}mlp.{layer}.bias"]
        for number, part in enumerate(("query", "key", "value")):
            rows = slice(number * dim, (number + 1) * dim)
            kernel = w[f"{p}attn.qkv.weight"][rows].T.reshape(dim, heads, dim // heads)
            out[f"{j}{block['attention']}/{part}/kernel"] = kernel
            bias = w[f"{p}attn.qkv.bias"][rows].reshape(heads, dim // heads)
            out[f"{j}{block['attention']}/{part}/bias"] = bias
        kernel = w[f"{p}attn.proj.weight"].T.reshape(heads, dim // heads, dim)
        out |= {f"{j}{block['attention']}/out/kernel": kernel}
        out |= {f"{j}{block['attention']}/out/bias": w[f"{p}attn.proj.bias"]}
    return {prefix + name: value for name, value in out.items()}


ORIGINAL = {
    "position": "Transformer/posembed_input/pos_embedding",
    "norm2": "LayerNorm_2",
    "mlp": "MlpBlock_3",
    "attention": "MultiHeadDotProductAttention_1",
}
BIG_VISION = {
    "position": "pos_embedding",
    "norm2": "LayerNorm_1",
    "mlp": "MlpBlock_0",
    "attention": "MultiHeadDotProductAttention_0",
}


@pytest.mark.parametrize("ending", [".safetensors", ".pth", ".pt", ".bin", ".npz"])
def test_every_kind_of_file_gives_the_same_features(tmp_path: Path, ending: str) -> None:
    source, target = toy_vit(seed=1), toy_vit(seed=2)
    state = source.state_dict() | {"head.weight": torch.zeros(5, 32), "head.bias": torch.zeros(5)}
    load_weights(target, save(state, tmp_path / f"vit{ending}"))
    assert torch.equal(features(target), features(source))


@pytest.mark.parametrize("wrap", ["model", "state_dict"])
def test_checkpoints_that_wrap_their_arrays(tmp_path: Path, wrap: str) -> None:
    source, target = toy_vit(seed=1), toy_vit(seed=2)
    state = {f"module.{k}": v for k, v in source.state_dict().items()}
    torch.save({wrap: state, "epoch": 3}, tmp_path / "vit.pth")
    load_weights(target, str(tmp_path / "vit.pth"))
    assert torch.equal(features(target), features(source))


@pytest.mark.parametrize(
    ("prefix", "block"), [("", ORIGINAL), ("opt/target/", ORIGINAL), ("params/", BIG_VISION)]
)
def test_jax_releases_load_as_timm_itself_loads_them(
    tmp_path: Path, prefix: str, block: dict[str, str]
) -> None:
    source, target, timms = toy_vit(seed=1), toy_vit(seed=2), toy_vit(seed=3)
    path = tmp_path / "jax.npz"
    np.savez(path, **as_jax(source, prefix, block))
    load_weights(target, str(path))
    assert torch.equal(features(target), features(source))
    if block is ORIGINAL:
        timms.load_pretrained(str(path))
        assert torch.equal(features(target), features(timms))


def test_the_dinov2_release_with_registers_becomes_timms(tmp_path: Path) -> None:
    source = toy_vit(seed=1, reg_tokens=2, no_embed_class=True, init_values=0.1)
    state = source.state_dict()
    cls_position = torch.randn(1, 1, 32)
    state["register_tokens"] = state.pop("reg_token")
    state["pos_embed"] = torch.cat([cls_position, state["pos_embed"]], dim=1)
    state["cls_token"] = state["cls_token"] - cls_position
    state["mask_token"] = torch.zeros(1, 32)
    target = toy_vit(seed=2, reg_tokens=2, no_embed_class=True, init_values=0.1)
    load_weights(target, save(state, tmp_path / "dinov2.pth"))
    assert torch.allclose(features(target), features(source), atol=1e-5)


def test_layer_scale_under_its_name_in_deit3(tmp_path: Path) -> None:
    source, target = toy_vit(seed=1, init_values=0.1), toy_vit(seed=2, init_values=0.1)
    renamed = {
        k.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): v
        for k, v in source.state_dict().items()
    }
    load_weights(target, save(renamed, tmp_path / "deit3.pth"))
    assert torch.equal(features(target), features(source))


@pytest.mark.parametrize("size", [16, 48])
@pytest.mark.parametrize("arch", [{}, {"reg_tokens": 2, "no_embed_class": True}])
def test_position_embeddings_are_resized_to_the_input(
    tmp_path: Path, size: int, arch: dict[str, Any]
) -> None:
    source, target = toy_vit(seed=1, **arch), toy_vit(seed=2, img_size=size, **arch)
    path = save(source.state_dict(), tmp_path / "vit.safetensors")
    load_weights(target, path)
    source.set_input_size((size, size))
    assert torch.allclose(features(target), features(source), atol=1e-6)


def wrong(state: State) -> dict[str, tuple[State, str]]:
    without = {k: v for k, v in state.items() if k != "norm.bias"}
    return {
        "missing": (without, "1 missing: norm.bias"),
        "unexpected": (state | {"extra.weight": torch.zeros(1)}, "1 unexpected: extra.weight"),
        "shape": (
            state | {"norm.bias": torch.zeros(31)},
            r"1 wrong shape: norm.bias \(31,\) instead of \(32,\)",
        ),
        "grid": (state | {"pos_embed": torch.zeros(1, 12, 32)}, "12 position embeddings"),
        "shallow": (
            {k: v for k, v in state.items() if "blocks.5" not in k},
            "12 missing: blocks.5.attn.proj.bias, .* and 4 more",
        ),
    }


@pytest.mark.parametrize("case", ["missing", "unexpected", "shape", "grid", "shallow"])
@pytest.mark.parametrize("ending", [".safetensors", ".npz"])
def test_what_does_not_fit_is_listed_and_refused(tmp_path: Path, case: str, ending: str) -> None:
    vit = toy_vit()
    before = features(vit)
    state, message = wrong(toy_vit(seed=1).state_dict())[case]
    with pytest.raises(ConfigError, match=message):
        load_weights(vit, save(state, tmp_path / f"vit{ending}"))
    assert torch.equal(features(vit), before)


def test_an_incomplete_jax_file_is_refused(tmp_path: Path) -> None:
    arrays = as_jax(toy_vit(), "", ORIGINAL)
    del arrays["Transformer/encoderblock_2/MultiHeadDotProductAttention_1/key/kernel"]
    arrays["Transformer/encoderblock_2/Unheard_4/kernel"] = np.zeros((2, 2), np.float32)
    np.savez(tmp_path / "jax.npz", **arrays)
    with pytest.raises(ConfigError, match=r"missing: blocks.2.attn.qkv.weight.*unexpected: .*Unheard_4"):
        load_weights(toy_vit(), str(tmp_path / "jax.npz"))


@pytest.mark.parametrize("ending", [".safetensors", ".pth", ".bin", ".npz"])
def test_a_file_that_is_no_weight_file_gets_a_clear_error(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"vit{ending}"
    path.write_bytes(b"<html>404 not found</html>")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_weights(toy_vit(), str(path))


def test_other_endings_and_absent_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        load_weights(toy_vit(), str(tmp_path / "none.pth"))
    (tmp_path / "vit.h5").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"'vit.h5' is of no known kind. Give .safetensors"):
        load_weights(toy_vit(), str(tmp_path / "vit.h5"))


def test_a_pickle_of_something_else_is_not_executed(tmp_path: Path) -> None:
    torch.save({"model": 3}, tmp_path / "vit.pth")
    with pytest.raises(ConfigError, match="other things than arrays: model"):
        load_weights(toy_vit(), str(tmp_path / "vit.pth"))


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".npz"])
def test_a_file_is_checked_as_it_would_be_loaded(tmp_path: Path, suffix: str) -> None:
    path = save(toy_vit().state_dict(), tmp_path / f"toy{suffix}")
    with torch.device("meta"):
        same, larger, deeper = toy_vit(), toy_vit(img_size=64), toy_vit(depth=7)
    check_weights(same, path)
    check_weights(larger, path)
    with pytest.raises(ConfigError) as refused:
        load_weights(toy_vit(depth=7), path)
    with pytest.raises(ConfigError) as refused_before:
        check_weights(deeper, path)
    assert str(refused.value) == str(refused_before.value)


def test_jax_weights_are_checked_too(tmp_path: Path) -> None:
    path = tmp_path / "jax.npz"
    np.savez(path, **as_jax(toy_vit(), "", ORIGINAL))
    with torch.device("meta"):
        same, deeper = toy_vit(), toy_vit(depth=7)
    check_weights(same, str(path))
    with pytest.raises(ConfigError, match="does not fit the backbone"):
        check_weights(deeper, str(path))
