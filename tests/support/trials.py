"""`pip-flower` as a process of its own, and everything that it started, told by a variable they inherit."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_VARIABLE = "PIP_FLOWER_TRIAL"


def heed_signals() -> None:
    """A shell may have its background jobs ignore them."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


class Trial:
    """A command that can be sent signals; `said` is what it has printed."""

    def __init__(self, arguments: Sequence[str], log: Path, **environment: str) -> None:
        self.name = uuid.uuid4().hex
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pip_flower.cli", *arguments],
                env=os.environ | {"PYTHONPATH": str(ROOT), _VARIABLE: self.name} | environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                # Whatever the tests themselves were started with.
                preexec_fn=heed_signals,
            )

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def processes(self) -> dict[int, str]:
        """All that live, by id: what they are."""
        mark = f"{_VARIABLE}={self.name}".encode()
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found

    def runs(self, program: str) -> bool:
        """Whether one of the processes is such a program."""
        return any(program in command for command in self.processes().values())

    def wait_for(self, condition: Callable[[], bool], seconds: float = 300) -> None:
        """Until it holds; the command must not end before."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"it ended early:\n{self.said}"
            assert time.monotonic() < deadline, f"it did not happen:\n{self.said}\n{self.processes()}"
            time.sleep(0.1)

    def ended(self, seconds: float = 120) -> dict[int, str]:
        """Wait until no process is left; those that are left after all."""
        deadline = time.monotonic() + seconds
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left
