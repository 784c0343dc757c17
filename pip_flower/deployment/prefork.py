"""Starts the processes of messages from one that has imported Flower already.

A SuperNode's helper starts `flwr-clientapp`, found on the PATH, for every message; more than a second of
processor time goes into its imports. Here a small program of that name comes first on the PATH: it hands its
arguments to a process that forks, and the fork runs Flower's own `flwr-clientapp`. Should that process be
gone, the small program becomes the real one.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from pip_flower.client.warm.sockets import socket_directory, sweep_sockets

PROGRAM = "flwr-clientapp"
_WATCH_SECONDS = 0.5
_LONGEST_REQUEST = 1 << 16

_STAND_IN = """\
#!{python} -IS
import json, os, socket, sys
try:
    with socket.socket(socket.AF_UNIX) as ask:
        ask.connect({path!r})
        ask.sendall(json.dumps(sys.argv[1:]).encode())
        ask.shutdown(socket.SHUT_WR)
        taken = ask.recv(1)
except OSError:
    taken = b""
if not taken:
    os.execv({real!r}, [{real!r}, *sys.argv[1:]])
"""


def start_forking(main: Callable[[], object]) -> None:
    """Fork a process that runs `main` for every message from now on, and put the stand-in on the PATH.

    To be called before there are threads.
    """
    sweep_sockets()
    owner = os.getpid()
    directory = socket_directory() / f"{owner}.programs"
    directory.mkdir(mode=0o700, exist_ok=True)
    path = directory / "fork.sock"
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    real = str(Path(sys.executable).parent / PROGRAM)
    program = directory / PROGRAM
    program.write_text(_STAND_IN.format(python=sys.executable, path=str(path), real=real), encoding="utf-8")
    program.chmod(0o700)
    if os.fork() == 0:
        arguments = _serve(listener, owner)
        if arguments is not None:
            sys.argv = [PROGRAM, *arguments]
            main()
        else:
            shutil.rmtree(directory, ignore_errors=True)
        sys.exit()
    listener.close()
    os.environ["PATH"] = os.pathsep.join([str(directory), os.environ.get("PATH", "")])


def _serve(listener: socket.socket, owner: int) -> list[str] | None:
    """Until the SuperNode is gone; returns, in each fork, the arguments that it is for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener.settimeout(_WATCH_SECONDS)
    while os.getppid() == owner:
        _reap()
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with connection, contextlib.suppress(OSError):
            arguments = _request(connection)
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGINT, signal.default_int_handler)
                return arguments
            connection.sendall(b"1")
    return None


def _request(connection: socket.socket) -> list[str]:
    connection.settimeout(5)
    parts = []
    while part := connection.recv(_LONGEST_REQUEST):
        parts.append(part)
    arguments: list[str] = json.loads(b"".join(parts))
    return arguments


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
