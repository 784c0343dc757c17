"""One kind of work that clients do for the server: what they get, what they do, how replies are merged."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pip_flower.arrays import Arrays, NamedArrays, pick
from pip_flower.config.sections import Config
from pip_flower.data.samples import Samples
from pip_flower.method.merging import Mean, Merge, merged
from pip_flower.method.reply_checks import ArraySpec
from pip_flower.method.round import Round
from pip_flower.method.workspace import Workspace


@dataclass(frozen=True)
class ClientJob:
    """One client's work in one round; `memory` is what it kept from earlier ones, and never leaves it. It
    knows whether the round is the task's first or last."""

    round: int
    task: int
    partition: int
    arrays: Arrays
    samples: Samples
    memory: Arrays = field(default_factory=dict)
    starts_task: bool = False
    ends_task: bool = False


@dataclass(frozen=True)
class ClientUpdate:
    """What a client gives back: arrays, how many samples they rest on, metrics for the log; and
    what it keeps for itself (`memory`)."""

    arrays: NamedArrays
    samples: int
    metrics: dict[str, float]
    memory: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class Contribution:
    """A client's valid reply, and how often it has taken part in the task (this round included)."""

    partition: int
    participations: int
    update: ClientUpdate


class Exchange(ABC):
    """Training is one (`Method`); a method may have another at the end of each task (`Method.conclusion`).

    An exchange keeps no state of a run: the server holds the global arrays and passes them in, what comes
    back are the arrays that change.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    @property
    def config(self) -> Config:
        """The run's configuration."""
        return self.workspace.config

    @abstractmethod
    def received(self, task: int) -> tuple[str, ...]:
        """Names of what a client needs, in the order they travel."""

    @abstractmethod
    def returned(self, task: int) -> tuple[str, ...]:
        """Names of what a client replies with, in the order they travel."""

    def constant(self, task: int) -> tuple[str, ...]:  # noqa: ARG002
        """Names of what a client needs beside it that does not change during the task: it travels once, and
        clients keep it on disk."""
        return ()

    @abstractmethod
    def fit(self, job: ClientJob) -> ClientUpdate:
        """On a client: the work on its own samples."""

    def sent_down(self, task: int) -> tuple[str, ...]:
        """Names of what travels to a client in every round."""
        return self.received(task)

    def sent_up(self, task: int) -> tuple[str, ...]:
        """Names of what travels back; the server reads no more of it than `returned`."""
        return self.returned(task)

    def message(self, task: int, arrays: Arrays) -> NamedArrays:
        """On the server: what a client gets in every round, out of the global arrays."""
        return pick(arrays, self.sent_down(task))

    def expected(self, task: int, arrays: Arrays, samples: int) -> dict[str, ArraySpec]:  # noqa: ARG002
        """On the server: what the arrays of a reply that rests on `samples` samples must look like; by
        default as the global arrays of the same names."""
        return {name: ArraySpec.like(arrays[name]) for name in self.sent_up(task)}

    def inspect(self, task: int, reply: Arrays, samples: int) -> None:  # noqa: B027
        """On the server: raise `RejectedError` if arrays of the right shapes say something impossible."""

    def weight(self, contribution: Contribution) -> float:
        """How much a client counts in a mean: as much as it has samples."""
        return float(contribution.update.samples)

    def merging(self, round_: Round) -> Mapping[str, Merge]:
        """How each array of `returned` is merged: by default as a weighted mean."""
        return dict.fromkeys(self.returned(round_.task), Mean())

    def merge(self, round_: Round, contributions: Sequence[Contribution], arrays: Arrays) -> NamedArrays:
        """On the server: the global arrays that the replies change; contributions come in partition order."""
        updates = [contribution.update.arrays for contribution in contributions]
        weights = [self.weight(contribution) for contribution in contributions]
        return merged(arrays, updates, weights, self.merging(round_), self.config.aggregation)
