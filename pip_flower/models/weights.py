"""Local weight files into a timm ViT, with strict checking."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from pip_flower.schema import ConfigError

_KEY = "backbone.weights"
_HEADS = ("head.", "head_dist.", "fc_norm.")


def load_weights(vit: VisionTransformer, path: str) -> None:
    """Load `path` (.safetensors, .pth, .bin) into `vit`; a classifier head in it is left out."""
    state = {name: value for name, value in _read(Path(path)).items() if not name.startswith(_HEADS)}
    expected = vit.state_dict()
    missing = sorted(expected.keys() - state.keys())
    unexpected = sorted(state.keys() - expected.keys())
    wrong = sorted(
        f"{name} {tuple(state[name].shape)} (expected {tuple(expected[name].shape)})"
        for name in expected.keys() & state.keys()
        if state[name].shape != expected[name].shape
    )
    problems = {"missing": missing, "unexpected": unexpected, "wrong shape": wrong}
    told = [f"{kind}: {', '.join(names[:5])}" for kind, names in problems.items() if names]
    if told:
        raise ConfigError(
            _KEY, f"{path!r} does not fit the backbone; {'; '.join(told)}", "Name the matching ViT"
        )
    vit.load_state_dict(state)


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ConfigError(_KEY, f"there is no file {str(path)!r}", "Give the path of a weight file")
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        if path.suffix in (".pth", ".pt", ".bin"):
            loaded = torch.load(path, map_location="cpu", weights_only=True)
            return dict(loaded.get("model", loaded))
    except (SafetensorError, RuntimeError, AttributeError, ValueError, OSError, EOFError) as error:
        raise ConfigError(_KEY, f"{str(path)!r} cannot be read: {error}", "Get the file again") from None
    raise ConfigError(_KEY, f"{path.name!r} is of no known kind", "Give .safetensors, .pth or .bin")
