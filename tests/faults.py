"""A proxy on loopback that lets a registry fail on purpose: cuts, refusals, errors."""

from __future__ import annotations

import contextlib
import re
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.servers import connecting

_TLS_HANDSHAKE = 0x16


@dataclass
class Fault:
    """What happens to requests that match "METHOD /path": the first `times` of them.

    They are answered with `status`, or cut after so many bytes of their body: `cut`, which longer
    bodies only meet, so not that of an image's small configuration. `then` runs at that moment.
    """

    request: str
    status: str = ""
    headers: tuple[str, ...] = ()
    cut: int = 0
    times: int = 1
    then: Callable[[], object] = lambda: None
    met: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def meets(self, line: str, length: int) -> bool:
        """Whether this request, with a body of `length` bytes, is one of those."""
        with self._lock:
            if self.met >= self.times or not re.match(self.request, line) or length < self.cut:
                return False
            self.met += 1
            return True


@contextlib.contextmanager
def faulty(upstream: str, *faults: Fault) -> Iterator[str]:
    """The address of a proxy for the HTTP server at `upstream` ("host:port")."""
    host, _, port = upstream.partition(":")

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                self.relay()

        def relay(self) -> None:
            client: socket.socket = self.request
            received = b""
            while b"\r\n\r\n" not in received:
                chunk = client.recv(65536)
                if not chunk:
                    return
                received += chunk
                if received[0] == _TLS_HANDSHAKE:  # a client learns from this to speak plainly
                    client.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\nno TLS here\n")
                    return
            head, _, body = received.partition(b"\r\n\r\n")
            first, *headers = head.decode().split("\r\n")
            header = next((h for h in headers if h.lower().startswith("content-length:")), ":0")
            length = int(header.partition(":")[2])
            fault = next((f for f in faults if f.meets(first, length)), None)
            if fault and fault.status:
                drain(client, length - len(body))
                fault.then()
                lines = (f"HTTP/1.1 {fault.status}", "Content-Length: 0", "Connection: close")
                client.sendall("\r\n".join((*lines, *fault.headers, "", "")).encode())
                return
            # One request for each connection: then a fault can be told from its first line.
            kept = [h for h in headers if not h.lower().startswith("connection:")]
            text = "\r\n".join((first, *kept, "Connection: close", "", ""))
            with socket.create_connection((host, int(port))) as server:
                server.sendall(text.encode() + body)
                back = threading.Thread(target=copy, args=(server, client), daemon=True)
                back.start()
                limit = fault.cut - len(body) if fault else None
                if not copy(client, server, limit) and fault:
                    fault.then()
                    for end in (client, server):
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                        end.close()
                back.join()

    with connecting(Handler) as address:
        yield address


def copy(source: socket.socket, target: socket.socket, limit: int | None = None) -> bool:
    """Copy until the source ends, or to a limit of bytes; whether it ended."""
    left = limit
    with contextlib.suppress(OSError):
        while left is None or left > 0:
            chunk = source.recv(65536 if left is None else min(65536, left))
            if not chunk:
                break
            target.sendall(chunk)
            left = None if left is None else left - len(chunk)
        else:
            return False
        target.shutdown(socket.SHUT_WR)
    return True


def drain(source: socket.socket, count: int) -> None:
    """Read and forget so many bytes."""
    while count > 0:
        chunk = source.recv(min(65536, count))
        if not chunk:
            return
        count -= len(chunk)
