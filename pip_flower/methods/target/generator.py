"""A generator of images from noise."""

import torch
from torch import Tensor, nn

_CHANNELS = 128


class Generator(nn.Module):
    """Noise [B, width] -> images [B, 3, S, S] with values from 0 to 1: two times enlarged and convolved."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        half = -(-size // 2)
        self.side = -(-half // 2)
        self.spread = nn.Linear(width, _CHANNELS * self.side**2)
        self.paint = nn.Sequential(
            nn.BatchNorm2d(_CHANNELS),
            nn.Upsample(size=half),
            *_convolved(_CHANNELS, _CHANNELS),
            nn.Upsample(size=size),
            *_convolved(_CHANNELS, _CHANNELS // 2),
            nn.Conv2d(_CHANNELS // 2, 3, 3, padding=1),
            nn.Sigmoid(),
        )

    def forward(self, noise: Tensor) -> Tensor:
        """Images."""
        maps = self.spread(noise).view(-1, _CHANNELS, self.side, self.side)
        images: Tensor = self.paint(maps)
        return images


def make_generator(width: int, size: int, seed: int) -> Generator:
    """Initialised from `seed`, whatever the state of torch's own generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Generator(width, size)


def _convolved(given: int, wanted: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(given, wanted, 3, padding=1), nn.BatchNorm2d(wanted), nn.LeakyReLU(0.2)
