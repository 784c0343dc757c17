"""TARGET: no exemplars; clients distil on images that the server makes from the global model.

J. Zhang, C. Chen, W. Zhuang, L. Lyu: TARGET: Federated Class-Continual Learning via Exemplar-Free
Distillation, ICCV 2023.

When a task ends, the server trains a generator against the global model: images whose statistics the layers
of batch normalisation remember, that the model gives the wanted label, and that a student disagrees about.
In the next task clients learn the new classes by cross-entropy and keep to the old model on these images.

Simplified: generated images are not augmented while they are made. The adversarial term counts after a few
batches, where the settings of the released code end before it begins. Left open: nothing ties the logits of
new classes to those of old ones, in the released code as here.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.config.schema import Bounds
from pip_flower.config.sections import Config
from pip_flower.data.tasks import split_tasks
from pip_flower.method.exchange import ClientJob, ClientUpdate, Contribution
from pip_flower.method.workspace import Workspace
from pip_flower.methods.networks.method import NetworkMethod
from pip_flower.methods.networks.training import NetworkOptions, Step
from pip_flower.methods.rehearsal.distillation import softened
from pip_flower.methods.rehearsal.teacher import Teacher
from pip_flower.methods.target.synthesis import Images, Synthesis, SynthesisOptions
from pip_flower.runtime.streams import stream, torch_stream

SYNTHETIC = "synthetic.images"


@dataclass(frozen=True)
class TARGETOptions(NetworkOptions):
    """How strongly the old model is kept to, at which temperature, and how the server makes images."""

    distillation: Annotated[float, Bounds(0)]
    temperature: Annotated[float, Bounds(0.1)]
    synthesis: SynthesisOptions


class SyntheticBatches:
    """Training views of the server's images, in an order that is a client's own in each round."""

    def __init__(self, method: "TARGET", job: ClientJob) -> None:
        seed, names = method.config.seed, (job.round, job.partition)
        self.images: Images = np.asarray(job.arrays[SYNTHETIC])
        self._views = method.training.views
        self._rng = stream(seed, "synthetic", *names)
        self._generator = torch_stream(seed, "synthetic-views", *names)

    def draw(self, count: int) -> Tensor:
        """`count` of them, or all if there are not as many."""
        rows = self._rng.choice(len(self.images), min(count, len(self.images)), replace=False)
        return self._views.train(self.images[rows], self._generator)


class TARGET(NetworkMethod):
    """The server sends `synthetic.images` [n, S, S, 3] and the old model, once per task; clients send the
    model and nothing else."""

    options: TARGETOptions

    @classmethod
    def check(cls, config: Config) -> None:
        """Images enough for all classes that need them."""
        super().check(config)
        tasks = split_tasks(config)
        config.method.options.synthesis.check(len(tasks.seen(len(tasks) - 1)))

    def __init__(self, workspace: Workspace, options: TARGETOptions) -> None:
        super().__init__(workspace, options)
        self.teacher = Teacher(self.training)
        self.synthesis = Synthesis(self.training, options.synthesis)

    def constant(self, task: int) -> tuple[str, ...]:
        """The teacher and the images."""
        return (*self.teacher.names(task), *((SYNTHETIC,) if task else ()))

    def end_task(self, task: int, arrays: Arrays) -> NamedArrays:
        """The next task's teacher, and images made from it; nothing comes after the last task."""
        taught = self.teacher.end_task(task, arrays)
        if task == len(self.workspace.tasks) - 1:
            return taught
        return taught | {SYNTHETIC: self.synthesis.images(task, arrays)}

    def weight(self, contribution: Contribution) -> float:  # noqa: ARG002
        """Every client alike."""
        return 1.0

    def fit(self, job: ClientJob) -> ClientUpdate:
        """SGD on the client's samples of the task, beside synthetic images of the earlier ones."""
        self.teacher.load(job.task, job.arrays)
        synthetic = SyntheticBatches(self, job) if job.task else None
        loss = partial(self.objective, task=job.task, synthetic=synthetic)
        trained = self.training.fit(job, job.samples, 0, loss)
        return ClientUpdate(trained.arrays, len(job.samples), trained.metrics)

    def objective(self, step: Step, task: int, synthetic: SyntheticBatches | None) -> Tensor:
        """Cross-entropy over the classes of the task; on synthetic images, the old model's logits."""
        targets = torch.from_numpy(self.workspace.tasks.targets(step.labels, task)).to(step.images.device)
        loss = F.cross_entropy(step.logits([task]), targets)
        if synthetic is None or not self.options.distillation:
            return loss
        images = synthetic.draw(len(step.labels))
        old = range(task)
        logits = step.head.logits(step.rows, self.training.network(images), old)
        taught = self.teacher.logits(images, old)
        return loss + self.options.distillation * softened(logits, taught, self.options.temperature)
