"""One client's round, twice: through the project's own code, and written plainly.

The plain one computes the query of every image in every epoch and in the prototype pass, attends with
written-out matrices, computes every token of the last block, and keeps the graph in the prototype pass, as
the released code does. Both give the same losses and prototypes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor

from pip_flower import prototypes
from pip_flower.config.compose import Selection
from pip_flower.config.sections import BackboneConfig, Config
from pip_flower.fidelity import Paper
from pip_flower.method.configuration import load_config
from pip_flower.methods.pip.training import PromptTrainer
from pip_flower.models.backbone import Backbone, load_backbone
from pip_flower.models.heads import LinearHead
from pip_flower.models.prompts import Batch, DualPromptOptions, PromptStructure, make_structure
from pip_flower.prototypes import Prototypes

CLASSES, EPOCHS = 10, 2


@cache
def configuration() -> Config:
    """PIP-DualPrompt as configured by default, in float32 on the CPU."""
    overrides = "runtime.device=cpu runtime.precision=float32"
    return load_config(Selection(method="pip-dualprompt", overrides=overrides))


def random_backbone(model: str) -> Backbone:
    """A timm ViT with random weights: what a pass costs does not depend on their values."""
    config = BackboneConfig(name=model, pretrained=False, weights="", image_size=0)
    return load_backbone(config, configuration().runtime, torch.device("cpu"))


@dataclass(frozen=True)
class Work:
    """A client's samples, and the prompts that it starts from."""

    images: Tensor
    targets: Tensor
    state: dict[str, Tensor]
    batch_size: int

    def batches(self) -> list[slice]:
        """Consecutive batches."""
        return [slice(i, i + self.batch_size) for i in range(0, len(self.images), self.batch_size)]


def options(prompt_length: int) -> DualPromptOptions:
    """The default structure with another length of all its prompts."""
    default: DualPromptOptions = configuration().method.options.prompt
    return replace(default, general_length=prompt_length, expert_length=prompt_length)


def make_work(structure: PromptStructure, samples: int, batch_size: int) -> Work:
    """Random images of the backbone's size; the first task of a fresh model."""
    generator = torch.Generator().manual_seed(0)
    size, dim = structure.backbone.image_size, structure.backbone.dim
    state = structure.start_task(0, {}, generator) | LinearHead(dim).start_task(0, CLASSES, generator)
    images = torch.rand(samples, 3, size, size, generator=generator)
    return Work(images, torch.arange(samples) % CLASSES, state, batch_size)


class FastRound:
    """What a client of this project does; queries come from the cache."""

    def __init__(self, backbone: Backbone, samples: int, batch_size: int, prompt_length: int = 5) -> None:
        self.structure = make_structure(options(prompt_length), backbone, Paper(), tasks=1)
        self.work = make_work(self.structure, samples, batch_size)
        self.queries: Tensor | None = None

    def compute_queries(self) -> None:
        """Fill the cache: once in the life of an image."""
        rows = [self.structure.backbone.query(image[None]) for image in self.work.images]
        self.queries = torch.cat(rows)

    def start(self) -> PromptTrainer:
        """A client at the start of its round."""
        if self.queries is None:
            self.compute_queries()
        leaves = {name: value.clone().requires_grad_() for name, value in self.work.state.items()}
        return PromptTrainer(self.structure, leaves, 0, configuration().training, (0, 0))

    def train(self, trainer: PromptTrainer) -> float:
        """One epoch; its mean loss."""
        assert self.queries is not None
        work = self.work
        given = [Batch(work.images[rows], self.queries[rows], work.targets[rows]) for rows in work.batches()]
        return trainer.epoch(given, None)

    def prototypes(self, trainer: PromptTrainer) -> Prototypes:
        """The client's own class prototypes."""
        return self._summary(lambda images: trainer.features(images, None))

    def _summary(self, features: Callable[[Tensor], Tensor]) -> Prototypes:
        labels = self.work.targets.numpy().astype(np.int64)
        tables = [
            prototypes.summarise(features(self.work.images[rows]).detach().numpy(), labels[rows], Paper())
            for rows in self.work.batches()
        ]
        return prototypes.pool(tables)


class PlainRound(FastRound):
    """The same results without any shortcut."""

    def __init__(self, backbone: Backbone, samples: int, batch_size: int, prompt_length: int = 5) -> None:
        super().__init__(backbone.without_shortcuts(), samples, batch_size, prompt_length)

    def compute_queries(self) -> None:
        """Nothing is kept."""
        self.queries = torch.empty(0)

    def train(self, trainer: PromptTrainer) -> float:
        """One epoch, the query of every batch computed anew and the loss fetched in every step."""
        losses = []
        for rows in self.work.batches():
            images = self.work.images[rows]
            given = Batch(images, self.structure.backbone.query(images), self.work.targets[rows])
            losses.append(trainer.epoch([given], None))
        return float(np.mean(losses))

    def prototypes(self, trainer: PromptTrainer) -> Prototypes:
        """The same table; every batch pays for a query and a graph."""

        def features(images: Tensor) -> Tensor:
            query = self.structure.backbone.query(images)
            return self.structure.forward(trainer.state, images, query, task=0, tasks=1).features

        return self._summary(features)
