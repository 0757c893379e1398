"""A runner that starts nothing, and a web server of this process."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch_images.errors import CommandError
from torch_images.runner import Completed, Runner


class FakeRunner(Runner):
    """Records commands; answers with what `answers` says for the first words of each."""

    def __init__(self, answers: Mapping[str, tuple[int, str]] | None = None) -> None:
        self.commands: list[list[str]] = []
        self.answers = dict(answers or {})

    def run(self, command: Sequence[str], **options: Any) -> Completed:
        self.commands.append(list(command))
        line = " ".join(command)
        code, output = next((a for k, a in self.answers.items() if line.startswith(k)), (0, ""))
        if code and options.get("check", True):
            raise CommandError(line, code, output)
        return Completed(code, output)


def closed_port() -> int:
    """A port of the loopback interface on which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def web_server(files: Mapping[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Serve files by path on loopback; the URL, and the list that requests are added to."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            data = files.get(self.path)
            self.send_response(404 if data is None else 200)
            self.send_header("Content-Length", str(len(data or b"")))
            self.end_headers()
            self.wfile.write(data or b"")

        def log_message(self, *_: object) -> None:
            """Keep requests out of the output of tests."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()
