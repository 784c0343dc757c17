"""A small vision transformer from scratch, whose head has a token for each task."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from pip_flower.config.schema import Bounds, ConfigError
from pip_flower.data.batches import batches
from pip_flower.data.samples import Samples
from pip_flower.methods.networks.model import ModelOptions, ModelTraining
from pip_flower.models.heads import LinearHead, TaskAttentionHead
from pip_flower.models.network import load_arrays


@dataclass(frozen=True)
class EncoderOptions:
    """The blocks of self-attention that all tasks share."""

    patch: Annotated[int, Bounds(1)]
    width: Annotated[int, Bounds(1)]
    heads: Annotated[int, Bounds(1)]
    depth: Annotated[int, Bounds(1)]


@dataclass(frozen=True)
class TransformerOptions(ModelOptions):
    """The transformer."""

    encoder: EncoderOptions

    def check(self) -> None:
        """Refuse what does not divide."""
        for key, whole, part in (
            ("heads", self.encoder.width, self.encoder.heads),
            ("patch", self.image_size, self.encoder.patch),
        ):
            if whole % part:
                divided = "method.encoder.width" if key == "heads" else "method.image_size"
                raise ConfigError(
                    f"method.encoder.{key}",
                    f"{part} does not divide {divided} = {whole}",
                    "Give a divisor of it",
                )


class TransformerTraining(ModelTraining):
    """AdamW on encoder, block of task attention and the newest token and rows; earlier ones stay as they are.

    `divergence` tells the classes of the task from each other and from all earlier ones, by the newest token.
    """

    options: TransformerOptions
    head: TaskAttentionHead

    @property
    def divergence(self) -> LinearHead:
        """Its first row stands for all old classes."""
        return LinearHead(self.options.encoder.width, "divergence")

    def fingerprint(self) -> str:
        """What decides the shapes."""
        return f"transformer {self.options.encoder} {self.options.image_size}"

    def make(self, seed: int) -> nn.Module:
        """Blocks of timm's vision transformer, without a token of their own."""
        encoder = self.options.encoder
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made: nn.Module = VisionTransformer(
                img_size=self.options.image_size,
                patch_size=encoder.patch,
                embed_dim=encoder.width,
                depth=encoder.depth,
                num_heads=encoder.heads,
                num_classes=0,
                class_token=False,
                global_pool="",
            )
        return made

    def make_head(self) -> TaskAttentionHead:
        """With as many heads of attention as the encoder."""
        return TaskAttentionHead(self.options.encoder.width, self.options.encoder.heads)

    def optimizer(self, parameters: Sequence[Tensor], rate: float) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(parameters, rate, weight_decay=self.options.weight_decay)

    def rows(self, task: int) -> tuple[str, ...]:
        """Tokens and rows of all tasks, and the rows of the divergence, which the first task has none of."""
        return (*super().rows(task), *(self.divergence.names(task) if task else ()))

    def fixed(self, task: int) -> tuple[str, ...]:
        """Tokens and rows of earlier tasks."""
        return tuple(name for earlier in range(task) for name in self.head.own_names(earlier))

    @torch.inference_mode()
    def scores(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:
        """Logits of all classes seen [n, classes], some images at a time: features of patches are large."""
        load_arrays(self.network, arrays)
        return self._over(samples, lambda patches: self.head.logits(arrays, patches, range(tasks)))

    def unit_features(self, samples: Samples) -> NDArray[np.float32]:
        """The mean of an image's patches, of length 1 [n, D]."""
        if not len(samples):
            return np.zeros((0, self.head.width), dtype=np.float32)
        means = self._over(samples, lambda patches: patches.mean(dim=1))
        found: NDArray[np.float32] = nn.functional.normalize(means, dim=1).cpu().numpy()
        return found

    @torch.inference_mode()
    def _over(self, samples: Samples, read: Callable[[Tensor], Tensor]) -> Tensor:
        self.network.eval()
        parts = batches(np.arange(len(samples)), self.workspace.config.evaluation.batch_size)
        return torch.cat([read(self.network(self.views.test(samples.images[rows]))) for rows in parts])
