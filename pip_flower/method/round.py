"""One round, as it is handed from step to step."""

import time
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Failure:
    """A client whose reply was not used, and why."""

    client: int
    attempt: int
    reason: str

    def __str__(self) -> str:
        return f"client {self.client}: {self.reason}"


@dataclass
class Round:
    """Round `number` (from 1) of the run, which trains `task` (from 0).

    A round that too few clients finish is attempted again. `asked` are the clients (partition ids) of the
    present attempt, `excused` counts those that were drawn but had nothing left to do in the task, `failures`
    are those of all attempts, and so are the bytes of each message.
    """

    number: int
    task: int
    starts_task: bool
    ends_task: bool
    attempt: int = 0
    asked: list[int] = field(default_factory=list)
    excused: int = 0
    failures: list[Failure] = field(default_factory=list)
    bytes_down: list[int] = field(default_factory=list)
    bytes_up: list[int] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def seconds(self) -> float:
        """How long it has taken so far."""
        return time.monotonic() - self.began
