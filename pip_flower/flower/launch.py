"""Everything that one launch starts, as a whole: it ends when it is told to, and with its launcher.

Flower's and Ray's processes leave their parents, their process groups and their sessions, so none of these
tells which ones are ours. A mark in the environment does: all of them inherit it.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pip_flower.flower import watchdog

MARK_VARIABLE = "PIP_FLOWER_LAUNCH"
LAUNCHER_VARIABLE = "PIP_FLOWER_LAUNCHER"
# Between asking processes to end and killing them.
_PATIENCE_SECONDS = 5.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


_launches: "set[Launch]" = set()


class SurvivorsError(RuntimeError):
    """Processes that could not be ended."""


class Launch:
    """Processes started with `environment(...)` belong to it. `end` ends them all; so does a watchdog, in a
    session of its own, should this process be gone without having done so."""

    def __init__(self, patience: float = _PATIENCE_SECONDS) -> None:
        self.mark = f"{MARK_VARIABLE}={uuid.uuid4().hex}"
        self.patience = patience
        self._watchdog = self._watch()
        _launches.add(self)

    def _watch(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-IS", watchdog.__file__, self.mark, str(self.patience)],
            cwd="/",
            # Not a process of a launch that this one may be part of: it has to outlive it.
            env={name: value for name, value in os.environ.items() if name != MARK_VARIABLE},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base` with what makes a process part of this launch."""
        name, _, value = self.mark.partition("=")
        # SPT_NOENV: Ray's processes write their titles over their environment otherwise.
        return {**base, name: value, LAUNCHER_VARIABLE: str(os.getpid()), "SPT_NOENV": "1"}

    def started(self, process: int) -> None:
        """A process that leads a group of its own."""
        self._tell(group=process)

    def remove_afterwards(self, path: Path) -> None:
        """A file or directory that is to go with the launch."""
        self._tell(remove=str(path))

    def farewell(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """A command to run before everything ends; none if it is empty."""
        self._tell(farewell=list(command), environment=dict(environment))

    def hurry(self) -> None:
        """End without asking."""
        if self._watchdog.poll() is None:
            self._watchdog.terminate()

    def end(self) -> None:
        """End everything and wait until nothing is left."""
        if self not in _launches:
            return
        self._tell(end=True)
        left, _ = self._watchdog.communicate()
        if self._watchdog.returncode:
            # It was killed before it could do its work.
            self._watchdog = self._watch()
            left, _ = self._watchdog.communicate()
        _launches.discard(self)
        if left.strip():
            raise SurvivorsError(f"these processes could not be ended: {left.decode().strip()}")

    def _tell(self, **order: Any) -> None:
        """Should the watchdog be gone, there is nobody to tell."""
        pipe = self._watchdog.stdin
        with contextlib.suppress(OSError, ValueError):
            if pipe is not None:
                pipe.write(json.dumps(order).encode() + b"\n")
                pipe.flush()


class Interruption:
    """Whether this process has been asked to end."""

    def __init__(self) -> None:
        self.requested = False

    def handle(self, *_: object) -> None:
        """The first signal interrupts; later ones must not interrupt the ending, but hasten it."""
        if self.requested:
            for launch in list(_launches):
                launch.hurry()
            return
        self.requested = True
        raise KeyboardInterrupt


_interruption: Interruption | None = None


def check_interruption() -> None:
    """Raise KeyboardInterrupt if this process was interrupted and the exception was lost on its way."""
    if _interruption is not None and _interruption.requested:
        raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and the SIGHUP of a closed terminal act like Ctrl-C, unless they are ignored (nohup). Whatever
    is launched within has ended afterwards, and a second signal does not interrupt that. Signals can be set
    in the main thread only; contexts within the first one change nothing."""
    global _interruption
    if _interruption is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    _interruption = Interruption()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    others = set(_launches)
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, _interruption.handle)
        yield
    finally:
        for launch in _launches - others:
            launch.end()
        for number, handler in before.items():
            signal.signal(number, handler)
        _interruption = None
