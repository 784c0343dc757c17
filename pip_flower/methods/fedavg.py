"""FedAvg: a whole network from scratch, averaged; with a proximal term it is FedProx."""

import torch
import torch.nn.functional as F
from torch import Tensor

from pip_flower.method.exchange import ClientJob, ClientUpdate
from pip_flower.method.registry import register
from pip_flower.methods.networks.method import NetworkMethod
from pip_flower.methods.networks.training import NetworkOptions, Step


class FedAvg(NetworkMethod):
    """Training is all there is to it."""

    def fit(self, job: ClientJob) -> ClientUpdate:
        """SGD on the client's samples of the task."""
        trained = self.training.fit(job, job.samples, 0, lambda step: self.loss(step, job))
        return ClientUpdate(trained.arrays, len(job.samples), trained.metrics)

    def loss(self, step: Step, job: ClientJob) -> Tensor:
        """Cross-entropy over the classes of the task."""
        targets = self.workspace.tasks.targets(step.labels, job.task)
        return F.cross_entropy(step.logits([job.task]), torch.from_numpy(targets).to(step.images.device))


register("fedavg", title="FedAvg (fine-tuning)", options=NetworkOptions, method=FedAvg)
