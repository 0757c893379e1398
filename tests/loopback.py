"""Local servers in this process, which run for the length of a `with` block."""

from __future__ import annotations

import contextlib
import http.server
import socketserver
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve `handler` in the background. Yields the server's URL, without a final slash."""
    # Requests stay out of the output of tests.
    quiet = type("Quiet", (handler,), {"log_message": lambda *_: None})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), quiet) as server, running(server):
        yield f"http://127.0.0.1:{server.server_port}"


@contextlib.contextmanager
def running(server: socketserver.BaseServer) -> Iterator[None]:
    """Run a server in the background."""
    # The argument is its polling interval in seconds: `shutdown` waits that long.
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
