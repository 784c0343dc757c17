"""A web server on this machine that breaks off, starts over or refuses."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pip_flower.data.sources.base import Archive


class Server(ThreadingHTTPServer):
    """Sends `content`, at most `at_once` bytes of it before the connection breaks."""

    content = b""
    at_once = 1 << 30
    knows_ranges = True
    status = 200
    requests: list[str]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range", "")
        self.server.requests.append(wanted)
        if self.server.status != 200:
            self.send_error(self.server.status)
            return
        content = self.server.content
        first = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.knows_ranges else 0
        if first >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        self.wfile.write(content[first : first + self.server.at_once])

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(content: bytes, name: str = "data.zip", **settings: object) -> Iterator[tuple[Server, Archive]]:
    """The server, and the archive that it offers."""
    with Server(("127.0.0.1", 0), Handler) as server:
        server.requests = []
        for key, value in {"content": content, **settings}.items():
            setattr(server, key, value)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        yield server, Archive(f"http://127.0.0.1:{server.server_port}/{name}", name, md5)
        server.shutdown()
