"""Runs the app with `flwr run` in a SuperLink of its own, started and stopped here.

A SuperLink that happens to run already keeps the environment and the working directory it was started
with, and would execute the client code it finds there. A private one on free ports, with its own home and
a neutral directory, cannot.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pip_flower.flower.programs import flower_environment, free_port, program, termination_interrupts

_PACKAGE = Path(__file__).resolve().parents[1]
_CONNECTION = "pip-flower"
_STARTED = re.compile(r"Successfully started run (\d+)")
_STARTUP_SECONDS = 60
# How long a run may take to end once its log has, and how long a SuperLink may be gone.
_ENDING_SECONDS = 60
_UNREACHABLE_SECONDS = 10


class LaunchError(RuntimeError):
    """Flower could not be started, or the run failed."""


@dataclass(frozen=True)
class Simulation:
    """How Flower's simulation engine is sized."""

    supernodes: int
    client_cpus: int
    client_gpus: float

    def as_options(self) -> str:
        """For `--federation-config`."""
        cpus = max(self.client_cpus, os.cpu_count() or 1)
        return (
            f"num-supernodes={self.supernodes} client-resources-num-cpus={self.client_cpus} "
            f"client-resources-num-gpus={self.client_gpus} init-args-num-cpus={cpus}"
        )


def app_directory(scratch: Path) -> Path:
    """The Flower app: the checkout itself, or one put together in `scratch` from an installed package."""
    checkout = _PACKAGE.parent
    if (checkout / "server_app.py").is_file():
        return checkout
    assembled = scratch / "app"
    if not assembled.exists():
        shutil.copytree(_PACKAGE / "app", assembled)
        ignored = shutil.ignore_patterns("app", "__pycache__")
        shutil.copytree(_PACKAGE, assembled / _PACKAGE.name, ignore=ignored)
    return assembled


class FlowerRunner:
    """A private SuperLink in simulation mode; use `flower_runner()`."""

    connection = _CONNECTION

    def __init__(self, home: Path) -> None:
        self.home = home
        self.log = home / "flower.log"
        self.environment = flower_environment(home)
        self.neutral = home / "cwd"
        self.neutral.mkdir()
        self.superlink: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the SuperLink and wait until it answers."""
        port, control = free_port(), free_port()
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "{_CONNECTION}"\n\n[superlink.{_CONNECTION}]\n'
            f'address = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        command = [program("flower-superlink"), "--insecure", "--simulation"]
        command += ["--isolation", "subprocess", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--control-api-address", f"127.0.0.1:{control}"]
        self.superlink = self._spawn(command, self.home / "superlink.log")
        deadline = time.monotonic() + _STARTUP_SECONDS
        while time.monotonic() < deadline and self.superlink.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)
        raise LaunchError(f"the SuperLink did not start:\n{self._tail('superlink.log')}")

    def run(
        self,
        run_config: Mapping[str, Any],
        simulation: Simulation | None,
        watch: Callable[[int], None],
        poll_seconds: float = 0.25,
    ) -> None:
        """Run the app to its end; `watch(run_id)` is called again and again meanwhile. Without a simulation
        it runs on whatever nodes the SuperLink has."""
        settings = self.home / "run-config.toml"
        settings.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in run_config.items()))
        command = [program("flwr"), "run", str(app_directory(self.home)), self.connection, "--stream"]
        command += ["--run-config", str(settings)]
        if simulation:
            command += ["--federation-config", simulation.as_options()]
        flwr = self._spawn(command, self.log)
        run_id: int | None = None
        try:
            while flwr.poll() is None:
                run_id = run_id or self._run_id()
                if run_id is not None:
                    watch(run_id)
                time.sleep(poll_seconds)
            run_id = run_id or self._run_id()
            if run_id is None:
                raise LaunchError(f"flwr run did not start the app:\n{self._tail('flower.log')}")
            watch(run_id)
            self._require_completed(run_id)
        except KeyboardInterrupt:
            if run_id is not None:
                self.flwr("stop", str(run_id), self.connection)
            raise
        finally:
            flwr.terminate()
            flwr.wait()

    def stop(self) -> None:
        """End the SuperLink and whatever it started."""
        if self.superlink is None or self.superlink.poll() is not None:
            return
        self.superlink.terminate()
        try:
            self.superlink.wait(timeout=15)
        except subprocess.TimeoutExpired:
            os.killpg(self.superlink.pid, signal.SIGKILL)
            self.superlink.wait()

    def _require_completed(self, run_id: int) -> None:
        """`flwr run` exits with 0 even when the app raised; the SuperLink knows better."""
        began = time.monotonic()
        patience = _UNREACHABLE_SECONDS
        state = ""
        while time.monotonic() - began < patience:
            listed = self.flwr("list", self.connection, "--run-id", str(run_id), "--format", "json")
            if found := re.search(r'"status":\s*"([a-z:]+)"', listed):
                state, patience = found[1], _ENDING_SECONDS
            if state.startswith("finished"):
                break
            time.sleep(1)
        if not state:
            raise LaunchError("the SuperLink cannot be reached any more")
        if state != "finished:completed":
            raise LaunchError(f"the run ended as {state}:\n{self._failure()}")

    def _spawn(self, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        """A program in a neutral directory, deaf to Ctrl-C: we stop the run before its log stream."""
        with log.open("wb") as file:
            return subprocess.Popen(
                command,
                cwd=self.neutral,
                env=self.environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def _run_id(self) -> int | None:
        found = _STARTED.search(self.log.read_text(encoding="utf-8", errors="replace"))
        return int(found[1]) if found else None

    def flwr(self, *arguments: str) -> str:
        """What a `flwr` command says."""
        done = subprocess.run(
            [program("flwr"), *arguments],
            cwd=self.neutral,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        return done.stdout + done.stderr

    def _failure(self) -> str:
        """The message of the exception that ended the run, or else the end of the log."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        raised = re.findall(r"^(?:\w+\.)*(\w*(?:Error|Exception): .+)$", text, flags=re.MULTILINE)
        return str(raised[-1]) if raised else self._tail("flower.log")

    def _tail(self, name: str, lines: int = 30) -> str:
        text = (self.home / name).read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])


@contextmanager
def flower_runner() -> Iterator[FlowerRunner]:
    """A started runner; everything it started and wrote is gone afterwards, even if this process is
    asked to terminate."""
    home = Path(tempfile.mkdtemp(prefix="pip-flower-"))
    runner = FlowerRunner(home)
    with termination_interrupts():
        try:
            runner.start()
            yield runner
        finally:
            runner.stop()
            shutil.rmtree(home, ignore_errors=True)
