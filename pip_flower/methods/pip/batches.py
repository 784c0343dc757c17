"""What a client trains prompts on: augmented views, the queries that choose prompts, targets."""

from collections.abc import Iterator

import torch

from pip_flower.data.batches import own_batches
from pip_flower.method.exchange import ClientJob
from pip_flower.method.workspace import Workspace
from pip_flower.models.prompts import Batch, PromptStructure
from pip_flower.runtime.streams import torch_stream


def training_batches(
    workspace: Workspace, structure: PromptStructure, job: ClientJob, epoch: int
) -> Iterator[Batch]:
    """The batches of one epoch, in an order of its own."""
    config, fidelity = workspace.config, structure.fidelity
    names, own = (job.round, job.partition, epoch), len(job.samples)
    order = fidelity.batch_order(own, workspace.pool_size(job.task), workspace.stream("batches", *names))
    generator = torch_stream(config.seed, "views", *names)
    reads = structure.trains_with_query
    augmented = reads and fidelity.query(config.training.query) == "augmented"
    known = workspace.queries(job.samples) if reads and not augmented else None
    targets = torch.from_numpy(workspace.tasks.targets(job.samples.labels, job.task))
    for rows in own_batches(order, config.training.batch_size, own):
        images = workspace.views.train(job.samples.images[rows], generator)
        queries = structure.backbone.query(images) if augmented else None
        yield Batch(images, queries if known is None else known[rows], targets[rows].to(workspace.device))
