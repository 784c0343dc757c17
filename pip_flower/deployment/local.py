"""A whole deployment on one machine, for trying out: a SuperLink and nodes as processes, started
from the very bundles that other machines would get."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pip_flower.deployment.bundles import node_name, write_bundles
from pip_flower.deployment.connection import DeploymentRunner, deployment_runner, register_all
from pip_flower.deployment.plan import SERVER, Plan
from pip_flower.flower.launch import Launch, interruptible
from pip_flower.flower.launcher import LaunchError
from pip_flower.flower.programs import free_port

_STARTUP_SECONDS = 180
_RESTART_SECONDS = 2.0
_PATIENCE = 15
Prefix = Callable[[int], Sequence[str]]


def no_prefix(node: int) -> Sequence[str]:  # noqa: ARG001
    """Nodes are started as they are."""
    return ()


class Host:
    """What one machine would run: its bundle's start.sh, started again whenever it ends, as systemd would."""

    def __init__(self, bundle: Path, environment: dict[str, str], prefix: Sequence[str] = ()) -> None:
        self.bundle = bundle
        self.log = bundle / "output.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._command = [*prefix, str(bundle / "start.sh")]
        self._environment = environment
        self._wanted = False
        self._deciding = threading.Lock()

    def start(self) -> None:
        """Start it and keep it going."""
        self._wanted = True
        threading.Thread(target=self._keep, args=(self._spawn(),), daemon=True).start()

    def let_go(self) -> None:
        """From now on it is not started again."""
        with self._deciding:
            self._wanted = False

    def stop(self) -> None:
        """Ask it to end, and make sure that it does."""
        self.let_go()
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """As a power cut would: no goodbye to the SuperLink, and no coming back until `start`."""
        self.let_go()
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def tail(self, lines: int = 30) -> str:
        """The end of what it said."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def _spawn(self) -> "subprocess.Popen[bytes]":
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self.process

    def _keep(self, mine: subprocess.Popen[bytes]) -> None:
        while True:
            mine.wait()
            time.sleep(_RESTART_SECONDS)
            with self._deciding:
                if not self._wanted or self.process is not mine:
                    return
                mine = self._spawn()


class LocalDeployment:
    """Use `local_deployment()`. `plan` decides everything but ports that are taken."""

    def __init__(self, directory: Path, plan: Plan, prefix: Prefix = no_prefix) -> None:
        self.directory = directory
        self.plan = replace(plan, fleet_port=free_port(), control_port=free_port(), node_port=_free_range())
        write_bundles(directory, self.plan)
        # Whatever this process has set for Flower is not for them: they have homes of their own.
        inherited = {k: v for k, v in os.environ.items() if k not in ("FLWR_HOME", "PIP_FLOWER_STATE")}
        self.launch = Launch()
        environment = self.launch.environment(
            inherited | {"PIP_FLOWER_BIN": str(Path(sys.executable).parent)}
        )
        self.server = Host(directory / SERVER, environment)
        self.nodes = [
            Host(directory / node_name(node), environment, prefix(node)) for node in range(plan.nodes)
        ]

    def start(self) -> None:
        """Start the SuperLink, admit the nodes, start them."""
        self.start_server()
        if self.plan.tls:
            register_all(self.server.bundle)
        for node in self.nodes:
            node.start()

    def start_server(self) -> None:
        """Start the SuperLink and wait until it answers."""
        self.server.start()
        deadline = time.monotonic() + _STARTUP_SECONDS
        while not all(_answers(port) for port in (self.plan.control_port, self.plan.fleet_port)):
            if time.monotonic() > deadline:
                raise LaunchError(f"the SuperLink did not start:\n{self.server.tail()}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End everything, and wait until it has ended."""
        for host in (*self.nodes, self.server):
            host.let_go()
        self.launch.end()

    @contextmanager
    def runner(self) -> Iterator[DeploymentRunner]:
        """Runs the app here."""
        with deployment_runner(self.server.bundle, self.launch) as runner:
            yield runner


@contextmanager
def local_deployment(plan: Plan, prefix: Prefix = no_prefix) -> Iterator[LocalDeployment]:
    """A started deployment; everything it started and wrote is gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="pip-flower-"))
    with interruptible():
        try:
            deployment = LocalDeployment(directory, plan, prefix)
            deployment.launch.remove_afterwards(directory)
            try:
                deployment.start()
                yield deployment
            finally:
                deployment.stop()
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_range() -> int:
    """A port after which others are most likely free too: below those that the system hands out."""
    return 20_000 + free_port() % 10_000
