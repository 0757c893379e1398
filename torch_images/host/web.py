"""The HTTP client of all downloads: it limits answers, and forwards no passwords.

A server may be broken or malicious. So each answer has a largest size, and a redirect to another
server gets no credentials, not even those of ~/.netrc.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

if TYPE_CHECKING:
    from requests import PreparedRequest, Response

    from torch_images.host.network import Network

# The most bytes of an answer that is read whole, e.g. an index page with 30,000 links.
# Parsing HTML takes up to a hundred times the memory.
PAGE = 1 << 23
# The most bytes of a file whose size no lock has: four times the largest wheel of CUDA or torch.
FILE = 1 << 33
_TIMEOUT = (15, 60)  # seconds to connect, and without any byte
_CONNECTIONS = 16
_AGAIN = (429, 500, 502, 503, 504)
_PAUSES = (0.5, 1.0, 2.0)  # seconds
_LONGEST = 60.0  # seconds of a pause that a server asks for; longer ones are cut


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
        urls = str(response.request.url), str(prepared_request.url)
        if self.should_strip_auth(*urls):  # type: ignore[no-untyped-call]
            prepared_request.headers.pop("Authorization", None)


class _Adapter(HTTPAdapter):
    """Limits each answer, including those between redirects and attempts."""

    def __init__(self) -> None:
        # No status is listed here: urllib3 would read the answer to its end, however long, and
        # raise an error of its own for a malformed Retry-After.
        again = Retry(3, connect=1, backoff_factor=0.5, respect_retry_after_header=False)
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
            wait = answer.headers.get("Retry-After", "")  # seconds, or a date, which is ignored
            time.sleep(max(pause, min(float(wait) if wait.isdecimal() else 0.0, _LONGEST)))
        whole = not stream or answer.status_code != requests.codes.ok
        most, kind = (PAGE, "page") if whole else (FILE, "file")
        name = f"a {kind} of {urlsplit(request.url or '').hostname}"
        answer.raw = _Body(answer.raw, most, name)
        return answer


class _Body:
    """The body of an answer, which raises beyond a size."""

    def __init__(self, body: Any, most: int, name: str) -> None:
        self._body, self._most, self._name = body, most, name

    def stream(self, *words: Any, **options: Any) -> Iterator[bytes]:
        left = self._most
        for data in self._body.stream(*words, **options):
            left -= len(data)
            if left < 0:
                self._body.close()
                problem = f"{self._name} has more than {self._most / 1e6:.0f} MB"
                raise requests.RequestException(problem)
            yield data

    def read(self, *_: Any, **__: Any) -> bytes:
        """Return nothing: `requests` skips an undecodable body before it follows a redirect."""
        self._body.close()
        return b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._body, name)
