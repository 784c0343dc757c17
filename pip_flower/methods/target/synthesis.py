"""Images that the server makes from a model alone: no client's image is involved."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pip_flower.arrays import Arrays
from pip_flower.config.schema import Bounds, ConfigError
from pip_flower.method.descent import descend
from pip_flower.methods.networks.model import ModelTraining
from pip_flower.methods.rehearsal.distillation import softened
from pip_flower.methods.target.generator import make_generator
from pip_flower.models.network import load_arrays
from pip_flower.runtime.streams import stream, stream_seed, torch_stream

_STUDENT_TEMPERATURE = 20.0
Images = NDArray[np.uint8]


@dataclass(frozen=True)
class SynthesisOptions:
    """How many images, how the generator is trained, and the student that it is to outwit."""

    images: Annotated[int, Bounds(2)]
    batch: Annotated[int, Bounds(2)]
    noise: Annotated[int, Bounds(1)]
    steps: Annotated[int, Bounds(1)]
    generator_rate: Annotated[float, Bounds(0, 0.1, exclusive_minimum=True)]
    noise_rate: Annotated[float, Bounds(0, 1, exclusive_minimum=True)]
    statistics: Annotated[float, Bounds(0)]
    label: Annotated[float, Bounds(0)]
    adversarial: Annotated[float, Bounds(0)]
    warm_up: Annotated[int, Bounds(0)]
    student_steps: Annotated[int, Bounds(0)]
    student_rate: Annotated[float, Bounds(0, 1, exclusive_minimum=True)]

    @property
    def calls(self) -> int:
        """Batches of images that make up all of them."""
        return -(-self.images // self.batch)

    def check(self, classes: int) -> None:
        """Refuse fewer images than the `classes` that they stand for, and a student that never plays."""
        if self.images < classes:
            raise ConfigError(
                "method.synthesis.images",
                f"{self.images} images cannot cover the {classes} classes before the last task",
                f"Give {classes} or more",
            )
        if self.adversarial and self.warm_up >= self.calls:
            raise ConfigError(
                "method.synthesis.warm_up",
                f"all {self.calls} batches of method.synthesis.batch images are warm-up, so that the "
                "adversarial term would never count",
                f"Give less than {self.calls}, or method.synthesis.adversarial=0",
            )


@dataclass
class Statistics:
    """What the layers of batch normalisation have seen in the last pass, against what they remember."""

    distances: list[Tensor] = field(default_factory=list)

    def total(self, images: Tensor) -> Tensor:
        """Of the last pass; 0 for a network without such layers."""
        return sum(self.distances, images.new_zeros(()))


@contextmanager
def watched_statistics(network: nn.Module) -> Iterator[Statistics]:
    """The distances of mean and variance of each layer's input to its running ones, while it is open."""
    found = Statistics()

    def begin(*_: object) -> None:
        found.distances.clear()

    def note(layer: nn.Module, given: tuple[Tensor, ...], _: object) -> None:
        assert isinstance(layer, nn.BatchNorm2d)
        assert layer.running_mean is not None
        assert layer.running_var is not None
        (maps,) = given
        means, variances = maps.mean(dim=(0, 2, 3)), maps.var(dim=(0, 2, 3), unbiased=False)
        found.distances.append(torch.linalg.vector_norm(means - layer.running_mean))
        found.distances.append(torch.linalg.vector_norm(variances - layer.running_var))

    layers = [layer for layer in network.modules() if isinstance(layer, nn.BatchNorm2d)]
    hooks = [
        network.register_forward_pre_hook(begin),
        *(layer.register_forward_hook(note) for layer in layers),
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


class Synthesis:
    """Makes images for a model of `training`, which stays as it is."""

    def __init__(self, training: ModelTraining, options: SynthesisOptions) -> None:
        self.training = training
        self.options = options

    def images(self, task: int, arrays: Arrays) -> Images:
        """Images [n, S, S, 3] of all classes seen when `task` ends; `arrays` are the global model."""
        load_arrays(self.training.network, arrays)
        self.training.network.eval()
        with watched_statistics(self.training.network) as statistics:
            contest = _Contest(self.training, self.options, task, arrays, statistics)
            for call in range(self.options.calls):
                contest.make_batch(call)
                contest.teach_student(call)
        made = torch.cat(contest.made)[: self.options.images]
        return (made * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().contiguous().numpy()


class _Contest:
    """The generator makes images that the model is sure of, and that a student has not learnt yet."""

    def __init__(
        self,
        training: ModelTraining,
        options: SynthesisOptions,
        task: int,
        arrays: Arrays,
        statistics: Statistics,
    ) -> None:
        self.training, self.options, self.statistics, self.task = training, options, statistics, task
        self.seed, self.device = training.workspace.config.seed, training.workspace.device
        self.tasks = range(task + 1)
        names = training.head.names_of(self.tasks)
        self.rows = {name: torch.tensor(arrays[name], device=self.device) for name in names}
        self.classes = len(training.workspace.tasks.seen(task + 1))
        self.generator = make_generator(
            options.noise, training.options.image_size, stream_seed(self.seed, "generator", task)
        ).to(self.device)
        self.rates = torch.optim.Adam(self.generator.parameters(), options.generator_rate)
        self.student = self._make_student().to(self.device)
        self.pace = torch.optim.SGD(
            self.student.parameters(), options.student_rate, momentum=0.9, weight_decay=1e-4
        )
        self.made: list[Tensor] = []

    def _make_student(self) -> nn.Module:
        seed = stream_seed(self.seed, "student", self.task)
        network = self.training.make(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return nn.Sequential(network, nn.Linear(self.training.head.width, self.classes))

    def make_batch(self, call: int) -> None:
        """Train the generator and the noise that it starts from; the images with the smallest loss stay."""
        drawn = torch_stream(self.seed, "noise", self.task, call)
        noise = torch.randn(self.options.batch, self.options.noise, generator=drawn).to(self.device)
        noise.requires_grad_()
        targets = self._targets(call)
        steps = torch.optim.Adam([noise], self.options.noise_rate)
        parameters = [noise, *self.generator.parameters()]
        self.generator.train()
        self.student.eval()
        best, lowest = torch.empty(0), torch.inf
        for _ in range(self.options.steps):
            images = self.generator(noise)
            loss = self._loss(images, targets, call)
            if not len(best) or float(loss.detach()) < lowest:
                best, lowest = images.detach(), float(loss.detach())
            if not loss.isfinite():
                break
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.grad = gradient
            steps.step()
            self.rates.step()
        self.made.append(best)

    def _targets(self, call: int) -> Tensor:
        """Every class as often as another, over all calls, in random order."""
        first = call * self.options.batch
        order = stream(self.seed, "targets", self.task, call).permutation(self.options.batch)
        return torch.from_numpy((first + order) % self.classes).to(self.device)

    def _loss(self, images: Tensor, targets: Tensor, call: int) -> Tensor:
        """Statistics as the model remembers them, the wanted label, and disagreement with the student."""
        options, views = self.options, self.training.views.finish(images)
        logits = self._taught(views)
        loss = options.statistics * self.statistics.total(images)
        loss = loss + options.label * F.cross_entropy(logits, targets)
        if not options.adversarial or call < options.warm_up:
            return loss
        return loss - options.adversarial * disagreement(self.student(views), logits)

    def _taught(self, views: Tensor) -> Tensor:
        return self.training.head.logits(self.rows, self.training.network(views), self.tasks)

    def teach_student(self, call: int) -> None:
        """Let the student learn what the model says of the images so far."""
        if not self.options.student_steps or not self.options.adversarial:
            return
        self.student.train()
        clip = self.training.workspace.config.training.clip_norm
        descend(self._batches(call), self._student_loss, list(self.student.parameters()), self.pace, clip)

    def _batches(self, call: int) -> Iterator[Tensor]:
        pool = torch.cat(self.made)
        rng = stream(self.seed, "student", self.task, call)
        for _ in range(self.options.student_steps):
            rows = rng.choice(len(pool), self.options.batch, replace=False)
            yield self.training.views.finish(pool[torch.from_numpy(rows).to(self.device)])

    def _student_loss(self, views: Tensor) -> Tensor:
        with torch.no_grad():
            taught = self._taught(views)
        return softened(self.student(views), taught, _STUDENT_TEMPERATURE)


def disagreement(student: Tensor, teacher: Tensor) -> Tensor:
    """KL of the student's to the teacher's softmax of logits [B, C] where both name the same class, mean over
    the batch."""
    same = student.argmax(dim=1) == teacher.argmax(dim=1)
    apart = F.kl_div(student.log_softmax(dim=1), teacher.softmax(dim=1), reduction="none").sum(dim=1)
    return (apart * same).mean()
