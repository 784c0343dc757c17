"""Which Flower node is which client now: node ids are random, partition ids are not; nodes come and go."""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType
from flwr.serverapp import Grid

from pip_flower.config.sections import Config, FederationConfig
from pip_flower.data.population import active_clients
from pip_flower.flower.records import CONFIG, content

# A node's first reply takes as long as it takes to import torch and load the backbone.
_LOADING_SECONDS = 120


class FederationError(RuntimeError):
    """The federation cannot do what the configuration asks for."""


class TooFewRepliesError(FederationError):
    """A round brought fewer valid replies than it needs."""


class RefusedError(ValueError):
    """A node that cannot take part, and why."""


@dataclass(frozen=True)
class _Said:
    """What a node says of itself."""

    partition: int
    states: frozenset[int]
    holdings: dict[int, int] | None

    @classmethod
    def of(cls, properties: ConfigRecord) -> "_Said":
        held = None
        if "held" in properties:
            reported = json.loads(str(properties["held"]))
            held = {int(label): int(count) for label, count in reported.items()}
        states = frozenset(int(round_) for round_ in str(properties["states"]).split())
        return cls(int(str(properties["partition"])), states, held)


class Roster:
    """Node ids by partition id, the rounds whose state each client still has and, where nodes report it, how
    many samples of each class they hold.

    A node is asked who it is when it first appears, and again when it was gone in between. `expected` are
    properties that all nodes must share, such as the digest of the backbone: a node with another one is
    refused. `run` identifies the run across interruptions.
    """

    def __init__(
        self,
        grid: Grid,
        config: FederationConfig,
        expected: Mapping[str, str],
        run: str,
        poll_seconds: float = 0.1,
    ) -> None:
        self.nodes: dict[int, int] = {}
        self.states: dict[int, frozenset[int]] = {}
        self.holdings: dict[int, dict[int, int]] = {}
        self.refused: dict[int, str] = {}
        self._grid, self._config, self._expected, self._run = grid, config, expected, run
        self._poll_seconds = poll_seconds
        self._known: set[int] = set()
        # Nodes whose reply is still to come, by the message that asks them.
        self._asked: dict[str, int] = {}

    def without_state(self, last_rounds: Mapping[int, int]) -> list[int]:
        """Those clients here that cannot go on from the state after the last round they took part in."""
        here = {client: round_ for client, round_ in last_rounds.items() if client in self.nodes}
        return sorted(client for client, round_ in here.items() if round_ not in self.states[client])

    def present(self, drawn: list[int], able: list[int], rng: np.random.Generator) -> list[int]:
        """The drawn clients that are here, and other able ones in place of those that are not."""
        here = self.nodes.keys() & set(drawn)
        others = rng.permutation(sorted(self.nodes.keys() & set(able) - set(drawn)))
        return sorted([*here, *map(int, others[: len(drawn) - len(here)])])

    def gather(self) -> None:
        """Wait until every partition has a node, or until enough have and the time for waiting is over."""
        config = self._config
        began = time.monotonic()
        while True:
            heard = self.refresh()
            missing = sorted(set(range(config.clients)) - self.nodes.keys())
            if not missing:
                return
            waited = time.monotonic() - began
            if waited >= config.wait_seconds and len(self.nodes) >= (config.min_nodes or config.clients):
                listed = ", ".join(map(str, missing))
                _say(f"starting without clients {listed}; they may join later")
                return
            # Who is there but has not replied may be busy loading; who was refused will not change its mind.
            loading = max(config.round_timeout, _LOADING_SECONDS) if self._asked else 0.0
            patience = max(config.wait_seconds, loading)
            hopeless = not self._asked and len(self._known) >= config.clients
            if waited >= patience or hopeless:
                raise FederationError(self._too_few(missing))
            if not heard:
                time.sleep(self._poll_seconds)

    def require(self, count: int) -> None:
        """See who is there; if fewer than `count` are, wait for them as long as at the start."""
        deadline = time.monotonic() + self._config.wait_seconds
        while self.refresh():
            pass
        while len(self.nodes) < count:
            if time.monotonic() >= deadline:
                raise FederationError(
                    f"only {len(self.nodes)} of at least {count} nodes are there after "
                    f"{self._config.wait_seconds:g} s (federation.wait_seconds){self._refusals()}"
                )
            time.sleep(self._poll_seconds)
            self.refresh()

    def doubt(self, partition: int) -> None:
        """A node that kept silent may be dead long before Flower notices: it is left out until it says
        who it is."""
        node = self.nodes.pop(partition)
        self._known.discard(node)
        _say(f"client {partition} (node {node}) kept silent; it is left out until it is heard of")

    def refresh(self) -> int:
        """Forget nodes that are gone, ask new ones who they are, read what replies have come; never wait.
        Returns how many replied."""
        here = set(self._grid.get_node_ids())
        self._forget(self._known - here)
        new = sorted(here - self._known)
        self._known |= here
        if new:
            questions = [Message(content(config={"run": self._run}), n, MessageType.QUERY) for n in new]
            sent = zip(self._grid.push_messages(questions), new, strict=True)
            self._asked |= {message: node for message, node in sent if message}
        replies = list(self._grid.pull_messages(list(self._asked))) if self._asked else []
        for reply in replies:
            self._admit(self._asked.pop(reply.metadata.reply_to_message_id), reply)
        return len(replies)

    def _forget(self, gone: set[int]) -> None:
        self._known -= gone
        self._asked = {message: node for message, node in self._asked.items() if node not in gone}
        self.refused = {node: reason for node, reason in self.refused.items() if node not in gone}
        for partition in sorted(p for p, node in self.nodes.items() if node in gone):
            _say(f"client {partition} is gone (node {self.nodes.pop(partition)})")

    def _admit(self, node: int, reply: Message) -> None:
        try:
            if reply.has_error():
                raise RefusedError(
                    f"node {node} could not start: {' '.join(str(reply.error.reason).split())}"
                )
            properties = reply.content.config_records.get(CONFIG, ConfigRecord())
            said = self._read(node, properties)
        except RefusedError as error:
            self.refused[node] = str(error)
            _say(f"warning: {error}; it is refused")
            return
        partition = said.partition
        before = self.nodes.get(partition)
        self.nodes[partition], self.states[partition] = node, said.states
        if said.holdings is not None:
            self.holdings[partition] = said.holdings
        if before is not None:
            _say(f"client {partition} is now node {node} instead of {before}")

    def _read(self, node: int, properties: ConfigRecord) -> "_Said":
        try:
            said = _Said.of(properties)
        except (KeyError, ValueError, AttributeError):
            raise RefusedError(f"node {node} does not say who it is") from None
        partition = said.partition
        if not 0 <= partition < self._config.clients:
            raise RefusedError(f"node {node} claims to be client {partition} of {self._config.clients}")
        for key, value in self._expected.items():
            if properties.get(key) != value:
                raise RefusedError(
                    f"node {node} (partition {partition}) has another {key} than the server: "
                    f"{properties.get(key)!r} instead of {value!r}"
                )
        return said

    def _too_few(self, missing: list[int]) -> str:
        config = self._config
        return (
            f"{config.clients} clients are configured (federation.clients), but after "
            f"{config.wait_seconds:g} s only {len(self._known)} SuperNodes are there; no node serves "
            f"partition {', '.join(map(str, missing))}{self._refusals()}. In simulation run:  "
            f'flwr run . --stream --federation-config "num-supernodes={config.clients}"  On a deployment '
            "start the missing nodes, or set federation.min_nodes to begin without them"
        )

    def _refusals(self) -> str:
        listed = "; ".join(reason for _, reason in sorted(self.refused.items()))
        return f"; refused: {listed}" if listed else ""


def able_clients(
    held: Mapping[int, Mapping[int, int]], config: Config, task: int, classes: Iterable[int]
) -> list[int]:
    """Partitions that learn the task and, as far as nodes report it, hold samples of its classes."""
    wanted = set(classes)
    learning = active_clients(config, task).tolist()
    found = [p for p in learning if p not in held or wanted & held[p].keys()]
    if not found:
        raise FederationError(f"task {task + 1}: no client holds samples of its classes")
    return found


def _say(text: str) -> None:
    print(f"pip-flower: {text}", flush=True)
