"""What a client of a method with exemplars trains on, and what the room of its memory is measured by."""

from typing import NamedTuple

from pip_flower.arrays import Arrays
from pip_flower.data.samples import Samples
from pip_flower.method.exchange import ClientJob
from pip_flower.method.workspace import Workspace
from pip_flower.methods.rehearsal.memory import ExemplarMemory, MemoryOptions, learnt_classes


class Rehearsal(NamedTuple):
    """The rules of the memory, how many samples the client has of the classes that it has learnt or learns
    now, those that it rehearses, and all that it trains on: its own and then these."""

    exemplars: ExemplarMemory
    learnt: int
    old: Samples
    samples: Samples


def rehearsal(workspace: Workspace, options: MemoryOptions, job: ClientJob) -> Rehearsal:
    """The job's samples, and the exemplars of classes that its task does not bring."""
    learnt = learnt_samples(workspace, job.partition, job.memory, job.samples)
    exemplars = ExemplarMemory(options.budget(learnt))
    present = workspace.tasks.classes[job.task]
    old = exemplars.rehearsed(job.memory, workspace.data.train, excluding=present)
    return Rehearsal(exemplars, learnt, old, job.samples.joined(old) if len(old) else job.samples)


def learnt_samples(workspace: Workspace, partition: int, kept: Arrays, samples: Samples) -> int:
    """How many training samples a client has of the classes in its memory and of those of `samples`."""
    held = workspace.holdings(partition)
    learnt = {*learnt_classes(kept), *samples.labels.tolist()}
    return sum(held[label] for label in learnt)
