"""How much of what a client holds it has learnt: what the room of its memory is measured by."""

from pip_flower.arrays import Arrays
from pip_flower.data.samples import Samples
from pip_flower.method.workspace import Workspace
from pip_flower.methods.rehearsal.memory import learnt_classes


def learnt_samples(workspace: Workspace, partition: int, kept: Arrays, samples: Samples) -> int:
    """How many training samples a client has of the classes in its memory and of those of `samples`."""
    held = workspace.holdings(partition)
    learnt = {*learnt_classes(kept), *samples.labels.tolist()}
    return sum(held[label] for label in learnt)
