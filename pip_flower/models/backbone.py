"""The frozen ViT: built by timm, loaded once per process, identified by a digest of its weights."""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

import pip_flower.torchvision_compat  # noqa: F401  (before timm)
from timm import create_model
from timm.models.vision_transformer import VisionTransformer

from pip_flower.config import BackboneConfig
from pip_flower.models import embedded
from pip_flower.models.weights import load_weights
from pip_flower.runtime import once_per_process
from pip_flower.schema import ConfigError

_loads = 0


@dataclass(frozen=True)
class Backbone:
    """A frozen timm VisionTransformer and what the rest needs to know of it."""

    vit: VisionTransformer
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    digest: str

    @property
    def dim(self) -> int:
        """Width D of the tokens."""
        return int(self.vit.embed_dim)

    @property
    def depth(self) -> int:
        """Number of blocks."""
        return len(self.vit.blocks)

    @property
    def heads(self) -> int:
        """Attention heads of a block."""
        return int(self.vit.blocks[0].attn.num_heads)

    @property
    def image_size(self) -> int:
        """Side of the square input in pixels."""
        return int(self.vit.patch_embed.img_size[0])

    @torch.inference_mode()
    def query(self, images: Tensor) -> Tensor:
        """q(x): CLS after the final norm, without prompts; images [B, 3, S, S] -> [B, D]."""
        features: Tensor = self.vit.forward_features(images)
        return features[:, 0].float()


def shared_backbone(config: BackboneConfig, device: torch.device) -> Backbone:
    """The backbone of this process; every client that lives in the process uses the same one."""
    return once_per_process(("backbone", config, device), lambda: load_backbone(config, device))


def backbone_loads() -> int:
    """How often this process has loaded a backbone; 1 however many clients it served."""
    return _loads


def load_backbone(config: BackboneConfig, device: torch.device) -> Backbone:
    """Build the ViT and load its weights; frozen and in evaluation mode."""
    global _loads
    _loads += 1
    if config.name == embedded.NAME:
        vit, mean, std = embedded.load(config.image_size)
    else:
        vit = _from_timm(config)
        mean, std = vit.pretrained_cfg["mean"], vit.pretrained_cfg["std"]
    if config.weights:
        load_weights(vit, config.weights)
    vit.requires_grad_(False).eval().to(device)
    return Backbone(vit, tuple(mean), tuple(std), weights_digest(vit))


def weights_digest(vit: VisionTransformer) -> str:
    """sha256 over names, shapes and values; equal on all nodes that hold the same backbone."""
    digest = hashlib.sha256()
    for name, value in sorted(vit.state_dict().items()):
        digest.update(f"{name}{tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().float().numpy().tobytes())
    return digest.hexdigest()


def _from_timm(config: BackboneConfig) -> VisionTransformer:
    size = {"img_size": config.image_size} if config.image_size else {}
    try:
        vit = create_model(config.name, pretrained=config.pretrained, num_classes=0, **size)
    except RuntimeError as error:
        raise ConfigError(
            "backbone.name",
            f"timm cannot make {config.name!r}: {error}",
            f"Give a timm ViT (timm.list_models('vit*')) or {embedded.NAME!r}",
        ) from None
    except OSError as error:
        raise ConfigError(
            "backbone.pretrained",
            f"the weights of {config.name!r} cannot be downloaded: {error}",
            "Set backbone.pretrained=false and backbone.weights to a local file",
        ) from None
    if not isinstance(vit, VisionTransformer):
        kind = type(vit).__name__
        raise ConfigError(
            "backbone.name", f"{config.name!r} is a {kind}, not a ViT", "Give a timm ViT"
        )
    return vit
