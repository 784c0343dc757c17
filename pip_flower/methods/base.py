"""What a method is: the model as named arrays, what a client does with them, how it predicts.

A method keeps no state of a run. The server holds the global arrays; a client gets those that a task needs,
and answers with those it changed.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from pip_flower.data.samples import Samples
from pip_flower.runtime import stream_seed
from pip_flower.validation import ArraySpec
from pip_flower.workbench import Workbench

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class ClientJob:
    """One client's work in one round; `memory` is what it kept from earlier ones, and never leaves it."""

    round: int
    task: int
    partition: int
    arrays: Arrays
    samples: Samples
    memory: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class ClientUpdate:
    """What a client gives back: arrays, how many samples they rest on, figures for the log; and
    what it keeps for itself (`memory`)."""

    arrays: dict[str, NDArray[Any]]
    samples: int
    metrics: dict[str, float]
    memory: Arrays = field(default_factory=dict)


class Method(ABC):
    """Base class of all methods; `options` is the dataclass the method was registered with."""

    def __init__(self, bench: Workbench, options: object) -> None:
        self.bench = bench
        self.options = options

    def fingerprint(self) -> str:
        """What all nodes must have in common beside the configuration: the frozen backbone."""
        return self.bench.backbone.digest

    @abstractmethod
    def start_task(self, task: int, arrays: Arrays) -> dict[str, NDArray[Any]]:
        """On the server, before a task's first round: the arrays that the task adds."""

    @abstractmethod
    def received(self, task: int) -> tuple[str, ...]:
        """Names of what a client needs in order to train `task`, in the order they travel."""

    @abstractmethod
    def returned(self, task: int) -> tuple[str, ...]:
        """Names of what a client answers with after training `task`, in the order they travel."""

    @abstractmethod
    def predicting(self, tasks: int) -> tuple[str, ...]:
        """Names of what prediction needs after `tasks` tasks."""

    def sent_down(self, task: int) -> tuple[str, ...]:
        """Names of what travels to a client that trains `task`."""
        return self.received(task) + self._passengers(task)

    def sent_up(self, task: int) -> tuple[str, ...]:
        """Names of what travels back; the server reads no more of it than `returned`."""
        return self.returned(task) + self._passengers(task)

    def _passengers(self, task: int) -> tuple[str, ...]:
        """With full messages: the rest of the model, which this task neither needs nor changes."""
        if not self.bench.config.wire.full or task == 0:
            return ()
        carried = {*self.received(task), *self.returned(task)}
        return tuple(name for name in self.predicting(task) if name not in carried)

    @abstractmethod
    def fit(self, job: ClientJob) -> ClientUpdate:
        """On a client: train on its own samples."""

    def keeps_memory(self) -> bool:
        """Whether `fit` hands back a memory that later rounds need; it is then kept on the client's disk."""
        return False

    def expected(self, task: int, arrays: Arrays, samples: int) -> dict[str, ArraySpec]:  # noqa: ARG002
        """On the server: what the arrays of an answer that rests on `samples` samples must look like; by
        default as the global arrays of the same names."""
        return {name: ArraySpec.like(arrays[name]) for name in self.sent_up(task)}

    def inspect(self, task: int, answer: Arrays, samples: int) -> None:  # noqa: B027
        """On the server: raise `RejectedError` if arrays of the right shapes say something impossible."""

    def candidates(self, tasks: int) -> tuple[int, ...]:
        """Labels that compete after `tasks` tasks, one for each column of `scores`."""
        return self.bench.tasks.seen(tasks)

    @abstractmethod
    def scores(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:
        """Scores [n, classes seen], a column for each of `candidates(tasks)`."""

    def samples(self, task: int, partition: int, round_: int) -> Samples:  # noqa: ARG002
        """What client `partition` trains on in a round of `task`: its own samples of the task."""
        return self.bench.client_samples(task, partition, "train")

    def predicts_on_clients(self) -> bool:
        """Whether only clients can predict, so that evaluation is theirs whatever is configured."""
        return False

    def own_arrays(self, tasks: int, memory: Arrays) -> dict[str, NDArray[Any]]:  # noqa: ARG002
        """What a client adds from its memory to the global arrays in order to predict."""
        return {}

    def seed(self, *names: str | int) -> int:
        """The seed of a named stream of this run."""
        return stream_seed(self.bench.config.seed, *names)


def pick(arrays: Arrays, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The named arrays, in the order of `names`."""
    return {name: arrays[name] for name in names}
