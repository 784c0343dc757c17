"""The clients of a run as the strategy sees them: who is there, messages to them, their replies."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from pip_flower.config.sections import FederationConfig
from pip_flower.method.round import Failure
from pip_flower.rounds.requests import Requests, Work
from pip_flower.rounds.roster import Roster
from pip_flower.rounds.watched_grid import OnReply, WatchedGrid, ignore_reply

T = TypeVar("T")


class Federation:
    """The grid and the roster of one run; `run` identifies it to clients, also after an interruption."""

    def __init__(self, grid: Grid, config: FederationConfig, expected: Mapping[str, str], run: str) -> None:
        self.grid = WatchedGrid(grid)
        self.roster = Roster(self.grid, config, expected, run, self.grid.poll_seconds)
        self.run = run
        self._timeout = config.round_timeout

    def everybody(self) -> list[int]:
        """All clients that are there now."""
        self.roster.refresh()
        return sorted(self.roster.nodes)

    def requests(self, work: Work, clients: Iterable[int], informed: Iterable[int] = ()) -> Requests:
        """Messages to `clients`, which are there; `informed` of them have the work's constant arrays."""
        nodes = {client: self.roster.nodes[client] for client in clients}
        return Requests(work, nodes, self._timeout, informed)

    def replies(self, requests: Requests, on_reply: OnReply = ignore_reply) -> list[Message]:
        """Send, and wait until all have replied or the time is over."""
        arrived = self.grid.send_and_receive(requests.messages(), timeout=self._timeout, on_reply=on_reply)
        return self.completed(requests, arrived)

    def completed(self, requests: Requests, arrived: list[Message]) -> list[Message]:
        """The replies, with those of clients that had to be asked again in full."""
        again = requests.again_in_full(arrived)
        if again is None:
            return arrived
        later = self.grid.send_and_receive(again.messages(), timeout=self._timeout)
        requests.replaced_by(again)
        return [*arrived, *later]

    def read(
        self, requests: Requests, replies: list[Message], read: Callable[[RecordDict], T], attempt: int = 0
    ) -> tuple[dict[int, T], list[Failure]]:
        """What each client replied, in partition order, and who failed; who kept silent is left out from now
        on, until it is heard of."""
        for partition in requests.silent(replies):
            self.roster.doubt(partition)
        return requests.read(replies, read, attempt)

    def take_counts(self) -> tuple[list[int], list[int]]:
        """Bytes of each message down and up since they were last taken."""
        return self.grid.take_counts()
