"""Who plays a run: named to whoever wants to resume it meanwhile."""

import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from pip_flower.flower.launch import LAUNCHER_VARIABLE
from pip_flower.runtime.process import alive

_LONGEST_COMMAND = 160


@dataclass(frozen=True)
class Holder:
    """The ServerApp's process and the one that ends with all of it, `pip-flower`'s; 0 if there is none."""

    host: str
    process: int
    command: str
    launcher: int
    launcher_command: str
    flower_run: int

    @classmethod
    def this_process(cls, flower_run: int) -> "Holder":
        """As seen from within the ServerApp."""
        launcher = int(os.environ.get(LAUNCHER_VARIABLE) or 0)
        if not Path(sys.argv[0]).name.startswith("flwr"):
            # No program of Flower's: the whole run is in here.
            launcher = os.getpid()
        return cls(
            platform.node(), os.getpid(), _command(os.getpid()), launcher, _command(launcher), flower_run
        )

    def __str__(self) -> str:
        """For a person."""
        started = ""
        if self.launcher not in (0, self.process):
            started = f", started by process {self.launcher}: {self.launcher_command}"
        return f"process {self.process} on {self.host}: {self.command}{started}"

    def remedy(self) -> str:
        """How to end it. A launcher takes everything with it; a SuperLink of others has to be told."""
        if self.launcher and self.host == platform.node() and not alive(self.launcher):
            return "Its launcher is gone and the rest is about to end: try again in a few seconds"
        if self.launcher:
            return f"Wait for it, or end it on {self.host} with: kill {self.launcher}"
        return f"Wait for it, or end it on {self.host} with: flwr stop {self.flower_run}"


def _command(process: int) -> str:
    """How a process was called; empty where the system does not tell."""
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    shown = " ".join(word.decode(errors="replace") for word in words if word)
    # Flower's programs have a secret among their arguments.
    return shown.partition(" --token")[0][:_LONGEST_COMMAND]
