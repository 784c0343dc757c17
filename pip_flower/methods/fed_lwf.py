"""LwF, federated: the old model's outputs on new images are kept; no exemplars.

After Z. Li and D. Hoiem, "Learning without Forgetting", ECCV 2016. The old model is the global model at the
end of the task before. Its weight of 3 is that of a published federated comparison. The paper's warm-up of
new head rows is left out."""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from pip_flower.config.schema import Bounds
from pip_flower.method.exchange import ClientJob, ClientUpdate
from pip_flower.method.registry import register
from pip_flower.methods.networks.training import NetworkOptions, Step
from pip_flower.methods.rehearsal.distillation import softened
from pip_flower.methods.rehearsal.method import TaughtMethod


@dataclass(frozen=True)
class LwFOptions(NetworkOptions):
    """How soft the distillation is, and how much it weighs."""

    temperature: Annotated[float, Bounds(0.1)]
    distillation: Annotated[float, Bounds(0)]


class FedLwF(TaughtMethod):
    """Fine-tuning beside a teacher."""

    options: LwFOptions

    def fit(self, job: ClientJob) -> ClientUpdate:
        """SGD on own samples of the task."""
        self.teacher.load(job.task, job.arrays)
        return super().fit(job)

    def loss(self, step: Step, job: ClientJob) -> Tensor:
        """Cross-entropy over the classes of the task + l KD_T over those of earlier ones."""
        loss = super().loss(step, job)
        if job.task == 0:
            return loss
        old = range(job.task)
        taught = self.teacher.logits(step.images, old)
        return loss + self.options.distillation * softened(step.logits(old), taught, self.options.temperature)


register("fed-lwf", title="LwF, federated", options=LwFOptions, method=FedLwF, keeps="model of the last task")
