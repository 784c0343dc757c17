"""The frozen ViT: built by timm, loaded once per process, identified by a digest of its weights."""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from timm import create_model
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import BackboneConfig, RuntimeConfig
from pip_flower.models import embedded
from pip_flower.models.embedded import Statistics
from pip_flower.models.plain_vit import encode_plainly
from pip_flower.models.prompted_vit import CLS, NO_PROMPTS, AttachedPrompts, encode, unsupported
from pip_flower.models.weights import check_weights, load_weights
from pip_flower.runtime import devices
from pip_flower.runtime.devices import autocast
from pip_flower.runtime.process import once_per_process
from pip_flower.runtime.streams import stream_seed

Encoder = Callable[[VisionTransformer, Tensor, AttachedPrompts, slice], Tensor]
_log = logging.getLogger(__name__)
_loads = 0


@dataclass(frozen=True)
class Backbone:
    """A frozen timm VisionTransformer and what the rest needs to know of it."""

    vit: VisionTransformer
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    digest: str
    runtime: RuntimeConfig
    encoder: Encoder = encode
    in_pieces: bool = True

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

    def encode(self, images: Tensor, prompts: AttachedPrompts = NO_PROMPTS, read: slice = CLS) -> Tensor:
        """The tokens at `read` after the final norm, in float32; images [B, 3, S, S] -> [B, R, D]."""
        size = len(images)
        if self.in_pieces:
            size = devices.images_at_once(self._tokens(images), images.device)
        parts = []
        with autocast(self.runtime, images.device):
            for start in range(0, len(images), size):
                rows = slice(start, start + size)
                pixels = devices.patch_layout(images[rows])
                parts.append(self.encoder(self.vit, pixels, prompts.rows(rows), read))
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).float()

    def query(self, images: Tensor) -> Tensor:
        """q(x): CLS after the final norm, without prompts; images [B, 3, S, S] -> [B, D]."""
        with torch.inference_mode():
            features = self.encode(images).squeeze(1)
        # An ordinary tensor again: the matching loss keeps it for the gradient of the keys.
        return features.clone()

    def without_shortcuts(self) -> "Backbone":
        """The same ViT through the plain pass, whole batches at a time."""
        return replace(self, encoder=encode_plainly, in_pieces=False)

    def _tokens(self, images: Tensor) -> int:
        height, width = self.vit.patch_embed.patch_size
        patches = (images.shape[-2] // height) * (images.shape[-1] // width)
        return int(patches + self.vit.num_prefix_tokens)


def shared_backbone(config: BackboneConfig, settings: RuntimeConfig, device: torch.device) -> Backbone:
    """The backbone of this process; every client that lives in the process uses the same one."""
    key = ("backbone", config, settings, device)
    return once_per_process(key, lambda: load_backbone(config, settings, device))


def backbone_loads() -> int:
    """How often this process has loaded a backbone; 1 however many clients it served."""
    return _loads


def load_backbone(config: BackboneConfig, settings: RuntimeConfig, device: torch.device) -> Backbone:
    """Build the ViT and load its weights; frozen and in evaluation mode."""
    global _loads
    _loads += 1
    vit, mean, std = _built(config)
    if config.weights:
        load_weights(vit, config.weights)
    return freeze(vit, mean, std, settings, device)


def outline_backbone(config: BackboneConfig, settings: RuntimeConfig) -> Backbone:
    """A backbone that cannot compute, but refuses what `load_backbone` would refuse, and is there at once:
    neither the weights nor a file of them are read. Those that timm is to get, it gets."""
    if config.name == embedded.NAME or config.pretrained:
        vit, mean, std = _built(config)
    else:
        with torch.device("meta"):
            vit, mean, std = _built(config)
    if config.weights:
        check_weights(vit, config.weights)
    return Backbone(vit, mean, std, "", settings)


def freeze(
    vit: VisionTransformer,
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
    settings: RuntimeConfig,
    device: torch.device,
) -> Backbone:
    """A backbone from a ViT whose weights are final; its digest is that of the float32 weights."""
    digest = weights_digest(vit)
    encoder = devices.compiled(encode, settings)
    return Backbone(devices.frozen(vit, settings, device), mean, std, digest, settings, encoder)


def weights_digest(vit: VisionTransformer) -> str:
    """sha256 over names, shapes and values; equal on all nodes that hold the same backbone."""
    digest = hashlib.sha256()
    for name, value in sorted(vit.state_dict().items()):
        digest.update(f"{name}{tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().float().numpy().tobytes())
    return digest.hexdigest()


def _built(config: BackboneConfig) -> tuple[VisionTransformer, Statistics, Statistics]:
    """The ViT, and the mean and std its inputs expect."""
    if config.name == embedded.NAME:
        return embedded.load(config.image_size)
    vit = _from_timm(config)
    return vit, tuple(vit.pretrained_cfg["mean"]), tuple(vit.pretrained_cfg["std"])


def _from_timm(config: BackboneConfig) -> VisionTransformer:
    if config.pretrained and config.weights:
        raise ConfigError(
            "backbone.weights",
            f"{config.weights!r} is given although backbone.pretrained asks for timm's own weights",
            "Set backbone.pretrained=false or leave backbone.weights empty",
        )
    size = {"img_size": config.image_size} if config.image_size else {}
    # timm initialises from torch's global generator: the same weights everywhere, and its state kept.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(0, "random-backbone", config.name))
        vit = _create(config, size)
    if problem := unsupported(vit):
        raise ConfigError(
            "backbone.name", f"{config.name!r} cannot take prompts: {problem}", "Give a plain timm ViT"
        )
    if not config.pretrained and not config.weights:
        _log.warning("backbone %s has random weights: neither pretrained nor weights is set", config.name)
    return vit


def _create(config: BackboneConfig, size: dict[str, int]) -> VisionTransformer:
    try:
        return create_model(config.name, pretrained=config.pretrained, num_classes=0, **size)
    except (RuntimeError, TypeError, AssertionError) as error:
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
