"""The head of PODNet's local similarity classifier: several proxies for each class."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from pip_flower.models.heads.base import Head, State

# Between copies of one sample; equal proxies would have equal gradients and never part.
_JITTER = 0.01


class ProxyHead(Head):
    """`head.t.proxies` [classes, K, D], and `head.scale` [1], learnt, which all tasks share; it comes with
    task 0 and starts at `scale`."""

    def __init__(self, width: int, prefix: str = "head", proxies: int = 10, scale: float = 1.0) -> None:
        super().__init__(width, prefix)
        self.proxies = proxies
        self.scale = scale

    @property
    def scale_name(self) -> str:
        """The scale, which a later task trains too though it is not among that task's names."""
        return f"{self.prefix}.scale"

    def proxies_name(self, task: int) -> str:
        """A task's proxies."""
        return f"{self.prefix}.{task}.proxies"

    def names(self, task: int) -> tuple[str, ...]:
        """A task's proxies, and with the first task the scale."""
        proxies = self.proxies_name(task)
        return (proxies, self.scale_name) if task == 0 else (proxies,)

    def start_task(self, task: int, classes: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Uniform within 1 / sqrt(D), as torch starts a linear layer."""
        bound = self.width**-0.5
        fresh = torch.empty(classes, self.proxies, self.width).uniform_(-bound, bound, generator=generator)
        proxies = {self.proxies_name(task): fresh}
        return proxies | {self.scale_name: torch.full((1,), self.scale)} if task == 0 else proxies

    def imprint(
        self, task: int, features_by_class: Sequence[Tensor], generator: torch.Generator
    ) -> dict[str, Tensor]:
        """A task's proxies, of unit length, from the features [n_c, D] of each of its classes: the centres
        of K clusters of the features' directions."""
        centres = [_centres(features, self.proxies, generator) for features in features_by_class]
        return {self.proxies_name(task): torch.stack(centres)}

    def similarities(self, state: State, features: Tensor, tasks: Sequence[int]) -> Tensor:
        """Features [B, D] -> g [B, classes of `tasks`], g_c = sum_k softmax_k(u_ck) u_ck of the cosines u
        [B, C, K]; between -1 and 1."""
        proxies = torch.cat([state[self.proxies_name(task)] for task in tasks])
        rows = F.normalize(proxies.flatten(0, 1), dim=1)
        cosines = F.linear(F.normalize(features, dim=1), rows).view(-1, *proxies.shape[:2])
        return (cosines.softmax(dim=2) * cosines).sum(dim=2)

    def logits(self, state: State, features: Tensor, tasks: Sequence[int]) -> Tensor:
        """scale * g."""
        return state[self.scale_name] * self.similarities(state, features, tasks)


def _centres(features: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Features [n, D] of one class -> unit centres [count, D]; on the CPU."""
    points = F.normalize(features.detach().float().cpu(), dim=1)
    different = points.unique(dim=0)
    if len(different) < count:
        return _repeated(different, count, generator)
    # Slow to import, and few methods come here.
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    # Several threads add up a centre in whatever order they finish: not the same bits in every run.
    with threadpool_limits(1):
        found = KMeans(count, n_init=10, random_state=seed).fit(points.numpy()).cluster_centers_
    return F.normalize(torch.from_numpy(found).float(), dim=1)


def _repeated(points: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """The few unit points [n, D], then copies of them moved a little, `count` in all; a class without any
    gets random directions."""
    n, width = points.shape
    noise = torch.randn(count - n, width, generator=generator)
    if n:
        noise = points[torch.arange(count - n) % n] + _JITTER * F.normalize(noise, dim=1)
    return F.normalize(torch.cat([points, noise]), dim=1)
