"""What the ViT sees of a stored image: the random training view and the deterministic test view.

Images stay uint8 until they are on the device; resizing and flipping happen there.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as T

from pip_flower.config.sections import DatasetConfig

Statistics = tuple[float, float, float]
_CROP_TRIES = 10


class Views:
    """Both views, for images of one data set and one backbone."""

    def __init__(
        self,
        config: DatasetConfig,
        image_size: int,
        mean: Statistics,
        std: Statistics,
        device: torch.device,
    ) -> None:
        self.config = config
        self.size = image_size
        self.device = device
        self.statistics = (list(mean), list(std)) if config.normalize == "backbone" else None

    def test(self, images: NDArray[np.uint8]) -> Tensor:
        """uint8 [B, H, W, 3] -> float [B, 3, S, S], the same for the same image every time."""
        batch = self._to_device(images)
        resize = self.config.test_resize or self.size
        mode = InterpolationMode(self.config.test_interpolation)
        batch = T.resize(batch, [resize], interpolation=mode, antialias=True)
        return self.finish(T.center_crop(batch, [self.size, self.size]))

    def train(self, images: NDArray[np.uint8], generator: torch.Generator) -> Tensor:
        """uint8 [B, H, W, 3] -> float [B, 3, S, S], each sample cropped and flipped on its own."""
        batch = self._to_device(images)
        height, width = batch.shape[-2:]
        crops = [self._crop(height, width, generator) for _ in range(len(batch))]
        views = [
            T.resized_crop(image, *crop, size=[self.size, self.size], antialias=True)
            for image, crop in zip(batch, crops, strict=True)
        ]
        stacked = torch.stack(views)
        if self.config.flip:
            flipped = torch.rand(len(stacked), generator=generator) < 0.5
            mask = flipped.to(self.device).view(-1, 1, 1, 1)
            stacked = torch.where(mask, stacked.flip(-1), stacked)
        return self.finish(stacked)

    def _crop(self, height: int, width: int, generator: torch.Generator) -> tuple[int, int, int, int]:
        """A random crop (top, left, height, width) of a fraction of the area; all of it if none fits."""
        low, high = (math.log(ratio) for ratio in self.config.crop_ratio)
        smallest, largest = self.config.crop_scale
        for scale, ratio, down, right in torch.rand(_CROP_TRIES, 4, generator=generator).tolist():
            area = height * width * (smallest + (largest - smallest) * scale)
            aspect = math.exp(low + (high - low) * ratio)
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                return int(down * (height - h + 1)), int(right * (width - w + 1)), h, w
        return 0, 0, height, width

    def _to_device(self, images: NDArray[np.uint8]) -> Tensor:
        batch = torch.from_numpy(np.ascontiguousarray(images))
        if self.device.type == "cuda":
            batch = batch.pin_memory()
        return batch.to(self.device, non_blocking=True).permute(0, 3, 1, 2)

    def finish(self, batch: Tensor) -> Tensor:
        """uint8, or float from 0 to 1, [B, 3, S, S] -> float, normalised as configured."""
        scaled: Tensor = T.to_dtype(batch, torch.float32, scale=True)
        if self.statistics:
            scaled = T.normalize(scaled, *self.statistics)
        return scaled
