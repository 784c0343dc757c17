"""A real deployment: a SuperLink, three nodes in networks of their own, TLS and authenticated nodes."""

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.app import Message
from safetensors.numpy import load_file

from pip_flower.deployment.bundles import write_bundles
from pip_flower.deployment.connection import DeploymentRunner
from pip_flower.deployment.local import LocalDeployment
from pip_flower.deployment.plan import Plan
from pip_flower.flower.launcher import LaunchError
from pip_flower.flower.programs import flower_environment, free_port, program
from pip_flower.reporting.live import find_run
from pip_flower.reporting.run_directory import RunDirectory
from support.fleet_recorder import Recording, recorder
from support.namespaces import Namespaces
from support.runs import strategy_for

# One deployment at a time: each is a dozen processes that wait for each other.
pytestmark = pytest.mark.xdist_group("deployment")
NODES = 3
SETTINGS = "federation.clients=3 federation.clients_per_round=3 evaluation.where=clients training.epochs=1"
Run = Callable[..., RunDirectory]
RunConfig = dict[str, Any]


@dataclass
class Lab:
    """A deployment whose nodes reach the SuperLink through a recorder."""

    deployment: LocalDeployment
    namespaces: Namespaces
    direct_port: int
    record: Path


@pytest.fixture
def lab(tmp_path: Path, small_data: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    namespaces = Namespaces(NODES)
    plan = Plan(NODES, (namespaces.address, "127.0.0.1"))
    deployment = LocalDeployment(tmp_path / "lab", plan, namespaces.prefix)
    direct = free_port()
    script = deployment.server.bundle / "start.sh"
    script.write_text(
        script.read_text().replace(f"0.0.0.0:{deployment.plan.fleet_port}", f"0.0.0.0:{direct}")
    )
    for node in deployment.nodes:
        # Its own data: the run names none.
        with (node.bundle / "node.conf").open("a") as file:
            file.write(f'data-dir="{small_data}"\n')
    record = tmp_path / "calls.jsonl"
    try:
        with recorder(deployment.plan.fleet_port, direct, deployment.server.bundle, record):
            deployment.start()
            yield Lab(deployment, namespaces, direct, record)
    finally:
        deployment.stop()
        namespaces.remove()


class Playing:
    """A run in a thread of its own, so that things can happen meanwhile."""

    def __init__(self, runner: DeploymentRunner, run_config: RunConfig) -> None:
        self.ids: list[int] = []
        self.out_dir = Path(run_config["out-dir"])
        self.error: LaunchError | None = None
        self.thread = threading.Thread(target=self._play, args=(runner, run_config))
        self.thread.start()

    def _play(self, runner: DeploymentRunner, run_config: RunConfig) -> None:
        try:
            runner.run(run_config, None, self.ids.append)
        except LaunchError as error:
            self.error = error

    @property
    def directory(self) -> RunDirectory:
        found = find_run(self.out_dir, self.ids[-1])
        assert found is not None
        return found

    def wait_for(self, condition: Callable[[dict[str, Any]], bool], seconds: float = 600) -> None:
        """Until progress.json says so."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = find_run(self.out_dir, self.ids[-1]) if self.ids else None
            if found and found.progress.is_file() and condition(json.loads(found.progress.read_text())):
                return
            assert self.thread.is_alive(), f"the run ended early: {self.error}"
            time.sleep(0.1)
        raise AssertionError("it did not happen")

    def done(self, lab: Lab) -> RunDirectory:
        self.thread.join(timeout=900)
        said = "\n".join(host.tail() for host in (lab.deployment.server, *lab.deployment.nodes))
        assert self.error is None, f"{self.error}\n{said}"
        return self.directory


@contextmanager
def playing(lab: Lab, run_config: RunConfig) -> Iterator[Playing]:
    with lab.deployment.runner() as runner:
        yield Playing(runner, run_config)


def rounds(directory: RunDirectory) -> list[dict[str, Any]]:
    return [line for line in directory.lines() if line["kind"] == "round"]


def test_a_run_on_three_hosts_equals_the_simulation_and_sends_nothing_else(
    lab: Lab, small_run: RunConfig, simulate: Run, tmp_path: Path
) -> None:
    refuse_strangers(lab, tmp_path)
    run_config = small_run | {
        "out-dir": str(tmp_path / "deployed"),
        "data-dir": "",
        "overrides": f"{small_run['overrides']} {SETTINGS} schedule.rounds=3 federation.wait_seconds=600",
    }
    with playing(lab, run_config) as run:
        deployed = run.done(lab)
    assert [len(line["clients"]) for line in rounds(deployed)] == [3, 3, 3]
    assert [line["failed"] for line in rounds(deployed)] == [0, 0, 0]
    # One worker per node served all messages of the run.
    assert {line["metrics"]["backbone_loads"] for line in rounds(deployed)} == {1.0}
    check_what_was_sent(Recording(lab.record), run_config, load_file(deployed.model))
    simulated = simulate(f"{SETTINGS} schedule.rounds=3 federation.wait_seconds=600", supernodes=3)
    assert deployed.model.read_bytes() == simulated.model.read_bytes()
    assert deployed.matrix.read_bytes() == simulated.matrix.read_bytes()
    if lab.namespaces.reason:
        pytest.skip(f"all of this passed, but in one network: {lab.namespaces.reason}")


def refuse_strangers(lab: Lab, tmp_path: Path) -> None:
    """Wrong key, no key, wrong authority, plaintext: none of them becomes a node."""
    other = tmp_path / "other"
    write_bundles(other, Plan(1, ("127.0.0.1",)))
    wrong_kind = Ed25519PrivateKey.generate()
    (tmp_path / "ed25519").write_bytes(
        wrong_kind.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    )
    ours = str(lab.deployment.server.bundle / "ca.crt")
    trusted = ["--root-certificates", ours]
    stranger = ["--root-certificates", str(other / "server" / "ca.crt")]
    key = "--auth-supernode-private-key"
    attempts = {
        "code: 2004": [*trusted, key, str(other / "node-0" / "node.key")],
        "code: 2001": trusted,
        "elliptic curve": [*trusted, key, str(tmp_path / "ed25519")],
        "SSL/TLS handshake error detected": [
            *stranger,
            key,
            str(lab.deployment.nodes[0].bundle / "node.key"),
        ],
        "Socket closed": ["--insecure"],
    }
    logs = {told: tmp_path / f"stranger-{number}.log" for number, told in enumerate(attempts)}
    processes = [attempt(lab, options, logs[told]) for told, options in attempts.items()]
    try:
        for told, log in logs.items():
            wait_until(lambda told=told, log=log: told in log.read_text(), f"{told}: {log.read_text()}")
        assert not any("SuperNode ID" in log.read_text() for log in logs.values())
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def attempt(lab: Lab, options: list[str], log: Path) -> "subprocess.Popen[bytes]":
    """A SuperNode that dials the SuperLink itself."""
    command = [program("flower-supernode"), *options, "--superlink", f"127.0.0.1:{lab.direct_port}"]
    command += ["--host", "127.0.0.1", "--port", str(free_port()), "--max-wait-time", "4"]
    environment = flower_environment(log.parent / "flwr")
    with log.open("wb") as file:
        return subprocess.Popen(
            command, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )


def nodes_online(lab: Lab) -> int:
    with lab.deployment.runner() as runner:
        listed = runner.flwr("supernode", "list", runner.connection, "--format", "json")
    return len(re.findall(r'"status":\s*"online"', listed))


def wait_until(condition: Callable[[], bool], otherwise: str, seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.1)


def check_what_was_sent(recording: Recording, run_config: RunConfig, model: dict[str, Any]) -> None:
    """Every call of every node: by name, shape and size nothing but what the method promises."""
    method = strategy_for(run_config).method
    allowed: dict[str, tuple[int | None, ...]] = {}
    for task in range(3):
        allowed |= {name: spec.shape for name, spec in method.expected(task, model, 100).items()}
    kinds: dict[str, int] = {}
    sent = recording.messages()
    budget = dict.fromkeys((node for node, _ in sent), 0)
    for node, message in sent:
        assert isinstance(message, Message)
        assert not message.has_error(), message.error
        kind = message.metadata.message_type
        kinds[kind] = kinds.get(kind, 0) + 1
        budget[node] += 4096
        assert set(message.content) <= {"arrays", "metrics", "config"}
        for record in message.content.array_records.values():
            assert kind == "train"
            for name, array in record.items():
                shape = tuple(array.numpy().shape)
                assert re.fullmatch(
                    r"general|expert\.\d|key\.\d|head\.\d\.(weight|bias)|prototype\.\w+", name
                )
                # A client may hold one or both classes of a task.
                fits = zip(shape, allowed[name], strict=True)
                assert all(size == wanted or (wanted is None and size <= 2) for size, wanted in fits), name
                # The array, and what Flower says about it.
                budget[node] += array.numpy().nbytes + 1024
        for metrics in message.content.metric_records.values():
            known = r"num-examples|loss|\w+_loss|backbone_loads|fit_seconds|(correct|total)\.\d"
            assert all(re.fullmatch(known, name) for name in metrics), list(metrics)
            assert all(isinstance(value, int | float) for value in metrics.values())
        for properties in message.content.config_records.values():
            assert kind == "query"
            assert set(properties) == {"partition", "config", "method", "backbone", "states"}
            assert all(len(str(value)) <= 64 for value in properties.values())
    assert kinds == {"query": 3, "train": 9, "evaluate": 9}
    for node, total in recording.content_bytes().items():
        assert total < budget[node]
    # Other calls carry ids only.
    for name, request in recording.calls:
        assert len(request) < 4096 or name in ("PushObject", "PushMessages"), name


def test_nodes_and_server_are_killed_and_come_back(lab: Lab, small_run: RunConfig, tmp_path: Path) -> None:
    """With private heads: what a client has learnt is on its own disk alone."""
    timeout = 60
    settings = f"{SETTINGS} schedule.rounds=18 federation.round_timeout={timeout} federation.min_nodes=2"
    run_config = small_run | {
        "method": "ablation-d",
        "out-dir": str(tmp_path / "deployed"),
        "data-dir": "",
        "overrides": f"{small_run['overrides']} {settings} federation.wait_seconds=0",
    }
    _, second, late = lab.deployment.nodes
    late.stop()
    # From the start there are two, and the third is not waited for.
    wait_until(lambda: nodes_online(lab) == NODES - 1, "two nodes did not come")
    with playing(lab, run_config) as run:
        run.wait_for(lambda progress: progress["rounds_done"] >= 1)
        late.start()
        run.wait_for(lambda progress: progress["clients"] == 3 and progress["rounds_done"] >= 4)
        run.wait_for(lambda progress: progress["clients_done"] < progress["clients"])
        second.kill()
        second.start()
        at_kill = len(rounds(run.directory))
        run.wait_for(lambda progress: progress["rounds_done"] >= at_kill + 2)
        lab.deployment.server.kill()
        run.thread.join(timeout=600)
    assert run.error is not None
    before = rounds(run.directory)
    assert before[0]["clients"] == [0, 1]
    assert any(2 in line["clients"] for line in before)
    lab.deployment.start_server()
    again = run_config | {
        "resume": str(run.directory.path),
        "overrides": f"{run_config['overrides']} federation.wait_seconds=600",
    }
    with playing(lab, again) as run:
        directory = run.done(lab)
    played = rounds(directory)
    assert [line["round"] for line in played] == list(range(1, 19))
    kept = [line["round"] for line in before]
    assert [line["clients"] for line in played[: len(kept) - 1]] == [line["clients"] for line in before[:-1]]
    hurt = [line for line in played if line["failed"]]
    assert len(hurt) <= 2
    assert all(line["seconds"] < 10 * timeout for line in hurt)
    assert played[-1]["clients"] == [0, 1, 2]
    assert played[-1]["failed"] == 0
    states = list((second.bundle / "state" / "clients").glob("*/client-1/round-*.state"))
    assert states, "the client keeps its own state"
