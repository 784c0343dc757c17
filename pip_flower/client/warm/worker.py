"""`python -m pip_flower.client.warm.worker OWNER`: replies to messages until OWNER ends."""

import os
import socket
import sys
import threading
import time
from pathlib import Path

from flwr.app import RecordDict

from pip_flower.client.warm.frames import HungUpError, Raised, Request, receive_request, send_reply
from pip_flower.client.warm.sockets import socket_path, sweep_sockets
from pip_flower.runtime.process import alive

_PAGE = os.sysconf("SC_PAGE_SIZE")
_MEGABYTE = 1 << 20
_WATCH_SECONDS = 0.5


class Worker:
    """Replies to one message after the other, as its SuperNode does."""

    def __init__(self, owner: int) -> None:
        self.path = socket_path(owner)
        self.identity = ""
        # Until the first message brings the configuration.
        self.idle_seconds = 60.0
        self.most_megabytes = 0
        self.listener = socket.socket(socket.AF_UNIX)

    def serve(self) -> str:
        """Until there is a reason to end, which is returned."""
        sweep_sockets()
        self.path.unlink(missing_ok=True)
        self.listener.bind(str(self.path))
        self.listener.listen()
        while True:
            self.listener.settimeout(self.idle_seconds)
            try:
                connection, _ = self.listener.accept()
            except TimeoutError:
                self._close()
                return f"no message in {self.idle_seconds:g} s"
            with connection:
                connection.settimeout(None)
                if reason := self._converse(connection):
                    return reason

    def _converse(self, connection: socket.socket) -> str:
        """Reply to one message; a reason to end, or nothing."""
        try:
            request, records = receive_request(connection)
        except HungUpError:
            return ""
        self.identity = self.identity or request.identity
        if request.identity != self.identity:
            self._close()
            _say(connection, None)
            return "another app or configuration is wanted"
        reply = self._reply(request, records)
        reason = self._too_large()
        if reason:
            # Before the reply: whoever reads it may connect again at once, and must not find this one.
            self._close()
        _say(connection, reply)
        return reason

    def _reply(self, request: Request, records: RecordDict) -> RecordDict | Raised:
        try:
            # torch and all that: after the socket is there, so that callers see a worker at once.
            from pip_flower.client.adapter import REPLIES
            from pip_flower.client.node_settings import config_on_node

            settings = config_on_node(request.run_config, request.node_config).runtime
            self.idle_seconds = settings.worker_idle
            self.most_megabytes = settings.worker_memory
            return REPLIES[request.kind](records, request.context())
        except Exception as error:
            return Raised.of(error)

    def _too_large(self) -> str:
        used = int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE // _MEGABYTE
        if self.most_megabytes and used > self.most_megabytes:
            return f"{used} MB are in use, runtime.worker_memory is {self.most_megabytes}"
        return ""

    def _close(self) -> None:
        """No further callers; those that wait already are hung up on and start another worker."""
        self.path.unlink(missing_ok=True)
        self.listener.close()


def _say(connection: socket.socket, reply: RecordDict | Raised | None) -> None:
    try:
        send_reply(connection, reply)
    except (BrokenPipeError, ConnectionResetError):
        _log("the process that asked is gone")


def _end_with(owner: int, path: Path) -> None:
    """In a thread: wherever the work stands, nobody waits for it once the SuperNode is gone."""
    while alive(owner):
        time.sleep(_WATCH_SECONDS)
    path.unlink(missing_ok=True)
    os._exit(0)


def _log(text: str) -> None:
    print(f"pip-flower worker {os.getpid()}: {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Serve the node whose SuperNode (or its helper) is the process given."""
    owner = int(sys.argv[1])
    worker = Worker(owner)
    threading.Thread(target=_end_with, args=(owner, worker.path), daemon=True).start()
    _log(f"started for process {owner}")
    _log(f"ends: {worker.serve()}")


if __name__ == "__main__":
    main()
