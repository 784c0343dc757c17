"""FedAvg: a whole network from scratch, averaged; with a proximal term it is FedProx."""

from pip_flower.method.registry import register
from pip_flower.methods.networks.averaged import AveragedNetwork
from pip_flower.methods.networks.training import NetworkOptions


class FedAvg(AveragedNetwork):
    """Fine-tuning, task after task."""


register("fedavg", title="FedAvg (fine-tuning)", options=NetworkOptions, method=FedAvg)
