"""HGP: prompts on a frozen ViT, and a head that the server rebalances on a mixture of its clients' Gaussians.

After R. Salami, P. Buzzega, M. Mosconi, M. Verasani and S. Calderara, "Federated Class-Incremental Learning
with Hierarchical Generative Prototypes", arXiv 2406.02447, 2024. Clients train prompts (CODA-Prompt's
components weighted by the cosine of query and key, without its attention) and the task's head rows, and
send a Gaussian with diagonal covariance per class. A class is the mixture of the Gaussians of those who
hold it, by samples; after every round the server draws classes alike often, then one of the class's
clients, then a feature, and fits the head of all classes seen to them, with logits of unit length. Draws,
rates and the factor on the variances are the authors' code's.

A class that nobody reports in a round keeps the Gaussians of the last round that had some. Left open: full
covariances, linear probing before a task, and class frequencies as a prior, which their code leaves uniform
too. With a robust aggregation rule a class is one Gaussian, merged by that rule.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from pip_flower import prototypes
from pip_flower.aggregation import is_plain
from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.config.schema import Bounds, ConfigError
from pip_flower.config.sections import Config
from pip_flower.method.exchange import ClientJob, Contribution
from pip_flower.method.round import Round
from pip_flower.method.workspace import Workspace
from pip_flower.methods.pip.pip import PIP, PIPOptions
from pip_flower.methods.pip.sharing import PrototypeSharing
from pip_flower.methods.refit import RefitOptions, joined_rows, refit, split_rows
from pip_flower.models.prompts import CODAOptions
from pip_flower.prototypes import Prototypes
from pip_flower.runtime.streams import torch_stream


@dataclass(frozen=True)
class RebalanceOptions(RefitOptions):
    """How the head is fitted, the temperature of its logits (0: as they are), and the factor on variances."""

    temperature: Annotated[float, Bounds(0)]
    variance: Annotated[float, Bounds(0)]


@dataclass(frozen=True)
class HGPOptions(PIPOptions):
    """PIP's options on CODA-Prompt's components, and those of the rebalancing."""

    prompt: CODAOptions
    rebalance: RebalanceOptions


class MixtureSharing(PrototypeSharing):
    """Gaussians travel to the server alone; its table has a row for each class and client."""

    def message(self, task: int, arrays: Arrays) -> NamedArrays:  # noqa: ARG002
        """Nothing: clients inject no prototypes."""
        return {}

    def known(self, job: ClientJob) -> Prototypes:  # noqa: ARG002
        """None."""
        return prototypes.empty(self.workspace.backbone.dim)

    def injects_own(self) -> bool:
        """Never."""
        return False

    def merged(
        self, task: int, updates: Sequence[Arrays], weights: Sequence[float], arrays: Arrays
    ) -> NamedArrays:
        """The rows of this round's clients; classes that nobody reported keep theirs."""
        if not is_plain(self.workspace.config.aggregation):
            return super().merged(task, updates, weights, arrays)
        fresh = prototypes.stacked([Prototypes.from_arrays(update) for update in updates])
        kept = Prototypes.from_arrays(arrays).without(fresh.classes.tolist())
        both = prototypes.stacked([kept, fresh])
        return both.at(np.argsort(both.classes, kind="stable")).as_arrays()


class HGP(PIP):
    """Training is PIP's without injection; `prototype.*` on the server is the mixture."""

    options: HGPOptions
    has_released_code = False

    @classmethod
    def check(cls, config: Config) -> None:
        """The server must have the Gaussians, and the head that it fits to them."""
        super().check(config)
        options: HGPOptions = config.method.options
        if not options.prototypes.share:
            raise ConfigError(
                "method.prototypes.share", "false leaves hgp nothing to rebalance the head on", "Give true"
            )
        if options.head != "shared":
            raise ConfigError(
                "method.head", f"{options.head!r} leaves hgp no head to rebalance", "Give method.head=shared"
            )

    def __init__(self, workspace: Workspace, options: HGPOptions) -> None:
        super().__init__(workspace, options)
        self.sharing = MixtureSharing(workspace, self.structure, options.prototypes)

    def received(self, task: int) -> tuple[str, ...]:
        """What the task trains."""
        return self.trained(task)

    def merge(self, round_: Round, contributions: Sequence[Contribution], arrays: Arrays) -> NamedArrays:
        """The averaged model with a rebalanced head."""
        merged = super().merge(round_, contributions, arrays)
        return merged | self._rebalanced(round_, {**arrays, **merged})

    def _rebalanced(self, round_: Round, arrays: Arrays) -> NamedArrays:
        """Head rows of all classes seen; a class without a Gaussian keeps its own."""
        tasks, options = self.workspace.tasks, self.options.rebalance
        seen, mixture = np.array(tasks.seen(round_.task + 1)), Prototypes.from_arrays(arrays)
        rows = np.flatnonzero(np.isin(seen, mixture.classes))
        if not len(rows):
            return {}
        weight, bias = joined_rows(self.head, arrays, round_.task + 1)
        generator = torch_stream(self.config.seed, "rebalance", round_.number)
        drawn = mixture_draws(mixture, seen[rows], options, generator)
        weight[rows], bias[rows] = refit(
            (weight[rows], bias[rows]),
            drawn,
            options,
            generator,
            temperature=options.temperature,
            annealed=True,
        )
        sizes = [len(labels) for labels in tasks.classes[: round_.task + 1]]
        return split_rows(self.head, (weight, bias), sizes)


def mixture_draws(
    mixture: Prototypes, classes: np.ndarray, options: RebalanceOptions, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """For each epoch features and their positions among `classes`: a class, then one of its rows by samples,
    then a feature."""
    mean = torch.from_numpy(mixture.mean).float()
    deviation = torch.from_numpy(np.sqrt(options.variance * mixture.variance.clip(min=0))).float()
    shares = np.where(mixture.classes == classes[:, None], mixture.count, 0).astype(np.float64)
    for _ in range(options.epochs):
        targets = torch.randint(len(classes), (options.draws * len(classes),), generator=generator)
        chosen = torch.multinomial(torch.from_numpy(shares)[targets], 1, generator=generator).squeeze(1)
        noise = torch.randn(len(targets), mean.shape[1], generator=generator)
        yield mean[chosen] + deviation[chosen] * noise, targets
