"""Blobs of a repository in an OCI registry, by digest, over HTTP: without engine and login.

Nothing that the registry says is trusted: a blob must have the digest and the size that the caller
names. Protocol: https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md, and for
tokens https://distribution.github.io/distribution/spec/auth/token/.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.auth import AuthBase
from urllib3.exceptions import HTTPError

from torch_images import jsondoc
from torch_images.errors import DiskError, NetworkError, shown
from torch_images.fetch.stalls import PATIENCE, Stall
from torch_images.host.network import Network, cause
from torch_images.oci.layout import INDEX, MANIFEST

# Where Docker, too, speaks HTTP without TLS.
_LOOPBACK = re.compile(r"(?:localhost|127\.[0-9]+\.[0-9]+\.[0-9]+|\[::1\])(?::[0-9]+)?")
_CHALLENGE = re.compile(r'(realm|service|scope)="([^"\x00-\x1f\x7f]{1,500})"')
_TOKEN = re.compile(r"[!-~]{1,16384}")
_CONNECT = 3.0  # seconds: no build waits long for a registry that is not there
_REDIRECTS = 5
_LARGEST_ANSWER = 1 << 17  # bytes of an answer with a token
_CHUNK = 1 << 18


class OtherBlobError(NetworkError):
    """A registry sent something else than what has the digest."""


class LoginError(NetworkError):
    """A registry lets nobody in without a login."""

    def __init__(self) -> None:
        super().__init__("it lets nobody in without a login")


class Blobs:
    """What a repository such as "ghcr.io/me/torch-cu130" has. May be used by several threads.

    `patience`: seconds that an answer may take, and in which 1 MiB of a blob must come.
    """

    def __init__(self, repository: str, network: Network, *, patience: float = PATIENCE) -> None:
        host, _, self._name = repository.partition("/")
        scheme = "http" if _LOOPBACK.fullmatch(host) else "https"
        self._root, self._network, self._patience = f"{scheme}://{host}", network, patience
        self._bearer: _Bearer | None = None
        self._lock = threading.Lock()

    def has_manifest(self, digest: str) -> bool:
        """Whether the repository has a manifest. Raises NetworkError, LoginError among them."""
        with self._answer("HEAD", f"manifests/{digest}") as answer:
            return _is_there(answer)

    def save(self, digest: str, size: int, target: Path) -> bool:
        """Write a blob of `size` bytes to `target`; False if the repository does not have it.

        Raises OtherBlobError for other bytes or another size, NetworkError and DiskError. What is
        in `target` then is of no use.
        """
        found, held = hashlib.sha256(), 0
        with self._answer("GET", f"blobs/{digest}") as answer:
            if not _is_there(answer):
                return False
            try:
                with target.open("wb") as stream:
                    for chunk in self._chunks(answer):
                        found.update(chunk)
                        held += len(chunk)
                        if held > size:
                            break
                        stream.write(chunk)
            except OSError as error:  # requests' errors are not among what is raised here
                raise DiskError(f"{target} cannot be written: {error.strerror}") from None
        if held != size or f"sha256:{found.hexdigest()}" != digest:
            raise OtherBlobError(f"it sent other bytes for {digest[:19]}")
        return True

    def _chunks(self, answer: requests.Response) -> Iterator[bytes]:
        """The bytes of an answer as they come. Raises NetworkError."""
        stall, total = Stall(self._patience), 0
        while True:
            try:
                chunk = answer.raw.read1(_CHUNK, decode_content=False)
            except (HTTPError, OSError, ValueError) as error:
                raise NetworkError(f"a download broke off: {shown(str(error))[:200]}") from None
            if not chunk:
                return
            total += len(chunk)
            yield chunk
            stall.seen(total)

    def _answer(self, method: str, what: str) -> requests.Response:
        """The answer for a part of the repository, with the body unread. Raises NetworkError."""
        url = f"{self._root}/v2/{self._name}/{what}"
        with self._lock:
            bearer = self._bearer
        answer = self._request(method, url, bearer)
        if answer.status_code == requests.codes.unauthorized:
            with answer, self._lock:
                self._bearer = bearer = self._token(answer.headers.get("WWW-Authenticate", ""))
            answer = self._request(method, url, bearer)
        return answer

    def _request(
        self, method: str, url: str, auth: AuthBase | None, **more: Any
    ) -> requests.Response:
        headers = {"Accept": f"{MANIFEST}, {INDEX}, */*", "Accept-Encoding": "identity"}
        timeout = (min(_CONNECT, self._patience), self._patience)
        try:
            with requests.Session() as session:
                session.verify, session.max_redirects = self._network.verify, _REDIRECTS
                # Without one of its own a request would show what ~/.netrc has for the host.
                return session.request(
                    *(method, url), auth=auth or _Bearer(""), headers=headers, timeout=timeout,
                    stream=True, allow_redirects=True, **more,
                )  # fmt: skip
        except requests.RequestException as error:
            raise NetworkError(f"it does not answer: {cause(error)}") from None
        except ValueError as error:  # an address that it sends to is none
            raise NetworkError(f"it leads to no address: {shown(str(error))}") from None

    def _token(self, challenge: str) -> _Bearer:
        """A token for anybody, from where a registry sends for it. Raises NetworkError."""
        told = dict(_CHALLENGE.findall(challenge))
        realm = told.pop("realm", "")
        plain = self._root.startswith("http://")
        if not challenge.lower().startswith("bearer ") or not _fits(realm, plain=plain):
            raise LoginError
        with self._request("GET", realm, None, params=told) as answer:
            if answer.status_code != requests.codes.ok:
                raise NetworkError(f"it gives no token: status {answer.status_code}")
            data = b"".join(self._chunks_upto(answer))
        try:
            document = jsondoc.member(jsondoc.parse(data), kind=dict)
            name = "token" if "token" in document else "access_token"
            token = jsondoc.member(document, name, kind=str)
        except jsondoc.MalformedError as error:
            raise NetworkError(f"it gives no token: {error}") from None
        if not _TOKEN.fullmatch(token):
            raise NetworkError("it gives a token that is none")
        return _Bearer(token)

    def _chunks_upto(self, answer: requests.Response) -> Iterator[bytes]:
        total = 0
        for chunk in self._chunks(answer):
            total += len(chunk)
            if total > _LARGEST_ANSWER:
                raise NetworkError("it gives a token that is too long")
            yield chunk


class _Bearer(AuthBase):
    """Shows a token; none for ""."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def _fits(realm: str, *, plain: bool) -> bool:
    """Whether a token may be asked for at a URL: over TLS, or where the registry is on loopback."""
    try:
        parts = urlsplit(realm)
        return parts.scheme == "https" or (plain and bool(_LOOPBACK.fullmatch(parts.netloc)))
    except ValueError:
        return False


def _is_there(answer: requests.Response) -> bool:
    """Whether an answer says that there is such a thing. Raises NetworkError for any other."""
    if answer.status_code == requests.codes.ok:
        return True
    if answer.status_code == requests.codes.not_found:
        return False
    if answer.status_code in (requests.codes.unauthorized, requests.codes.forbidden):
        raise LoginError
    raise NetworkError(f"it answers with status {answer.status_code}")
