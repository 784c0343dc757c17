"""GeoDL on iCaRL: features stay as they were along the geodesic between two subspaces.

After C. Simon, P. Koniusz and M. Harandi, "On Learning the Geodesic Path for Incremental Learning", CVPR
2021, on top of iCaRL's loss (S.-A. Rebuffi and others, "iCaRL", CVPR 2017). Of each batch, the features of
the old and of the new model span a subspace each; G is the integral of the flow from one to the other, and
old and new features are compared by it. Simplified: subspaces are those of centred features by an exact
decomposition of rank 32 at most. The weight 10 sqrt(n / m) is that of the authors' other base, since theirs
with iCaRL was not released. The classifier is linear."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pip_flower.config.schema import Bounds
from pip_flower.method.exchange import ClientJob
from pip_flower.method.registry import register
from pip_flower.methods.networks.training import NetworkTraining, Step
from pip_flower.methods.rehearsal.distillation import sigmoid_distillation
from pip_flower.methods.rehearsal.method import RehearsalMethod, RehearsalOptions

_TINY = 1e-6


@dataclass(frozen=True)
class GeoDLOptions(RehearsalOptions):
    """How much features must stay as they were, how that is measured, and in subspaces of which rank."""

    geodesic: Annotated[float, Bounds(0)]
    distance: Literal["cosine", "squared"]
    rank: Annotated[int, Bounds(1, 32)]


class GeoDL(RehearsalMethod):
    """Nothing but the model travels."""

    options: GeoDLOptions

    def make_training(self) -> NetworkTraining:
        """With the maps of the stages."""
        return NetworkTraining(self.workspace, self.options, maps=True)

    def loss(self, step: Step, job: ClientJob) -> Tensor:
        """iCaRL's, and the distance of last maps, pooled to 2 x 2, along the geodesic."""
        logits, columns = step.logits(range(job.task + 1)), self.columns(step, job.task)
        if job.task == 0:
            return sigmoid_distillation(logits, columns, None)
        taught = self.teacher.logits(step.images, range(job.task))
        loss = sigmoid_distillation(logits, columns, taught)
        old, new = self.class_counts(job.task)
        before = coarse(self.teacher.stages(step.images).maps[-1])
        apart = geodesic_distance(coarse(step.maps[-1]), before, self.options.rank, self.options.distance)
        return loss + self.options.geodesic * math.sqrt(old / new) * apart


def coarse(stage_map: Tensor) -> Tensor:
    """A map [B, C, H, W] pooled to 2 x 2 and flattened [B, 4 C]."""
    return F.adaptive_avg_pool2d(stage_map, 2).flatten(1)


def geodesic_distance(features: Tensor, before: Tensor, rank: int, distance: str) -> Tensor:
    """1 - the cosine of unit features z and ẑ [B, D] by G, or (z - ẑ)' G (z - ẑ); mean over the batch."""
    rank = max(1, min(rank, len(features) - 2))
    with torch.no_grad():
        frame, core = flow(basis(before, rank), basis(features, rank))
    now, then = (F.normalize(found, dim=1) @ frame for found in (features, before))
    if distance == "squared":
        return _product(now - then, now - then, core).mean()
    lengths = _product(now, now, core).clamp(min=_TINY) * _product(then, then, core).clamp(min=_TINY)
    return (1 - _product(now, then, core) / lengths.sqrt()).mean()


def basis(features: Tensor, rank: int) -> Tensor:
    """An orthonormal basis [D, rank] of the main directions of centred features [B, D]."""
    centred = features - features.mean(dim=0)
    found: Tensor = torch.linalg.svd(centred.T, full_matrices=False).U[:, :rank]
    return found


def flow(start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """A [D, 2 k] and [[L1, L2], [L2, L3]] [2 k, 2 k] of G = A [...] A', the integral of the geodesic flow
    between subspaces with orthonormal bases [D, k]; G itself is never formed."""
    left, cosines, right = torch.linalg.svd(start.T @ end)
    angles = torch.arccos(cosines.clamp(-1, 1))
    # What of the end is outside the start: -R U2 sin(angle), column by column.
    outside = end @ right.T - start @ left * cosines
    lengths = torch.linalg.vector_norm(outside, dim=0)
    sines = torch.where(lengths > _TINY, lengths, torch.inf)
    frame = torch.cat([start @ left, -outside / sines], dim=1)
    # sin(2 a) / (2 a) is one at a = 0.
    ratio = torch.sinc(2 * angles / math.pi)
    along, across = torch.diag((1 + ratio) / 2), torch.diag((1 - ratio) / 2)
    # (cos(2 a) - 1) / (4 a) = -sin(a)^2 / (2 a)
    mixed = torch.diag(-torch.sin(angles) * torch.sinc(angles / math.pi) / 2)
    return frame, torch.cat([torch.cat([along, mixed], 1), torch.cat([mixed, across], 1)])


def _product(first: Tensor, second: Tensor, core: Tensor) -> Tensor:
    """x' core y of each pair of rows [B, 2 k] -> [B]."""
    return ((first @ core) * second).sum(dim=1)


register(
    "geodl-icarl",
    title="GeoDL on iCaRL, federated",
    options=GeoDLOptions,
    method=GeoDL,
    keeps="exemplar images",
)
