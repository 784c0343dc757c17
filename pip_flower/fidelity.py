"""Where the paper and the authors' released code differ, one small method for each point.

`Paper` computes what the paper says (with its slips corrected). `Released` overrides exactly the points
at which the released code computes something else, so that its numbers can be reproduced. Everything
that is not a method here is the same in both.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.floating]
Rows = NDArray[np.int64]
Arrays = Mapping[str, NDArray[Any]]
Selection = Literal["sample", "batch"]
Query = Literal["cached", "augmented"]

RELEASED_POOL = 10


class Paper:
    """What the paper says."""

    name: Literal["paper", "released"] = "paper"
    # The ViT skips what no result depends on; without shortcuts, rounding errors are the released code's.
    shortcuts = True
    # Slots that exist from the start, or None for a pool that grows by one with each task.
    pool: int | None = None
    # Prototypes come from the deterministic view of the samples, or from the random training view.
    prototype_view: Literal["test", "train"] = "test"
    # A client without global prototypes may inject its own after an epoch (Algorithm 1).
    may_inject_own = True
    # Clients that have taken part in the task before go on with the head they left it with.
    keeps_head = False
    # Classes that compete at test time: those seen so far, or all of the data set.
    candidates: Literal["seen", "all"] = "seen"
    # Forgetting looks back at all evaluations, or at a matrix that each evaluation zeroes first.
    remembers_accuracies = True
    # Clients hold a fixed share of a task's samples, or draw classes anew in every round from a shared pool.
    redraws_classes = False
    # A class of the task that nobody reports in a round keeps the Gaussian of the rounds before.
    keeps_unreported = True

    def batch_order(self, samples: int, pool: int, rng: np.random.Generator) -> Rows:  # noqa: ARG002
        """What the batches of an epoch are cut from, in order: a client's own samples, shuffled. Positions
        from `samples` to `pool` would be those of others who hold the task; they fall out of a batch."""
        return rng.permutation(samples)

    def prototype_order(self, samples: int, pool: int, rng: np.random.Generator) -> Rows:  # noqa: ARG002
        """The same for the pass that prototypes are taken from: a client's own samples as they come."""
        return np.arange(samples)

    def prototype_batch_size(self, training: int, evaluation: int) -> int:  # noqa: ARG002
        """Of that pass, given the configured sizes."""
        return evaluation

    def selection(self, configured: Selection) -> Selection:
        """Whether each sample chooses its prompts, or the batch by majority vote."""
        return configured

    def query(self, configured: Query) -> Query:
        """Whether training queries come from the deterministic or from the augmented view."""
        return configured

    def expert_layout(self, chosen: Tensor, batch: int) -> Tensor:  # noqa: ARG002
        """Chosen prefixes [B or 1, blocks, 2, length, heads, d] as the samples' K (0) and V (1)."""
        return chosen

    def vote(self, choices: Tensor, pool: int, count: int) -> Tensor:
        """Majority vote of a batch: choices [B, k] of `pool` entries -> the `count` most frequent.

        Equal votes go to the lowest position, so the outcome is the same on every device.
        """
        votes = torch.zeros(pool, dtype=torch.int64, device=choices.device)
        votes.scatter_add_(0, choices.flatten(), torch.ones_like(choices.flatten()))
        return votes.sort(descending=True, stable=True).indices[:count]

    def cross_entropy(
        self,
        features: Tensor,
        head: tuple[Tensor, Tensor],
        targets: Tensor,
        others: tuple[int, int],  # noqa: ARG002
    ) -> Tensor:
        """CE over the task's classes: features [n, D], the task's rows of the head [C, D] and [C], targets
        [n] among them; `others` counts the classes of earlier and of later tasks, masked to -inf."""
        return F.cross_entropy(F.linear(features, *head), targets)

    def start_round(self, task: int, arrays: Arrays) -> dict[str, NDArray[Any]]:  # noqa: ARG002
        """What the server resets before it sends the arrays of a round: nothing."""
        return {}

    def averages_head(self, last_round_of_task: bool) -> bool:  # noqa: ARG002
        """Whether the head is averaged in this round: always."""
        return True

    def keeps_optimizer(self, task: int) -> bool:  # noqa: ARG002
        """Whether a client's optimizer state lives on from round to round of `task`: never."""
        return False

    def client_weight(self, participations: int, samples: int) -> float:
        """w_l = rho_l * n_l (Eq. 12)."""
        return float(participations * samples)

    def batch_variance(self, features: Floats) -> Floats:
        """Variance [D] of the features [n, D] of one class in one batch: population."""
        return np.asarray(features.var(axis=0))

    def global_variance(self, shares: Floats, means: Floats, variances: Floats, mean: Floats) -> Floats:
        """Eq. 15 for one class: shares [L, 1] that sum to 1, means and variances [L, D], mu_G [D].

        Written as the mean of var + (mu - mu_G)^2, which equals E[mu^2 + var] - mu_G^2 and cannot
        become negative.
        """
        return np.asarray((shares * (variances + (means - mean) ** 2)).sum(axis=0))

    def augment(
        self, mean: Floats, variance: Floats, copies: NDArray[np.int64], rng: np.random.Generator
    ) -> tuple[Floats, NDArray[np.int64]]:
        """Rows mu + beta * sigma, beta ~ U(0, 1) once per row, sigma = sqrt(var); `copies` [K] of them
        for each of the means [K, D]. With each row comes the position of its class."""
        rows = np.repeat(np.arange(len(mean)), copies)
        beta = rng.random((len(rows), 1))
        return mean[rows] + beta * np.sqrt(variance[rows]), rows


class Released(Paper):
    """What the released code computes, slips included."""

    name: Literal["paper", "released"] = "released"
    shortcuts = False
    # Tasks after the tenth have no slot of their own.
    pool = RELEASED_POOL
    prototype_view = "train"
    may_inject_own = False
    redraws_classes = True
    keeps_unreported = False
    keeps_head = True
    candidates = "all"
    remembers_accuracies = False

    def batch_order(self, samples: int, pool: int, rng: np.random.Generator) -> Rows:  # noqa: ARG002
        """Everybody's samples of the task, shuffled: batches shrink to the client's classes."""
        return rng.permutation(pool)

    def prototype_order(self, samples: int, pool: int, rng: np.random.Generator) -> Rows:
        """The batches of training once more; variances are those of batches, so it matters."""
        return self.batch_order(samples, pool, rng)

    def prototype_batch_size(self, training: int, evaluation: int) -> int:  # noqa: ARG002
        """That of training."""
        return training

    def selection(self, configured: Selection) -> Selection:  # noqa: ARG002
        """The batch votes, whatever is configured."""
        return "batch"

    def query(self, configured: Query) -> Query:  # noqa: ARG002
        """The query sees the very image that the prompted model sees."""
        return "augmented"

    def expert_layout(self, chosen: Tensor, batch: int) -> Tensor:
        """[blocks, 2, B, ...] read as [blocks, B, 2, ...] without a permute: the first half of the batch
        gets K for both, the second half V; the middle sample of an odd batch gets K and V."""
        stored = chosen.expand(batch, -1, -1, -1, -1, -1).permute(1, 2, 0, 3, 4, 5)
        return stored.reshape(-1, batch, 2, *chosen.shape[3:]).transpose(0, 1)

    def vote(self, choices: Tensor, pool: int, count: int) -> Tensor:
        """The same prompts; equal votes in whatever order `topk` gives them, as tokens are summed in it."""
        entries, votes = torch.unique(choices, return_counts=True)
        entries = F.pad(entries, (0, pool - len(entries)))
        return entries[F.pad(votes, (0, pool - len(votes))).topk(count).indices]

    def cross_entropy(
        self, features: Tensor, head: tuple[Tensor, Tensor], targets: Tensor, others: tuple[int, int]
    ) -> Tensor:
        """The same loss from a head as wide as the data set, other classes' logits set to -inf: the width
        of a matrix product decides the order of its sums."""
        earlier, later = others
        weight = F.pad(head[0], (0, 0, earlier, later))
        logits = F.linear(features, weight, F.pad(head[1], others))
        columns = torch.arange(logits.shape[1], device=logits.device)
        other = (columns < earlier) | (columns >= logits.shape[1] - later)
        return F.cross_entropy(logits.masked_fill(other, -torch.inf), targets + earlier)

    def start_round(self, task: int, arrays: Arrays) -> dict[str, NDArray[Any]]:
        """Slot t becomes a copy of slot t-1 again: what earlier rounds taught it is lost."""
        own, previous = f"expert.{task}", f"expert.{task - 1}"
        return {own: arrays[previous].copy()} if {own, previous} <= arrays.keys() else {}

    def averages_head(self, last_round_of_task: bool) -> bool:
        """Only in a task's last round."""
        return last_round_of_task

    def keeps_optimizer(self, task: int) -> bool:
        """In the first task only."""
        return task == 0

    def client_weight(self, participations: int, samples: int) -> float:  # noqa: ARG002
        """Participation only."""
        return float(participations)

    def batch_variance(self, features: Floats) -> Floats:
        """Unbiased, then merged as if it were population; NaN for a single sample."""
        if len(features) == 1:
            return np.full(features.shape[1], np.nan)
        return np.asarray(features.var(axis=0, ddof=1))

    def global_variance(
        self,
        shares: Floats,  # noqa: ARG002
        means: Floats,  # noqa: ARG002
        variances: Floats,  # noqa: ARG002
        mean: Floats,
    ) -> Floats:
        """-mu_G^2: a misspelt variable keeps the sum of Eq. 15 at zero."""
        return np.asarray(-(mean**2))

    def augment(
        self,
        mean: Floats,
        variance: Floats,
        copies: NDArray[np.int64],  # noqa: ARG002
        rng: np.random.Generator,
    ) -> tuple[Floats, NDArray[np.int64]]:
        """One pair mu +- d * s for each class, d = rand / 3 in every dimension, s = var^2 (sic)."""
        step = rng.random(mean.shape) / 3 * variance**2
        rows = np.arange(len(mean))
        return np.concatenate([mean + step, mean - step]), np.concatenate([rows, rows])


def fidelity_named(name: str) -> Paper:
    """The fidelity that the configuration names."""
    return {"paper": Paper, "released": Released}[name]()
