"""A gRPC server between nodes and SuperLink that passes every call on and keeps what nodes said, decrypted.

It is a process of its own: `python fleet_recorder.py LISTEN FORWARD SERVER_BUNDLE FILE`.
"""

import base64
import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_PLENTY = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Recording:
    """What nodes said up to now."""

    def __init__(self, file: Path) -> None:
        lines = file.read_text().splitlines()
        self.calls = [(name, base64.b64decode(data)) for name, data in map(json.loads, lines)]

    def requests(self, method: str, kind: Any) -> list[Any]:
        return [kind.FromString(request) for name, request in self.calls if name == method]

    def messages(self) -> list[tuple[int, Any]]:
        """Everything that nodes replied, put together again, with the node's id."""
        from flwr.proto.fleet_pb2 import PushMessagesRequest
        from flwr.proto.message_pb2 import PushObjectRequest
        from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

        contents = {r.object_id: r.object_content for r in self.requests("PushObject", PushObjectRequest)}
        return [
            (request.node.node_id, inflate_object_from_contents(tree.object_id, dict(contents)))
            for request in self.requests("PushMessages", PushMessagesRequest)
            for tree in request.message_object_trees
        ]

    def content_bytes(self) -> dict[int, int]:
        """Bytes of content that each node sent."""
        from flwr.proto.message_pb2 import PushObjectRequest

        total: dict[int, int] = defaultdict(int)
        for request in self.requests("PushObject", PushObjectRequest):
            total[request.node.node_id] += len(request.object_content)
        return dict(total)


@contextmanager
def recorder(listen: int, forward: int, server: Path, file: Path) -> Iterator[None]:
    """Between port `listen`, with the certificate in the server's bundle, and port `forward`."""
    command = [sys.executable, __file__, str(listen), str(forward), str(server), str(file)]
    with subprocess.Popen(command) as process:
        deadline = time.monotonic() + 300
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        try:
            yield
        finally:
            process.kill()


def _serve(listen: str, forward: str, server: Path, file: Path) -> None:
    import grpc

    lock = threading.Lock()
    root = (server / "ca.crt").read_bytes()
    key, certificate = (server / "server.key").read_bytes(), (server / "server.pem").read_bytes()
    credentials = grpc.ssl_channel_credentials(root)
    channel = grpc.secure_channel(f"127.0.0.1:{forward}", credentials, options=_PLENTY)

    class PassOn(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            onward = channel.unary_unary(details.method)

            def handle(request: bytes, context: Any) -> bytes:
                name = details.method.rsplit("/", 1)[-1]
                with lock, file.open("a") as out:
                    out.write(json.dumps([name, base64.b64encode(request).decode()]) + "\n")
                sent = [(k, v) for k, v in context.invocation_metadata() if k != "user-agent"]
                try:
                    reply, call = onward.with_call(request, metadata=sent, timeout=300)
                except grpc.RpcError as error:
                    context.abort(error.code(), error.details())
                context.send_initial_metadata(call.initial_metadata())
                context.set_trailing_metadata(call.trailing_metadata())
                return bytes(reply)

            return grpc.unary_unary_rpc_method_handler(handle)

    proxy = grpc.server(ThreadPoolExecutor(16), options=_PLENTY)
    proxy.add_generic_rpc_handlers((PassOn(),))
    proxy.add_secure_port(f"0.0.0.0:{listen}", grpc.ssl_server_credentials([(key, certificate)]))
    proxy.start()
    file.touch()
    proxy.wait_for_termination()


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
