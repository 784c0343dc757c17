"""Names and layouts of the JAX releases of ViT (the original .npz files and Big Vision's) as timm's.

JAX stores a linear map as [in, out] and attention by head; torch stores [out, in] and one matrix for
queries, keys and values.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Stored = Mapping[str, NDArray[Any]]
_PREFIXES = ("opt/target/", "params/img/", "params/")
_TOP = {
    "cls": "cls_token",
    "embedding/kernel": "patch_embed.proj.weight",
    "embedding/bias": "patch_embed.proj.bias",
    "Transformer/posembed_input/pos_embedding": "pos_embed",
    "pos_embedding": "pos_embed",
    "Transformer/encoder_norm/scale": "norm.weight",
    "Transformer/encoder_norm/bias": "norm.bias",
    "head/kernel": "head.weight",
    "head/bias": "head.bias",
    "pre_logits/kernel": "pre_logits.fc.weight",
    "pre_logits/bias": "pre_logits.fc.bias",
}
# The sub-layers of a block are numbered in the order they were made, which the two releases count
# differently: (0, 1, 2, 3) over all kinds, or anew for each kind.
_BLOCK = re.compile(r"Transformer/encoderblock_(\d+)/(\w+?)_(\d)/(?:(\w+)/)?(kernel|bias|scale)$")
_PARAMETER = {"kernel": "weight", "scale": "weight", "bias": "bias"}
_DENSE = {"Dense_0": "mlp.fc1", "Dense_1": "mlp.fc2"}


def is_jax(names: Mapping[str, object]) -> bool:
    """Whether these are the names of a JAX release."""
    return any(name.endswith("embedding/kernel") for name in names)


def to_timm(stored: Stored) -> dict[str, Tensor]:
    """The arrays under timm's names; a name nobody knows is kept, so that strict checking lists it."""
    state: dict[str, NDArray[Any]] = {}
    attention: dict[str, dict[str, NDArray[Any]]] = {}
    for full_name, value in stored.items():
        name = _without_prefix(full_name)
        if name in _TOP:
            state[_TOP[name]] = _transposed(value) if name.endswith("kernel") else value
        elif match := _BLOCK.match(name):
            _place(match, value, state, attention)
        else:
            state[full_name] = value
    if state.get("pos_embed", np.zeros((1, 1, 1))).ndim == 2:
        state["pos_embed"] = state["pos_embed"][None]
    for name, parts in attention.items():
        if parts.keys() == {"query", "key", "value"}:
            state[name] = np.concatenate([parts["query"], parts["key"], parts["value"]])
    return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in state.items()}


def _place(
    match: re.Match[str],
    value: NDArray[Any],
    state: dict[str, NDArray[Any]],
    attention: dict[str, dict[str, NDArray[Any]]],
) -> None:
    index, layer, number, part, parameter = match.groups()
    block, kind = f"blocks.{index}", _PARAMETER[parameter]
    if layer == "LayerNorm":
        state[f"{block}.norm{1 if number == '0' else 2}.{kind}"] = value
    elif layer == "MlpBlock" and part in _DENSE:
        state[f"{block}.{_DENSE[part]}.{kind}"] = _transposed(value) if kind == "weight" else value
    elif layer == "MultiHeadDotProductAttention" and part == "out":
        # kernel [heads, D / heads, D]
        flat = value.reshape(-1, value.shape[-1]).T if kind == "weight" else value
        state[f"{block}.attn.proj.{kind}"] = flat
    elif layer == "MultiHeadDotProductAttention" and part in ("query", "key", "value"):
        # kernel [D, heads, D / heads], bias [heads, D / heads]
        flat = value.reshape(len(value), -1).T if kind == "weight" else value.reshape(-1)
        attention.setdefault(f"{block}.attn.qkv.{kind}", {})[part] = flat
    else:
        state[match.string] = value


def _transposed(kernel: NDArray[Any]) -> NDArray[Any]:
    """[in, out] -> [out, in]; a patch kernel [P, P, 3, D] -> [D, 3, P, P]."""
    return kernel.transpose(3, 2, 0, 1) if kernel.ndim == 4 else kernel.T


def _without_prefix(name: str) -> str:
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name
