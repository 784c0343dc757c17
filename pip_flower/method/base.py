"""What a method is: the model as named arrays, what clients and server do with them, how it predicts.

A method keeps no state of a run. The server holds the global arrays; a client gets those that a task needs,
and replies with those it changed.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from pip_flower.arrays import Arrays, NamedArrays
from pip_flower.config.schema import ConfigError
from pip_flower.config.sections import Config
from pip_flower.data.samples import Samples
from pip_flower.method.exchange import Exchange
from pip_flower.method.workspace import Workspace


class Method(Exchange):
    """Base class of all methods; `options` is the dataclass the method was registered with.

    As an exchange it is the training of a round. `conclusion`, where there is one, is a further exchange at
    the end of each task, after the last training: with every client that is there and holds samples of it.
    """

    conclusion: Exchange | None = None
    # Whether it works on the frozen ViT of the configuration's section `backbone`.
    uses_backbone = True
    # Whether its authors released code that `fidelity: released` reproduces.
    has_released_code = False
    # Whether a client that has replied once in a task is not asked again before the next task.
    asks_once_per_task = False

    @classmethod
    def check(cls, config: Config) -> None:
        """Raise a `ConfigError` for a configuration that the method cannot work with, before anything is
        loaded; its own options are `config.method.options`."""
        if config.fidelity == "released" and not cls.has_released_code:
            raise ConfigError(
                "fidelity",
                f"'released' has no meaning: there is no released code of {config.method.name}",
                "Give fidelity=paper",
            )

    def __init__(self, workspace: Workspace, options: object) -> None:
        super().__init__(workspace)
        self.options = options

    def fingerprint(self) -> str:
        """What all nodes must have in common beside the configuration: the frozen backbone."""
        return self.workspace.backbone.digest

    @abstractmethod
    def start_task(self, task: int, arrays: Arrays) -> NamedArrays:
        """Before a task's first round: the arrays that the task adds."""

    def start_round(self, task: int, arrays: Arrays) -> NamedArrays:  # noqa: ARG002
        """Before each round: the arrays that are reset."""
        return {}

    def draw(self, able: Sequence[int], count: int, rng: np.random.Generator) -> list[int]:
        """`count` of the clients that could take part in a round, sorted; fewer if there are not as many."""
        drawn = rng.choice(able, min(len(able), count), replace=False)
        return sorted(int(partition) for partition in drawn)

    def end_task(self, task: int, arrays: Arrays) -> NamedArrays:  # noqa: ARG002
        """After a task's last round and its conclusion, before it is evaluated: the arrays that the server
        makes of what it has."""
        return {}

    def sent_down(self, task: int) -> tuple[str, ...]:
        """As received; with full messages, everything else that prediction needs too."""
        return self.received(task) + self._passengers(task)

    def sent_up(self, task: int) -> tuple[str, ...]:
        """As returned; with full messages, everything else that prediction needs too."""
        return self.returned(task) + self._passengers(task)

    def _passengers(self, task: int) -> tuple[str, ...]:
        """With full messages: the rest of the model, which this task neither needs nor changes."""
        if not self.config.wire.full or task == 0:
            return ()
        carried = {*self.received(task), *self.returned(task)}
        return tuple(name for name in self.predicting(task) if name not in carried)

    def samples(self, task: int, partition: int, round_: int) -> Samples:  # noqa: ARG002
        """What client `partition` trains on in a round of `task`: its own samples of the task."""
        return self.workspace.client_samples(task, partition, "train")

    def keeps_memory(self) -> bool:
        """Whether `fit` hands back a memory that later rounds need; it is then kept on the client's disk."""
        return False

    @abstractmethod
    def predicting(self, tasks: int) -> tuple[str, ...]:
        """Names of what prediction needs after `tasks` tasks."""

    @abstractmethod
    def scores(self, arrays: Mapping[str, Tensor], samples: Samples, tasks: int) -> Tensor:
        """Scores [n, classes seen], a column for each of `candidates(tasks)`."""

    def candidates(self, tasks: int) -> tuple[int, ...]:
        """Labels that compete after `tasks` tasks, one for each column of `scores`."""
        return self.workspace.tasks.seen(tasks)

    def predicts_on_clients(self) -> bool:
        """Whether only clients can predict, so that evaluation is theirs whatever is configured."""
        return False

    def tests_on_clients(self) -> bool:
        """Whether accuracy is measured by the clients."""
        return self.config.evaluation.where == "clients" or self.predicts_on_clients()

    def own_arrays(self, tasks: int, memory: Arrays) -> NamedArrays:  # noqa: ARG002
        """What a client adds from its memory to the global arrays in order to predict."""
        return {}
