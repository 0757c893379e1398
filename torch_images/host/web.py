"""The HTTP client of all that downloads here: bounded, and it hands no password on.

Whoever answers may be broken, or mean harm. So each answer has a size and a pace at which it ends,
and a redirect to another server goes without credentials, also those of ~/.netrc.
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

# Bytes of what is read whole, such as a project's page in an index, which links 30,000 files with
# so many. Reading a page of HTML takes up to a hundred times the memory.
PAGE = 1 << 23
# Bytes of a file whose size no lock says: four times the largest wheel of CUDA's or torch's.
FILE = 1 << 33
# An answer may pause for a minute, and has to bring so many bytes in each two minutes of waiting.
_TIMEOUT = (15, 60)
_WINDOW, _LEAST = 120.0, 1 << 17
_LINE = 1 << 16  # bytes; urllib3 reads a line after the last chunk to its end, wherever that is
_CONNECTIONS = 16
_AGAIN = (429, 500, 502, 503, 504)
_PAUSES = (0.5, 1.0, 2.0)  # seconds
_LONGEST = 60.0  # seconds of a pause that a server asks for; it may ask for any
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
        """Send a request. Raises RequestException, also where a redirect names no URL."""
        options.setdefault("verify", self.verify)  # the environment would come before it
        try:
            return super().request(*words, **options)
        except requests.RequestException:
            raise
        except ValueError as error:
            raise requests.exceptions.InvalidURL(f"it leads to no address: {error}") from None

    def rebuild_auth(self, prepared_request: PreparedRequest, response: Response) -> None:
        """Let a redirect keep its credentials at the same server only, and find no others."""
        if _server(response.request.url) != _server(prepared_request.url):
            prepared_request.headers.pop("Authorization", None)


def _server(url: str | None) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url or "")
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


class _Adapter(HTTPAdapter):
    """Bounds each answer, those between redirects and attempts included."""

    def __init__(self) -> None:
        # No status is named here: urllib3 reads such an answer to its end, wherever that is.
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
        """Send a request, again where that may help."""
        for pause in (*_PAUSES, None):
            answer = super().send(request, stream, timeout or _TIMEOUT, *rest, **options)
            # What is created by POST might then be there twice.
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
        """The connections to a server, each of which watches its pace."""
        pool: Any = super().get_connection_with_tls_context(*words, **options)
        pool.ConnectionCls = _watching(pool.ConnectionCls)
        return pool


def _asked(answer: Response) -> float:
    """The seconds to wait for which a server asks, 0 where it does not, or names a time."""
    said = answer.headers.get("Retry-After", "")
    return float(said) if said.isdecimal() else 0.0


class _Body:
    """The body of an answer, which is an error beyond a size."""

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
        """Nothing: `requests` skips what it cannot decode with this, before it follows a redirect.

        The connection is closed instead.
        """
        self._body.close()
        return b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._body, name)


@functools.cache
def _watching(kind: type[Any]) -> type[Any]:
    """A class of connections, which watch their pace from now on."""
    return kind if issubclass(kind, _Watching) else type("Watching", (_Watching, kind), {})


class _Watching(HTTPConnection):
    """What is read from its socket is watched: headers, bodies, and what is only skipped."""

    def connect(self) -> None:
        """Connect."""
        super().connect()
        self.sock = cast("Any", _Socket(self.sock))


class _Socket:
    """A socket; of each answer read from it, the pace is watched."""

    def __init__(self, below: Any) -> None:
        self._below = below

    def makefile(self, *_: Any, **__: Any) -> io.BufferedReader:
        return _Lines(_Paced(self._below.makefile("rb", buffering=0)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)


class _Lines(io.BufferedReader):
    """A stream of an answer; a line of it is no longer than what memory has room for."""

    def readline(self, size: int | None = -1, /) -> bytes:
        """The next line, or the beginning of a long one."""
        return super().readline(_LINE if size is None or size < 0 else size)


class _Paced(io.RawIOBase):
    """A stream that times out where it brings too little, however often it brings a byte.

    It does so, too, where it brings more than any answer has: not all that comes is of a body.
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
