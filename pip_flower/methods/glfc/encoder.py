"""The small random network through which prototypes are sent as gradients, and how the proxy server rebuilds
images from them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_CHANNELS = 12
_KERNEL = 5


class GradientEncoder:
    """A LeNet with sigmoids and fixed random weights, the same on all machines, for images [3, S, S] of
    `classes` classes."""

    def __init__(self, size: int, classes: int, generator: torch.Generator, device: torch.device) -> None:
        half = -(-size // 2)
        side = -(-half // 2)
        self.size, self.classes, self.device = size, classes, device
        self.network = nn.Sequential(
            nn.Conv2d(3, _CHANNELS, _KERNEL, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Conv2d(_CHANNELS, _CHANNELS, _KERNEL, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Conv2d(_CHANNELS, _CHANNELS, _KERNEL, padding=2),
            nn.Sigmoid(),
            nn.Flatten(),
            nn.Linear(_CHANNELS * side * side, classes),
        )
        with torch.no_grad():
            for parameter in self.network.parameters():
                parameter.uniform_(-0.5, 0.5, generator=generator)
        self.network.to(device)
        self._parameters = list(self.network.parameters())
        self.width = sum(parameter.numel() for parameter in self._parameters)

    def gradient(self, image: Tensor, label: int, differentiable: bool = False) -> Tensor:
        """The gradient [P] of the cross-entropy of one image [3, S, S] by all weights."""
        target = torch.tensor([label], device=self.device)
        loss = F.cross_entropy(self.network(image[None]), target)
        parts = torch.autograd.grad(loss, self._parameters, create_graph=differentiable)
        return torch.cat([part.flatten() for part in parts])

    def label_of(self, gradient: Tensor) -> int:
        """The class behind a gradient [P]: after a sigmoid, only its row of the last weight falls."""
        weight, bias = self._parameters[-2:]
        rows = gradient[-weight.numel() - bias.numel() : -bias.numel()].view_as(weight)
        return int(rows.sum(dim=1).argmin())

    def rebuilt(
        self, gradient: Tensor, steps: int, iterations: int, kept: int, generator: torch.Generator
    ) -> Tensor:
        """Images whose gradient comes near `gradient` [P]: those after each of the last `kept` steps of
        L-BFGS from noise, each of so many iterations, unless they are beyond all numbers [n, 3, S, S]."""
        label = self.label_of(gradient)
        image = torch.randn(3, self.size, self.size, generator=generator).to(self.device).requires_grad_()
        optimizer = torch.optim.LBFGS([image], lr=0.1, max_iter=iterations)

        def distance() -> Tensor:
            optimizer.zero_grad()
            loss = (self.gradient(image, label, differentiable=True) - gradient).square().sum()
            loss.backward()
            # L-BFGS reads the number, not the graph.
            return loss.detach()

        found = []
        for _ in range(steps):
            optimizer.step(distance)
            found.append(image.detach().clone())
        last = torch.stack(found[-kept:])
        return last[last.flatten(1).isfinite().all(dim=1)]
