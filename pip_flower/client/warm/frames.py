"""What the two ends of the worker's socket say to each other: frames of a length and as many bytes."""

import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flwr.app import Context, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

from pip_flower.flower.failures import where_raised

_LENGTH = struct.Struct(">Q")
_PROTO = type(recorddict_to_proto(RecordDict()))


class HungUpError(ConnectionError):
    """The other end closed the connection, most likely because it died."""


@dataclass(frozen=True)
class Request:
    """A message's kind and the context it is replied to in; `identity` tells workers of other apps apart."""

    identity: str
    kind: str
    run_id: int
    node_id: int
    node_config: Mapping[str, Any]
    run_config: Mapping[str, Any]

    def context(self) -> Context:
        """As Flower gave it; nothing is kept in its state."""
        return Context(self.run_id, self.node_id, dict(self.node_config), RecordDict(), dict(self.run_config))


@dataclass(frozen=True)
class Raised:
    """An exception, as far as it travels."""

    module: str
    name: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> "Raised":
        """What Flower will tell the server of it: no traceback, so that the text has to say where it was."""
        kind = type(error)
        return cls(kind.__module__, kind.__qualname__, f"{error} ({where_raised(error)})")

    def again(self) -> Exception:
        """An exception of the same name and text: Flower reports both to the server."""
        kind = type(self.name, (RuntimeError,), {"__module__": self.module})
        error: Exception = kind(self.text)
        return error


def send_request(connection: socket.socket, request: Request, records: RecordDict) -> None:
    """The caller's turn."""
    _send(connection, json.dumps(asdict(request)).encode())
    _send(connection, _packed(records))


def receive_request(connection: socket.socket) -> tuple[Request, RecordDict]:
    """The inverse of `send_request`."""
    request = Request(**json.loads(_receive(connection)))
    return request, _unpacked(_receive(connection))


def send_reply(connection: socket.socket, reply: RecordDict | Raised | None) -> None:
    """The worker's turn; None means that the request is not for this worker."""
    if reply is None:
        _send(connection, b"null")
    elif isinstance(reply, Raised):
        _send(connection, json.dumps(asdict(reply)).encode())
    else:
        _send(connection, b"true")
        _send(connection, _packed(reply))


def receive_reply(connection: socket.socket) -> RecordDict | Raised | None:
    """The inverse of `send_reply`."""
    said = json.loads(_receive(connection))
    if said is None:
        return None
    return _unpacked(_receive(connection)) if said is True else Raised(**said)


def _packed(records: RecordDict) -> bytes:
    return bytes(recorddict_to_proto(records).SerializeToString())


def _unpacked(data: bytes) -> RecordDict:
    return recorddict_from_proto(_PROTO.FromString(data))


def _send(connection: socket.socket, data: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(data)))
    connection.sendall(data)


def _receive(connection: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = connection.recv(min(count, 1 << 20))
        if not part:
            raise HungUpError("the other end hung up")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
