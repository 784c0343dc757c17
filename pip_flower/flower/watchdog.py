"""Ends all processes of a launch once its launcher is gone, however it went.

A program of its own that imports nothing but the standard library: `python watchdog.py MARK SECONDS`. The
launcher holds the other end of standard input, and nobody else does, so that it closes even when the launcher
is killed. Until then it brings lines of JSON:

    {"group": 123}                                     a process group, for systems without /proc
    {"farewell": [command], "environment": {...}}      to be run before everything ends; [] for nothing
    {"remove": "/a/directory"}                         once everything has ended
    {"end": true}                                      the launcher wants it now, and waits

Processes of the launch have MARK in their environment, or descend from one that has. They are asked to
end, and killed after SECONDS, or at once after a SIGTERM to this process. The last line of standard output
names those that could not be ended.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
_PAUSE_SECONDS = 0.05
_FAREWELL_SECONDS = 30
# A process that is dead but not buried is none; one that survives this long hangs in the kernel.
_GONE = "ZXx"
_KERNEL_THREAD = 0x00200000
_HOPELESS_SECONDS = 60
_YOUNG_SECONDS = 10.0


@dataclass(frozen=True)
class Process:
    """A process id may be given to another process later; with its start it is never the same again."""

    id: int
    start: str


@dataclass
class Orders:
    """What the launcher has said."""

    groups: set[int] = field(default_factory=set)
    remove: list[str] = field(default_factory=list)
    farewell: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    def follow(self, lines: Iterable[bytes]) -> None:
        """Until the launcher is gone or wants the end."""
        for line in lines:
            try:
                said: dict[str, Any] = json.loads(line)
            except ValueError:
                # Killed in the middle of a line.
                return
            if "end" in said:
                return
            if "group" in said:
                self.groups.add(said["group"])
            if "remove" in said:
                self.remove.append(said["remove"])
            if "farewell" in said:
                self.farewell, self.environment = said["farewell"], said.get("environment", {})


class Family:
    """The processes of a launch: those that carry the mark, and whatever descends from them."""

    def __init__(self, mark: str) -> None:
        self.mark = mark.encode()
        self.undecided = False
        self._known: set[Process] = set()

    def living(self) -> set[Process]:
        """Those that there are now; `undecided` is whether there may be more."""
        parents: dict[Process, int] = {}
        for entry in _PROC.iterdir():
            if entry.name.isdecimal() and (read := _status(entry)):
                parents[read[0]] = read[1]
        self.undecided = False
        found = {process for process in parents if process in self._known or self._marked(process)}
        found |= _descendants(found, parents)
        self._known |= found
        return found

    def _marked(self, process: Process) -> bool:
        try:
            environment = (_PROC / str(process.id) / "environ").read_bytes()
        except OSError:
            return False
        # While a process turns into another program there is a moment in which it has none to be seen.
        self.undecided |= not environment and _age(process) < _YOUNG_SECONDS
        return self.mark in environment.split(b"\0")


def _status(entry: Path) -> tuple[Process, int] | None:
    """A living process and its parent; the kernel's own are none."""
    try:
        fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    if fields[0] in _GONE or int(fields[6]) & _KERNEL_THREAD:
        return None
    return Process(int(entry.name), fields[19]), int(fields[1])


def _age(process: Process) -> float:
    uptime = float((_PROC / "uptime").read_text().split()[0])
    return uptime - int(process.start) / os.sysconf("SC_CLK_TCK")


def _descendants(found: set[Process], parents: dict[Process, int]) -> set[Process]:
    ids = {process.id for process in found}
    while True:
        children = {p for p, parent in parents.items() if parent in ids and p.id not in ids}
        if not children:
            return {process for process in parents if process.id in ids}
        ids |= {child.id for child in children}


class Ending:
    """Asks first and kills later."""

    def __init__(self, patience: float) -> None:
        self.patience = patience

    def end(self, family: Family) -> set[Process]:
        """Returns those that could not be ended."""
        began = time.monotonic()
        asked: set[Process] = set()
        while (living := family.living()) or family.undecided:
            waited = time.monotonic() - began
            if not living and waited > self.patience + _YOUNG_SECONDS:
                break
            if waited > _HOPELESS_SECONDS:
                return living
            if waited >= self.patience:
                _send(living, signal.SIGKILL)
            else:
                _send(living - asked, signal.SIGTERM)
                asked |= living
            time.sleep(_PAUSE_SECONDS)
        return set()

    def end_groups(self, groups: set[int]) -> None:
        """Where there is no /proc to look into."""
        for signal_ in (signal.SIGTERM, signal.SIGKILL):
            for group in groups:
                with contextlib.suppress(OSError):
                    os.killpg(group, signal_)
            time.sleep(self.patience)

    def hurry(self, *_: object) -> None:
        """Do not wait any longer."""
        self.patience = 0.0


def _send(processes: set[Process], signal_: int) -> None:
    for process in processes:
        with contextlib.suppress(OSError):
            os.kill(process.id, signal_)


def _bid_farewell(orders: Orders) -> None:
    if orders.farewell:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                orders.farewell,
                env=orders.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_FAREWELL_SECONDS,
            )


def main() -> None:
    """Wait, then end everything."""
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(ignored, signal.SIG_IGN)
    mark, patience = sys.argv[1], float(sys.argv[2])
    ending, orders = Ending(patience), Orders()
    signal.signal(signal.SIGTERM, ending.hurry)
    orders.follow(sys.stdin.buffer)
    _bid_farewell(orders)
    left: set[Process] = set()
    if (_PROC / "self" / "environ").exists():
        left = ending.end(Family(mark))
    else:
        ending.end_groups(orders.groups)
    for path in orders.remove:
        if Path(path).is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            Path(path).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        print(" ".join(str(process.id) for process in left), flush=True)


if __name__ == "__main__":
    main()
