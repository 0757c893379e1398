"""Web servers of the test's own process, on loopback."""

from __future__ import annotations

import contextlib
import http.server
import socket
import socketserver
from collections.abc import Iterator, Mapping

from tests.loopback import running, serving


def closed_port() -> int:
    """A port of the loopback interface on which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def connecting(handler: type[socketserver.BaseRequestHandler]) -> Iterator[str]:
    """Let `handler` have each connection, in a thread of its own; the server's "host:port"."""

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True
        request_queue_size = 64

    with Server(("127.0.0.1", 0), handler) as server, running(server):
        yield f"127.0.0.1:{server.server_address[1]}"


@contextlib.contextmanager
def web_server(files: Mapping[str, bytes], elsewhere: str = "") -> Iterator[tuple[str, list[str]]]:
    """Serve files by path on loopback; the URL, and the list that requests are added to.

    What is not there is looked for below `elsewhere`, if that is given.
    """
    paths: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            data = files.get(self.path)
            missing = 302 if elsewhere else 404
            self.send_response(missing if data is None else 200)
            if data is None and elsewhere:
                self.send_header("Location", elsewhere + self.path)
            kind = "text/html" if self.path.endswith("/") else "application/octet-stream"
            if self.path.endswith("/") and (data or b"").startswith(b"{"):
                kind = "application/vnd.pypi.simple.v1+json"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data or b"")))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data or b"")

        do_HEAD = do_GET  # noqa: N815

    with serving(Handler) as url:
        yield url, paths
