"""The short-lived side: in the process that Flower starts for a message, ask the worker."""

import hashlib
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flwr.app import Context, RecordDict

from pip_flower.client.warm.frames import HungUpError, Raised, Request, receive_reply, send_request
from pip_flower.client.warm.sockets import socket_path, worker_wanted
from pip_flower.storage.files import locked

_APP = Path(__file__).resolve().parents[3]
_PROCESS_OF_A_MESSAGE = "flwr-clientapp"
_ATTEMPTS = 2
_BETWEEN_ATTEMPTS = 0.05
_START_SECONDS = 180


class WorkerError(RuntimeError):
    """The worker could not be started, or died again and again."""


def reply(kind: str, records: RecordDict, context: Context) -> RecordDict:
    """What this node replies to a message of `kind` ("train", "evaluate" or "query")."""
    if _wanted():
        return ask_worker(kind, records, context, os.getppid())
    # torch and all that: only where the work is done.
    from pip_flower.client.adapter import REPLIES

    try:
        return REPLIES[kind](records, context)
    except Exception as error:
        if _of_a_message():
            raise Raised.of(error).again() from error
        raise


def ask_worker(kind: str, records: RecordDict, context: Context, owner: int) -> RecordDict:
    """Have the message replied to by the worker that lives as long as `owner`; started if it is not there."""
    request = Request(
        identity(context),
        kind,
        context.run_id,
        context.node_id,
        dict(context.node_config),
        dict(context.run_config),
    )
    dead: set[int] = set()
    while len(dead) < _ATTEMPTS:
        with _connected(owner) as connection:
            worker = _process_behind(connection)
            try:
                send_request(connection, request, records)
                said = receive_reply(connection)
            except (HungUpError, ConnectionResetError, BrokenPipeError):
                # One that is being torn down may still be connected to: that is the same death.
                dead.add(worker)
                time.sleep(_BETWEEN_ATTEMPTS)
                continue
        if isinstance(said, Raised):
            raise said.again()
        if said is not None:
            return said
    raise WorkerError(f"the node's worker died {len(dead)} times over a {kind} message; its log says why")


def identity(context: Context) -> str:
    """What a worker holds in memory belongs to one app and one configuration."""
    parts = [
        str(_APP),
        sys.executable,
        sorted(context.run_config.items()),
        sorted(context.node_config.items()),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _wanted() -> bool:
    """Only a process of a single message gains; Ray's actors and tests live on by themselves."""
    return _of_a_message() and worker_wanted()


def _of_a_message() -> bool:
    return Path(sys.argv[0]).name == _PROCESS_OF_A_MESSAGE


@contextmanager
def _connected(owner: int) -> Iterator[socket.socket]:
    path = socket_path(owner)
    connection = _connection(path)
    if connection is None:
        # One at a time: a second caller finds the worker that the first one started.
        with locked(path.with_suffix(".lock")):
            connection = _connection(path) or _started(path, owner)
    with connection:
        yield connection


def _connection(path: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    return connection


def _process_behind(connection: socket.socket) -> int:
    """The process that listens at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[0])


def _started(path: Path, owner: int) -> socket.socket:
    # -P: the code of this very app, whatever lies in the directory that the SuperNode was started in.
    command = [sys.executable, "-P", "-m", "pip_flower.client.warm.worker", str(owner)]
    search = os.pathsep.join(filter(None, [str(_APP), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": search}
    silence = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    # In a session of its own, so that it outlives the process group of this message.
    worker = os.posix_spawn(sys.executable, command, environment, file_actions=silence, setsid=True)
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and os.waitpid(worker, os.WNOHANG) == (0, 0):
        if connection := _connection(path):
            return connection
        time.sleep(0.02)
    raise WorkerError("the node's worker did not start; its log says why")
