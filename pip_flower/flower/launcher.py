"""Runs the app with `flwr run` in a SuperLink of its own, started and stopped here.

A SuperLink that happens to run already keeps the environment and the working directory it was started
with, and would execute the client code it finds there. A private one on free ports, with its own home and
a neutral directory, cannot.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pip_flower.flower.failures import raised_by_app
from pip_flower.flower.launch import Launch, check_interruption, interruptible
from pip_flower.flower.log import FlowerLog, colourless
from pip_flower.flower.programs import flower_environment, free_port, program

_PACKAGE = Path(__file__).resolve().parents[1]
_CONNECTION = "pip-flower"
_STARTED = re.compile(r"Successfully started run (\d+)")
_STARTUP_SECONDS = 180
# How long a run may take to end once its log has, and how long a SuperLink may be gone.
_ENDING_SECONDS = 60
_UNREACHABLE_SECONDS = 10
# On a busy machine a single one may take longer.
_LEAST_QUESTIONS = 3


class LaunchError(RuntimeError):
    """Flower could not be started, or the run failed; `passing` if that says nothing about the app, so that
    it may go well the next time."""

    def __init__(self, text: str, *, passing: bool = False) -> None:
        super().__init__(text)
        self.passing = passing


class StoppedRunError(KeyboardInterrupt):
    """A run was interrupted; `hint` tells how to go on, or nothing, once everything has ended."""

    def __init__(self, hint: Callable[[], str]) -> None:
        super().__init__()
        self.hint = hint


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
    """A private SuperLink in simulation mode; use `flower_runner()`. What it starts belongs to `launch`, its
    own or one that others end."""

    connection = _CONNECTION
    # What `pip-flower run --resume` needs besides the directory.
    resume_options: tuple[str, ...] = ()

    def __init__(self, launch: Launch | None = None) -> None:
        self.launch = launch or Launch()
        self._ends_launch = launch is None
        self.home = Path(tempfile.mkdtemp(prefix="pip-flower-"))
        self.launch.remove_afterwards(self.home)
        self.environment = self.launch.environment(flower_environment(self.home))
        self.neutral = self.home / "cwd"
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
        log = FlowerLog(self.home / "superlink.log")
        self.superlink = self._spawn(command, log)
        deadline = time.monotonic() + _STARTUP_SECONDS
        while time.monotonic() < deadline and self.superlink.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)
        raise LaunchError(f"the SuperLink did not start:\n{_tail(log)}", passing=True)

    def run(
        self,
        run_config: Mapping[str, Any],
        simulation: Simulation | None,
        watch: Callable[[int], None],
        poll_seconds: float = 0.25,
        log: FlowerLog | None = None,
    ) -> None:
        """Run the app to its end; `watch(run_id)` is called again and again meanwhile, and may move the log.
        Without a simulation it runs on whatever nodes the SuperLink has."""
        log = log or FlowerLog(self.home / "flower.log")
        settings = self.home / "run-config.toml"
        settings.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in run_config.items()))
        command = [program("flwr"), "run", str(app_directory(self.home)), self.connection, "--stream"]
        command += ["--run-config", str(settings)]
        if simulation:
            command += ["--federation-config", simulation.as_options()]
        flwr = self._spawn(command, log)
        run_id: int | None = None
        try:
            while flwr.poll() is None:
                check_interruption()
                log.tell_news()
                if run_id is None and (run_id := _run_id(log)) is not None:
                    self._run_started(run_id)
                if run_id is not None:
                    watch(run_id)
                time.sleep(poll_seconds)
            log.tell_news()
            run_id = run_id or _run_id(log)
            if run_id is None:
                raise LaunchError(f"flwr run did not start the app:\n{_tail(log)}")
            watch(run_id)
            self._require_completed(run_id, log)
        finally:
            flwr.kill()
            flwr.wait()

    def stop(self) -> None:
        """End everything that was started, and wait until it has ended."""
        if self._ends_launch:
            self.launch.end()
        if self.superlink is not None:
            self.superlink.wait()
        shutil.rmtree(self.home, ignore_errors=True)

    def _run_started(self, run_id: int) -> None:
        """The SuperLink runs the app now; it ends with the SuperLink."""

    def _run_ended(self) -> None:
        """Nothing is left to be stopped."""

    def _require_completed(self, run_id: int, log: FlowerLog) -> None:
        """`flwr run` exits with 0 even when the app raised; the SuperLink knows better."""
        began = time.monotonic()
        patience = _UNREACHABLE_SECONDS
        state, asked = "", 0
        while asked < _LEAST_QUESTIONS or time.monotonic() - began < patience:
            check_interruption()
            asked += 1
            listed = self.flwr("list", self.connection, "--run-id", str(run_id), "--format", "json")
            if found := re.search(r'"status":\s*"([a-z:]+)"', listed):
                state, patience = found[1], _ENDING_SECONDS
            if state.startswith("finished"):
                self._run_ended()
                break
            time.sleep(1)
        else:
            # Its log has ended, it has not: nobody would look after it any more.
            self.flwr("stop", str(run_id), self.connection)
        if not state:
            raise LaunchError("the SuperLink cannot be reached any more", passing=self.superlink is not None)
        if state != "finished:completed":
            raise _failure(state, log)

    def _spawn(self, command: list[str], log: FlowerLog) -> subprocess.Popen[bytes]:
        """A program in a neutral directory and a session of its own: it does not hear Ctrl-C."""
        with log.path.open("ab") as file:
            started = subprocess.Popen(
                command,
                cwd=self.neutral,
                env=self.environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.launch.started(started.pid)
        return started

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


def _run_id(log: FlowerLog) -> int | None:
    found = _STARTED.search(log.text())
    return int(found[1]) if found else None


def _failure(state: str, log: FlowerLog) -> LaunchError:
    """With the exception that ended the run, or else the end of the log."""
    raised = raised_by_app(log.text())
    if raised:
        return LaunchError(f"the run ended as {state}:\n{raised.shown()}", passing=raised.passing)
    # Somebody may have stopped it on purpose.
    return LaunchError(f"the run ended as {state}:\n{_tail(log)}", passing=state != "finished:stopped")


def _tail(log: FlowerLog, lines: int = 30) -> str:
    return "\n".join(colourless(log.text()).splitlines()[-lines:])


@contextmanager
def flower_runner() -> Iterator[FlowerRunner]:
    """A started runner; everything it started and wrote is gone afterwards, whatever ends this process."""
    with interruptible():
        runner = FlowerRunner()
        try:
            runner.start()
            yield runner
        finally:
            runner.stop()
