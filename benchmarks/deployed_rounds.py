"""Seconds per round and bytes on the socket: simulated, deployed on plain Flower, deployed on warm nodes.

    python benchmarks/deployed_rounds.py
    python benchmarks/deployed_rounds.py --backbone deit_tiny_patch16_224 --weights FILE --rounds 12

A round's compute is the time that its clients spend training (`fit_seconds`, mean over the clients); what a
round takes beyond it is the price of being distributed. Medians over the rounds that do not start a task.
Bytes are those of the TCP connection between a node and the SuperLink, both ways, TLS, heartbeats and polling
included, beside those of the messages' content.
"""

import argparse
import json
import os
import socket
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])

from pip_flower.deployment.local import LocalDeployment
from pip_flower.deployment.plan import Plan
from pip_flower.flower.launcher import Simulation, flower_runner
from pip_flower.reporting.live import find_run
from pip_flower.reporting.run_directory import RunDirectory
from pip_flower.reporting.traffic import RunTraffic


class Relay:
    """Passes a node's connection on and counts what goes through it."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.up = self.down = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            far = socket.create_connection(("127.0.0.1", self.target))
            threading.Thread(target=self._pump, args=(near, far, "up"), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, "down"), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        try:
            while data := source.recv(1 << 16):
                setattr(self, direction, getattr(self, direction) + len(data))
                sink.sendall(data)
        except OSError:
            pass
        finally:
            source.close()
            sink.close()


@contextmanager
def deployed(nodes: int, directory: Path, *, warm: bool) -> Iterator[tuple[LocalDeployment, list[Relay]]]:
    """TLS and authenticated nodes; each dials the SuperLink through a relay of its own."""
    deployment = LocalDeployment(directory, Plan(nodes, ("127.0.0.1",)))
    relays = [Relay(deployment.plan.fleet_port) for _ in deployment.nodes]
    for node, relay in zip(deployment.nodes, relays, strict=True):
        script = node.bundle / "start.sh"
        text = script.read_text().replace(deployment.plan.fleet_address, f"127.0.0.1:{relay.port}")
        if not warm:
            text = text.replace("exec python -P -m pip_flower.deployment.node", "exec flower-supernode")
            text = text.replace("set -eu", "set -eu\nexport PIP_FLOWER_WORKER=off")
        script.write_text(text)
    try:
        deployment.start()
        yield deployment, relays
    finally:
        deployment.stop()


def measured(directory: RunDirectory) -> dict[str, Any]:
    """Medians over the rounds that start no task."""
    lines = [line for line in directory.lines() if line["kind"] == "round"]
    traffic = RunTraffic.of(lines)
    steady = [line for before, line in pairwise(lines) if before["task"] == line["task"]]
    seconds = statistics.median(line["seconds"] for line in steady)
    compute = statistics.median(line["metrics"]["fit_seconds"] for line in steady)
    beyond = statistics.median(line["seconds"] - line["metrics"]["fit_seconds"] for line in steady)
    return {
        "round": round(seconds, 2),
        "fit": round(compute, 2),
        "beyond": round(beyond, 2),
        "message_bytes_up": round(traffic.up.per_message),
        "message_bytes_down": round(traffic.down.per_message),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--backbone", default="embedded")
    parser.add_argument("--weights", default="")
    parser.add_argument("--overrides", default="")
    parser.add_argument("--only", default="", help="simulation, flower or warm")
    options = parser.parse_args()
    overrides = (
        f"federation.clients={options.nodes} federation.clients_per_round={options.nodes} "
        f"federation.wait_seconds=180 schedule.tasks=2 schedule.rounds={options.rounds} "
        f"backbone.name={options.backbone} backbone.weights={options.weights} {options.overrides}"
    )
    with tempfile.TemporaryDirectory(prefix="pip-flower-") as scratch:
        for kind in ("simulation", "flower", "warm"):
            if options.only in ("", kind):
                print(kind, json.dumps(_measure(kind, options, overrides, Path(scratch) / kind)), flush=True)


def _measure(kind: str, options: argparse.Namespace, overrides: str, scratch: Path) -> dict[str, Any]:
    run_config = {"overrides": overrides, "out-dir": str(scratch / "runs"), "seed": 2021}
    ids: list[int] = []
    if kind == "simulation":
        with flower_runner() as runner:
            runner.run(run_config, Simulation(options.nodes, 1, 0.0), ids.append)
        return measured(_found(scratch, ids))
    with deployed(options.nodes, scratch / "lab", warm=kind == "warm") as (deployment, relays):
        with deployment.runner() as runner:
            runner.run(run_config, None, ids.append)
        figures = measured(_found(scratch, ids))
        for name in ("up", "down"):
            total = statistics.mean(getattr(relay, name) for relay in relays)
            figures[f"socket_bytes_{name}"] = round(total / options.rounds)
    return figures


def _found(scratch: Path, ids: list[int]) -> RunDirectory:
    directory = find_run(scratch / "runs", ids[-1])
    if directory is None:
        raise RuntimeError("the run left no directory")
    return directory


if __name__ == "__main__":
    main()
