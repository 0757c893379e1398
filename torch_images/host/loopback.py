"""Servers of this process, for as long as they are needed."""

from __future__ import annotations

import contextlib
import http.server
import socketserver
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """Let `handler` answer requests in the background; the server's URL, without a final slash."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, running(server):
        yield f"http://127.0.0.1:{server.server_port}"


@contextlib.contextmanager
def running(server: socketserver.BaseServer) -> Iterator[None]:
    """Let a server answer in the background."""
    # It looks for the end so often, in seconds: `shutdown` waits for that.
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
