"""Local weight files into a timm ViT, with strict checking.

Torch, safetensors and NumPy files with timm's names, the original DINOv2 and DeiT-3 releases, and the
JAX releases of ViT are read into one form: timm's names. What does not fit is listed and refused, except
a classifier head. Position embeddings are resized to the ViT's own grid.
"""

import math
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from timm.layers import resample_abs_pos_embed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from pip_flower.config.schema import ConfigError
from pip_flower.models import jax_weights

_KEY = "backbone.weights"
_HEADS = ("head.", "head_dist.", "fc_norm.", "pre_logits.")
_CONTAINERS = ("model", "state_dict", "teacher")
_LISTED = 8
_KINDS = "Give .safetensors, .pth, .pt, .bin or .npz"
_UNREADABLE = (
    SafetensorError,
    RuntimeError,
    ValueError,
    KeyError,
    OSError,
    EOFError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
)


def load_weights(vit: VisionTransformer, path: str) -> None:
    """Load the file `path` into `vit`; a classifier head in it is left out."""
    vit.load_state_dict(_fitting(vit, _read(Path(path).expanduser()), path))


def check_weights(vit: VisionTransformer, path: str) -> None:
    """Refuse a file that `load_weights` would refuse. Its arrays are not read where names and shapes can be
    had without."""
    file = Path(path).expanduser()
    state = _read(file, outline=True)
    # Those are rearranged by NumPy, which knows no arrays without values.
    _fitting(vit, _read(file) if jax_weights.is_jax(state) else state, path)


def _fitting(vit: VisionTransformer, stored: dict[str, Tensor], path: str) -> dict[str, Tensor]:
    """What `stored` has for `vit`, under timm's names and of its sizes."""
    state = _timm_names(stored)
    state = {name: value for name, value in state.items() if not name.startswith(_HEADS)}
    if "pos_embed" in state and vit.pos_embed is not None:
        state["pos_embed"] = _resized(vit, state["pos_embed"], path)
    _require_fit(vit, state, path)
    return state


def _require_fit(vit: VisionTransformer, state: dict[str, Tensor], path: str) -> None:
    expected = {k: v for k, v in vit.state_dict().items() if not k.startswith(_HEADS)}
    wrong = [
        f"{name} {tuple(state[name].shape)} instead of {tuple(expected[name].shape)}"
        for name in sorted(expected.keys() & state.keys())
        if state[name].shape != expected[name].shape
    ]
    problems = {
        "missing": sorted(expected.keys() - state.keys()),
        "unexpected": sorted(state.keys() - expected.keys()),
        "wrong shape": wrong,
    }
    told = [f"{len(names)} {kind}: {_listed(names)}" for kind, names in problems.items() if names]
    if told:
        raise ConfigError(
            _KEY,
            f"{path!r} does not fit the backbone ({'; '.join(told)})",
            "Set backbone.name to the ViT that the file was made for",
        )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _resized(vit: VisionTransformer, stored: Tensor, path: str) -> Tensor:
    """Position embeddings [1, prefix + grid^2, D] for the grid of `vit`; bicubic, as timm does it."""
    prefix = 0 if vit.no_embed_class else vit.num_prefix_tokens
    if stored.ndim != 3 or stored.shape[1:] == vit.pos_embed.shape[1:]:
        return stored
    side = math.isqrt(max(stored.shape[1] - prefix, 0))
    if side == 0 or side * side + prefix != stored.shape[1]:
        raise ConfigError(
            _KEY,
            f"{path!r} has {stored.shape[1]} position embeddings, which with {prefix} for special"
            " tokens form no square grid",
            "Set backbone.name to the ViT that the file was made for",
        )
    resized: Tensor = resample_abs_pos_embed(
        stored, list(vit.patch_embed.grid_size), [side, side], num_prefix_tokens=prefix
    )
    return resized


def _timm_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Other releases' names of the same arrays as timm's."""
    if jax_weights.is_jax(state):
        return jax_weights.to_timm({name: value.numpy() for name, value in state.items()})
    state = {name.removeprefix("module."): value for name, value in state.items()}
    # DINOv2 keeps the token of its pretraining task; with registers, timm adds CLS's position to CLS.
    state.pop("mask_token", None)
    if "register_tokens" in state:
        state["reg_token"] = state.pop("register_tokens")
        state["cls_token"] = state["cls_token"] + state["pos_embed"][:, :1]
        state["pos_embed"] = state["pos_embed"][:, 1:]
    # DeiT-3 names layer scale after the paper.
    renames = {"gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma"}
    for name in [name for name in state if name.endswith(tuple(renames))]:
        block, _, scale = name.rpartition(".")
        state[f"{block}.{renames[scale]}"] = state.pop(name)
    return state


def _read(path: Path, *, outline: bool = False) -> dict[str, Tensor]:
    """The arrays of a file; as an outline, without their values where that saves reading them."""
    if not path.is_file():
        raise ConfigError(_KEY, f"there is no file {str(path)!r}", "Give the path of a weight file")
    readers: dict[str, Callable[[Path], dict[str, Tensor]]] = {
        ".safetensors": _outline if outline else load_file,
        ".npz": _read_npz,
    }
    device = "meta" if outline else "cpu"
    readers |= dict.fromkeys((".pth", ".pt", ".bin"), lambda file: _read_torch(file, device))
    if path.suffix not in readers:
        raise ConfigError(_KEY, f"{path.name!r} is of no known kind", _KINDS)
    try:
        return {name: value.float() for name, value in readers[path.suffix](path).items()}
    except _UNREADABLE as error:
        problem = f"{str(path)!r} cannot be read as {path.suffix}: {error}"
        raise ConfigError(_KEY, problem, "Get the file again, or check its ending") from None


def _outline(path: Path) -> dict[str, Tensor]:
    with safe_open(path, "pt") as stored:
        shapes = {name: stored.get_slice(name).get_shape() for name in stored.keys()}  # noqa: SIM118
    return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}


def _read_torch(path: Path, device: str) -> dict[str, Tensor]:
    loaded: Any = torch.load(path, map_location=device, weights_only=True)
    for container in _CONTAINERS:
        if isinstance(loaded, dict) and isinstance(loaded.get(container), dict):
            loaded = loaded[container]
    if not isinstance(loaded, dict):
        raise ValueError(f"it holds a {type(loaded).__name__}, not named arrays")
    return _only_arrays(loaded)


def _read_npz(path: Path) -> dict[str, Tensor]:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        return _only_arrays({name: torch.from_numpy(np.array(stored[name])) for name in stored.files})


def _only_arrays(loaded: dict[Any, Any]) -> dict[str, Tensor]:
    strange = [str(name) for name, value in loaded.items() if not isinstance(value, Tensor)]
    if strange or not loaded:
        raise ValueError(f"it holds other things than arrays: {_listed(strange) or 'nothing'}")
    return {str(name): value for name, value in loaded.items()}
