"""FedAvg: a whole network from scratch, averaged; with a proximal term it is FedProx."""

from pip_flower.method.registry import register
from pip_flower.methods.networks.method import NetworkMethod
from pip_flower.methods.networks.training import NetworkOptions


class FedAvg(NetworkMethod):
    """Cross-entropy over the classes of the task, and nothing against forgetting."""


register("fedavg", title="FedAvg (fine-tuning)", options=NetworkOptions, method=FedAvg)
