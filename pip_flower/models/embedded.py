"""The small ViT that ships with the project, as JSON because only text travels in Flower's bundle.

scripts/pretrain_backbone.py makes the file from procedurally drawn glyphs.
"""

import base64
import hashlib
import json
from pathlib import Path

from safetensors.torch import load as load_safetensors
from timm.models.vision_transformer import VisionTransformer

from pip_flower.config.schema import ConfigError

NAME = "embedded"
# The source whose images it is meant for.
DATA = "digits"
PATH = Path(__file__).with_name("embedded_vit.json")

Statistics = tuple[float, float, float]


def load(image_size: int = 0, path: Path = PATH) -> tuple[VisionTransformer, Statistics, Statistics]:
    """The ViT with its weights, and the mean and std its inputs expect."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    arch = stored["arch"]
    if image_size not in (0, arch["img_size"]):
        raise ConfigError(
            "backbone.image_size",
            f"the embedded ViT takes {arch['img_size']} px, not {image_size}",
            "Give 0, or name another backbone",
        )
    raw = base64.b64decode(stored["data"])
    if hashlib.sha256(raw).hexdigest() != stored["sha256"]:
        raise ConfigError(
            "backbone.name",
            f"the embedded weights in {path.name} are damaged (their checksum differs)",
            "Restore the file, or run scripts/pretrain_backbone.py",
        )
    vit = VisionTransformer(**arch)
    vit.load_state_dict({name: value.float() for name, value in load_safetensors(raw).items()})
    return vit, tuple(stored["mean"]), tuple(stored["std"])
