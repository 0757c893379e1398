"""A stand-in for a registry, on loopback, that lies, stalls and dies. It is none: it only answers GET.

Real registries are in tests/integration; they do none of that on demand.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch_images.host.loopback import serving
from torch_images.oci.layout import MANIFEST

_TLS_HANDSHAKE = b"\x16"
# What can be wrong with the answer for a blob or a manifest.
LIES = ("other bytes", "longer", "shorter", "missing", "broken", "stalls", "dies")


@dataclass
class StandIn:
    """What it has, its address, what was asked of it, and the lie for each digest."""

    blobs: Mapping[str, bytes]
    host: str = ""
    over: threading.Event = field(default_factory=threading.Event)  # ends what stalls
    asked: list[str] = field(default_factory=list)
    lies: dict[str, str] = field(default_factory=dict)
    shown: str = ""  # that requests must show; "" for none


@contextlib.contextmanager
def standin_registry(
    blobs: Mapping[str, bytes], lies: Mapping[str, str] | None = None, *, shown: str = ""
) -> Iterator[StandIn]:
    """Serve blobs and manifests by digest ("sha256:..."), whatever the repository's name."""
    standin = StandIn(blobs=blobs, lies=dict(lies or {}), shown=shown)
    bound = type("Bound", (_Handler,), {"standin": standin})
    with serving(bound) as url:
        standin.host = url.removeprefix("http://")
        try:
            yield standin
        finally:
            standin.over.set()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    standin: StandIn

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            if self.connection.recv(1, socket.MSG_PEEK) == _TLS_HANDSHAKE:
                # A client learns from this to speak plainly.
                self.wfile.write(b"HTTP/1.0 400 Bad Request\r\n\r\nno TLS here\n")
            else:
                super().handle()

    def do_GET(self) -> None:
        standin = self.standin
        standin.asked.append(self.path)
        if self.path.startswith("/token"):
            self._send(200, json.dumps({"token": standin.shown}).encode())
            return
        if standin.shown and self.headers.get("Authorization") != f"Bearer {standin.shown}":
            realm = f'Bearer realm="http://{standin.host}/token",service="x",scope="y"'
            self._send(401, b"", ("WWW-Authenticate", realm))
            return
        digest = self.path.rpartition("/")[2]
        data, lie = standin.blobs.get(digest), standin.lies.get(digest, "")
        if self.path == "/v2/":
            self._send(200, b"{}")
        elif data is None or lie == "missing":
            self._send(404, b"")
        elif lie == "broken":
            self._send(500, b"")
        else:
            self._send_blob(data, lie)

    do_HEAD = do_GET  # noqa: N815

    def _send_blob(self, data: bytes, lie: str) -> None:
        changed = {
            "other bytes": data[:-1] + bytes([data[-1] ^ 1]),
            "longer": data + b"more",
            "shorter": data[:-1],
        }
        data = changed.get(lie, data)
        half = len(data) // 2 if lie in ("stalls", "dies") else len(data)
        self._send(200, data, ("Content-Type", MANIFEST), upto=half)
        if lie == "stalls":
            self.wfile.flush()
            self.standin.over.wait()
        elif lie == "dies":
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

    def _send(
        self, status: int, data: bytes, *headers: tuple[str, str], upto: int | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for header in headers:
            self.send_header(*header)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[:upto])

    def log_message(self, *_: object) -> None:
        """Keep requests out of the output of tests."""
