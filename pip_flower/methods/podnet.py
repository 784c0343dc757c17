"""PODNet: pooled maps of every stage stay as they were, and a classifier of several proxies.

After A. Douillard, M. Cord, C. Ollion, T. Robert and E. Valle, "PODNet: Pooled Outputs Distillation for
Small-Tasks Incremental Learning", ECCV 2020. The loss has the margin between classes and the hinge of the
paper, which the released code leaves without effect. New proxies are imprinted by the mean of a class, not by
k-means: clients' clusters have no common order to average them by. Features have no last ReLU; the maps of
earlier stages have one. Exemplars follow the common memory, not 20 a class, and the learning rate
follows the run's configuration.
"""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from pip_flower.config.schema import Bounds
from pip_flower.method.exchange import ClientJob
from pip_flower.method.registry import register
from pip_flower.methods.networks.training import Step
from pip_flower.methods.rehearsal.distillation import feature_cosine, pooled_distance
from pip_flower.methods.rehearsal.proxies import ProxyOptions, ProxyRehearsal


@dataclass(frozen=True)
class PODNetOptions(ProxyOptions):
    """How much maps and features must stay as they were."""

    spatial: Annotated[float, Bounds(0)]
    flat: Annotated[float, Bounds(0)]


class PODNet(ProxyRehearsal):
    """Proxies of finished tasks are never sent back."""

    options: PODNetOptions

    def kept(self, step: Step, job: ClientJob) -> Tensor:  # noqa: ARG002
        """The distance of pooled maps, and the angle between features."""
        maps, features = self.teacher.stages(step.images)
        spatial = pooled_distance(step.maps, maps)
        return self.options.spatial * spatial + self.options.flat * feature_cosine(step.features, features)


register(
    "podnet",
    title="PODNet, federated",
    options=PODNetOptions,
    method=PODNet,
    keeps="exemplar images",
    sends="class means, within the proxies of a task's first round",
)
