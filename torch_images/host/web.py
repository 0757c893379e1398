"""The HTTP client of all downloads: it limits answers, and forwards no passwords.

A server may be broken or malicious. So each answer has a largest size and a least pace, and a
redirect to another server gets no credentials, not even those of ~/.netrc.
"""

from __future__ import annotations

import functools
import io
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection
from urllib3.exceptions import TimeoutError as Stall
from urllib3.util import Retry

if TYPE_CHECKING:
    from requests import PreparedRequest, Response

    from torch_images.host.network import Network

# The most bytes of an answer that is read whole, such as an index page with 30,000 links.
# Parsing HTML takes up to a hundred times the memory.
PAGE = 1 << 23
# The most bytes of a file whose size no lock has: four times the largest wheel of CUDA or torch.
FILE = 1 << 33
# An answer may pause for a minute, and must bring _LEAST bytes in each two minutes of waiting.
_TIMEOUT = (15, 60)
_WINDOW, _LEAST = 120.0, 1 << 17
_LINE = 1 << 16  # bytes; urllib3 reads the line after the last chunk to its end, however long
_CONNECTIONS = 16
_AGAIN = (429, 500, 502, 503, 504)
_PAUSES = (0.5, 1.0, 2.0)  # seconds
_LONGEST = 60.0  # seconds of a pause that a server asks for; longer ones are cut
_PORTS = {"http": 80, "https": 443}


class Session(requests.Session):
    """A client for one kind of server; several threads may use it at once."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.verify = network.verify
        adapter = _Adapter()
        for scheme in ("http://", "https://"):
            self.mount(scheme, adapter)

    def request(self, *words: Any, **options: Any) -> Response:
        """Send a request. Raises RequestException, also for a redirect to an invalid URL."""
        options.setdefault("verify", self.verify)  # else the environment would override it
        try:
            return super().request(*words, **options)
        except requests.RequestException:
            raise
        except ValueError as error:
            raise requests.exceptions.InvalidURL(
                f"it redirects to an invalid address: {error}"
            ) from None

    def rebuild_auth(self, prepared_request: PreparedRequest, response: Response) -> None:
        """Keep credentials on a redirect to the same server only; add no others."""
        if _server(response.request.url) != _server(prepared_request.url):
            prepared_request.headers.pop("Authorization", None)


def _server(url: str | None) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url or "")
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


class _Adapter(HTTPAdapter):
    """Limits each answer, including those between redirects and attempts."""

    def __init__(self) -> None:
        # No status is listed here: urllib3 would read the answer to its end, however long.
        again = Retry(
            3,
            connect=1,
            other=0,  # a stall
            backoff_factor=0.5,
            allowed_methods=Retry.DEFAULT_ALLOWED_METHODS | {"PATCH"},
            respect_retry_after_header=False,
        )
        super().__init__(pool_maxsize=_CONNECTIONS, max_retries=again)

    def send(
        self,
        request: PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        *rest: Any,
        **options: Any,
    ) -> Response:
        """Send a request, and repeat it if that may help."""
        for pause in (*_PAUSES, None):
            answer = super().send(request, stream, timeout or _TIMEOUT, *rest, **options)
            # A repeated POST might create its result twice.
            if pause is None or request.method == "POST" or answer.status_code not in _AGAIN:
                break
            answer.close()
            time.sleep(max(pause, min(_asked(answer), _LONGEST)))
        whole = not stream or answer.status_code != requests.codes.ok
        most, kind = (PAGE, "page") if whole else (FILE, "file")
        name = f"a {kind} of {urlsplit(request.url or '').hostname}"
        answer.raw = _Body(answer.raw, most, name)
        return answer

    def get_connection_with_tls_context(self, *words: Any, **options: Any) -> Any:
        """The connections to a server, which check its pace."""
        pool: Any = super().get_connection_with_tls_context(*words, **options)
        pool.ConnectionCls = _watching(pool.ConnectionCls)
        return pool


def _asked(answer: Response) -> float:
    """The seconds of a server's Retry-After, 0 without one or if it is a date."""
    value = answer.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() else 0.0


class _Body:
    """The body of an answer, which raises beyond a size."""

    def __init__(self, body: Any, most: int, name: str) -> None:
        self._body, self._most, self._name = body, most, name

    def stream(self, *words: Any, **options: Any) -> Iterator[bytes]:
        left = self._most
        try:
            for data in self._body.stream(*words, **options):
                left -= len(data)
                if left < 0:
                    self._body.close()
                    problem = f"{self._name} has more than {self._most / 1e6:.0f} MB"
                    raise requests.RequestException(problem)
                yield data
        except Stall as error:
            raise requests.Timeout(error) from None

    def read(self, *_: Any, **__: Any) -> bytes:
        """Close the connection and return nothing.

        `requests` calls this to skip an undecodable body before it follows a redirect.
        """
        self._body.close()
        return b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._body, name)


@functools.cache
def _watching(kind: type[Any]) -> type[Any]:
    """A class of connections that check their pace, derived from `kind`."""
    return kind if issubclass(kind, _Watching) else type("Watching", (_Watching, kind), {})


class _Watching(HTTPConnection):
    """Checks everything read from its socket: headers, bodies, and skipped bytes."""

    def connect(self) -> None:
        """Connect."""
        super().connect()
        self.sock = cast("Any", _Socket(self.sock))


class _Socket:
    """A socket that checks the pace of each answer read from it."""

    def __init__(self, below: Any) -> None:
        self._below = below

    def makefile(self, *_: Any, **__: Any) -> io.BufferedReader:
        return _Lines(_Paced(self._below.makefile("rb", buffering=0)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)


class _Lines(io.BufferedReader):
    """A stream of an answer, which limits the length of a line."""

    def readline(self, size: int | None = -1, /) -> bytes:
        """The next line, or the beginning of a long one."""
        return super().readline(_LINE if size is None or size < 0 else size)


class _Paced(io.RawIOBase):
    """A stream that times out if it brings too few bytes, even if some keep coming.

    It also times out if it brings more than any answer may have, headers included.
    """

    def __init__(self, below: io.RawIOBase) -> None:
        self._below = below
        self._waited, self._got, self._all = 0.0, 0, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        """The next bytes, 0 at the end. Raises Stall."""
        began = time.monotonic()
        count = self._below.readinto(buffer)
        self._waited += time.monotonic() - began
        self._got += count or 0
        self._all += count or 0
        if self._all > FILE + PAGE:
            raise Stall(f"it has more than {FILE + PAGE} bytes")
        if count and self._waited >= _WINDOW:
            if self._got < _LEAST:
                raise Stall(f"only {self._got} bytes came in {self._waited:.0f} s")
            self._waited, self._got = 0.0, 0
        return count

    def close(self) -> None:
        """Close it."""
        self._below.close()
        super().close()
