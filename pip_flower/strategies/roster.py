"""Which Flower node is which client: node ids are random, partition ids are not."""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, Message, MessageType
from flwr.serverapp import Grid

from pip_flower.config import Config, FederationConfig
from pip_flower.data.population import active_clients
from pip_flower.records import CONFIG, content


class FederationError(RuntimeError):
    """The federation cannot do what the configuration asks for."""


class TooFewAnswersError(FederationError):
    """A round brought fewer valid answers than it needs."""


@dataclass(frozen=True)
class Roster:
    """Node ids by partition id, the rounds whose state each client still has and, where nodes report it, how
    many samples of each class they hold."""

    nodes: Mapping[int, int]
    states: Mapping[int, frozenset[int]] = field(default_factory=dict)
    held: Mapping[int, Mapping[int, int]] = field(default_factory=dict)

    def able(self, config: Config, task: int, classes: Iterable[int]) -> list[int]:
        """Partitions that learn the task and, as far as nodes report, hold samples of its classes."""
        wanted = set(classes)
        learning = active_clients(config, task).tolist()
        found = [p for p in learning if p not in self.held or wanted & self.held[p].keys()]
        if not found:
            raise FederationError(f"task {task + 1}: no client holds samples of its classes")
        return found

    def without_state(self, merged: Mapping[int, int]) -> list[int]:
        """Those of the clients that cannot go on from the state after the round they are given here."""
        return sorted(p for p, round_ in merged.items() if round_ not in self.states.get(p, frozenset()))


def find_clients(
    grid: Grid, config: FederationConfig, expected: Mapping[str, str], run: str, poll_seconds: float = 0.5
) -> Roster:
    """Wait until every partition has a node, ask each node once who it is, check what it holds.

    `expected` are properties that all nodes must share, such as the digest of the backbone. `run` identifies
    the run across interruptions.
    """
    deadline = time.monotonic() + config.wait_seconds
    asked: set[int] = set()
    nodes: dict[int, int] = {}
    states: dict[int, frozenset[int]] = {}
    held: dict[int, dict[int, int]] = {}
    while True:
        new = sorted(set(grid.get_node_ids()) - asked)
        asked.update(new)
        for node, properties in _ask(grid, new, run, config.round_timeout).items():
            _compare(node, properties, expected)
            partition = int(str(properties["partition"]))
            nodes[partition] = node
            states[partition] = frozenset(int(round_) for round_ in str(properties["states"]).split())
            if "held" in properties:
                reported = json.loads(str(properties["held"]))
                held[partition] = {int(label): int(count) for label, count in reported.items()}
        missing = sorted(set(range(config.clients)) - nodes.keys())
        if not missing:
            return Roster({partition: nodes[partition] for partition in range(config.clients)}, states, held)
        if time.monotonic() >= deadline:
            raise FederationError(_too_few(config, len(asked), missing))
        time.sleep(poll_seconds)


def _ask(grid: Grid, nodes: list[int], run: str, timeout: float) -> dict[int, ConfigRecord]:
    if not nodes:
        return {}
    questions = [Message(content(config={"run": run}), node, MessageType.QUERY) for node in nodes]
    answers: dict[int, ConfigRecord] = {}
    for reply in grid.send_and_receive(questions, timeout=timeout):
        if reply.has_error():
            reason = " ".join(str(reply.error.reason).split())
            raise FederationError(f"a client could not start: {reason}")
        answers[reply.metadata.src_node_id] = reply.content.config_records[CONFIG]
    return answers


def _compare(node: int, properties: ConfigRecord, expected: Mapping[str, str]) -> None:
    for key, value in expected.items():
        if properties.get(key) != value:
            raise FederationError(
                f"node {node} (partition {properties['partition']!r}) has another {key} than the "
                f"server: {properties.get(key)!r} instead of {value!r}"
            )


def _too_few(config: FederationConfig, found: int, missing: list[int]) -> str:
    return (
        f"{config.clients} clients are configured (federation.clients), but after "
        f"{config.wait_seconds:g} s only {found} SuperNodes are there; no node serves partition "
        f"{', '.join(map(str, missing))}. In simulation run:  "
        f'flwr run . --stream --federation-config "num-supernodes={config.clients}"'
    )
