"""What a server may do to whoever downloads from it: fill the disk or memory, never end, learn a
password that is another's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from unittest import mock

import pytest
import requests

from tests.loopback import serving
from torch_images.errors import LockError, NetworkError, TorchImagesError
from torch_images.fetch import download
from torch_images.fetch.packageindex import PackageIndex
from torch_images.host import web
from torch_images.host.network import Network
from torch_images.locks.debs import DebLock, LockedDeb
from torch_images.locks.sources import LockedArchive
from torch_images.locks.wheels import LockedWheel

PIECE = bytes(1 << 16)
MOST = 1 << 29  # bytes that an endless server sends at last, so that a mutant is no danger either
# The beginning of an archive, whose first member goes on.
ZIP = struct.pack("<4s5H3L2H1s", b"PK\3\4", 20, 0, 0, 0, 0, 0, 1 << 31, 1 << 31, 1, 0, b"x")
DATA = b"x" * 1000
SHA256 = hashlib.sha256(DATA).hexdigest()
WHEEL = LockedWheel(
    name="x", version="1", filename="x-1-py3-none-any.whl", size=len(DATA), sha256=SHA256
)
DEB = LockedDeb(
    name="x", version="1", archive="debian", path="pool/x_1_all.deb", size=1000, sha256=SHA256
)
DEBS = DebLock(
    name="base-x", date=datetime.date(2026, 2, 3), system="debian x", request=("x",), debs=(DEB,)
)
ARCHIVE = LockedArchive(name="x", version="1", url="http://x/y", size=1000, sha256=SHA256)

BUNDLE = Network(ca_bundle=Path("/ours"))


@dataclass
class Endless:
    """A server whose bodies do not end, and how much of the last one it could send."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    page: bytes = b""  # what ends, where the path does with "/"
    most: int = MOST
    sent: int = 0
    count: int = 0

    @contextlib.contextmanager
    def serve(self) -> Iterator[str]:
        this = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                this.count += 1
                this.sent = 0
                self.send_response(this.status)
                for header in this.headers:
                    self.send_header(*header)
                self.end_headers()
                most = 0 if this.page and self.path.endswith("/") else this.most
                with contextlib.suppress(OSError):  # nobody reads on
                    self.wfile.write(ZIP if most else this.page)
                    while this.sent < most:
                        this.sent += self.wfile.write(PIECE[:most])

            do_HEAD = do_GET  # noqa: N815

        with serving(Handler) as url:
            yield url


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_images.host.web.time.sleep", lambda _: None)  # between attempts


def of_mirror(url: str, folder: Path, network: Network) -> object:
    mirrors = (f"{url}/debian",)
    return download.fetch(DEBS, folder, mirrors=mirrors, snapshot="", network=network)


def of_url(url: str, folder: Path, network: Network) -> object:
    return download.fetch_url(f"{url}/x.whl", folder / "x.whl", WHEEL, network)


def of_archive(url: str, folder: Path, network: Network) -> object:
    archive = dataclasses.replace(ARCHIVE, url=f"{url}/x.tar")
    return download.fetch_archives([archive], folder, network)


def unlocked(url: str, folder: Path, network: Network) -> object:
    return download.discover(f"{url}/x.tar", folder, network)


def page(url: str, _folder: Path, network: Network) -> object:
    return download.read(f"{url}/redistrib.json", network)


def page_of_index(url: str, _folder: Path, network: Network) -> object:
    with PackageIndex(dataclasses.replace(network, index=f"{url}/simple")) as index:
        return index.find(WHEEL)


def size_of_file(url: str, _folder: Path, network: Network) -> object:
    return download.size(f"{url}/x.whl", network)


Get = Callable[[str, Path, Network], object]
FILES = (of_mirror, of_url, of_archive, unlocked)


def must_stop(get: Get, folder: Path, error: type[Exception], match: str) -> None:
    """An endless file ends in an error, and nothing of it stays."""
    server = Endless()
    with server.serve() as url, pytest.raises(error, match=match):
        get(url, folder, Network())
    assert server.sent < MOST
    assert not list(folder.iterdir())


@pytest.mark.parametrize("get", [of_mirror, of_url, of_archive])
def test_download_stops_at_the_locked_size(get: Get, tmp_path: Path) -> None:
    """It would fill the disk."""
    must_stop(get, tmp_path, LockError, r"expected sha256:.*, found more than its 1000 bytes")


@pytest.mark.parametrize("get", FILES)
def test_download_without_a_locked_size_stops(
    get: Get, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock may say "?"; what is not locked yet has no size at all."""
    monkeypatch.setattr(web, "FILE", 1 << 20)
    monkeypatch.setattr(download, "FILE", 1 << 30)
    for each in ("WHEEL", "ARCHIVE"):
        monkeypatch.setitem(globals(), each, dataclasses.replace(globals()[each], size=0))
    unsized = dataclasses.replace(DEBS, debs=(dataclasses.replace(DEB, size=0),))
    monkeypatch.setitem(globals(), "DEBS", unsized)
    must_stop(get, tmp_path, NetworkError, r"a file of 127.0.0.1 has more than 1 MB")


GZIP = ("Content-Encoding", "gzip")  # which the body is not


@pytest.mark.parametrize(
    ("status", "get", "more"),
    [
        *((status, page, ()) for status in (200, 404, 503, 302)),
        *((200, get, ()) for get in (page_of_index,)),
        *((404, of_mirror, ()), (302, of_mirror, (GZIP,))),
    ],
)
def test_page_stops_at_its_largest_size(
    status: int,
    get: Get,
    more: tuple[tuple[str, str], ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also that of an error, of a redirect, and before another attempt: it is held in memory."""
    monkeypatch.setattr(web, "PAGE", 1 << 20)
    location = (("Location", "/y"),) if status == 302 else ()
    server = Endless(status, (("Content-Type", "text/html"), *location, *more))
    with server.serve() as url:
        with contextlib.suppress(TorchImagesError):
            get(url, tmp_path, Network())
        assert server.sent < MOST


@pytest.mark.parametrize("get", FILES)
def test_interrupted_download_leaves_no_file(get: Get, tmp_path: Path) -> None:
    server = Endless(headers=(("Content-Length", "1000"),), most=100)
    with server.serve() as url, pytest.raises(NetworkError):
        get(url, tmp_path, Network())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("status", "header", "pauses"),
    [
        (429, "5", [5, 5, 5]),  # a mirror that limits its rate
        (503, "9" * 5000, [60, 60, 60]),
        (429, "1", [1, 1, 2]),
        (429, "\xb2", [0.5, 1, 2]),  # a superscript, which is a digit but no number
        (429, "Wed, 21 Oct 2065 07:28:00 GMT", [0.5, 1, 2]),
    ],
)
def test_retry_after_is_kept_up_to_a_minute(
    status: int, header: str, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    server = Endless(status, (("Retry-After", header), ("Content-Length", "0")))
    with server.serve() as url, pytest.raises(NetworkError, match=str(status)):
        download.read(f"{url}/x", Network())
    assert server.count == 4
    assert waited == pauses


def test_session_uses_the_ca_bundle_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """SSL_CERT_FILE comes first, see `detect`; `requests` prefers its own ones to its session's."""
    used: list[object] = []

    def send(*_: object, **options: object) -> None:
        used.append(options["verify"])
        raise requests.ConnectionError

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", send)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/another")
    with contextlib.suppress(requests.ConnectionError), web.Session(BUNDLE) as session:
        session.get("https://host/x")
    assert used == ["/ours"]


@pytest.mark.parametrize("place", ["http://u:p@[::1/x", "http://a:b:c/", "x://y"])
@pytest.mark.parametrize("get", [of_url, page_of_index, size_of_file])
def test_redirect_to_an_invalid_address_is_one_line(get: Get, place: str, tmp_path: Path) -> None:
    server = Endless(302, (("Location", place), ("Content-Length", "0")))
    with server.serve() as url, pytest.raises(NetworkError) as caught:
        get(url, tmp_path, Network())
    assert "u:p" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://host/y", True),
        ("https://HOST:443/y", True),
        ("http://host/y", False),
        ("https://host:444/y", False),
        ("https://host.example/y", False),
        ("https://me@other/y", False),
    ],
)
def test_redirect_keeps_credentials_on_the_same_server(
    url: str, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one does not get those of ~/.netrc either, which may name all hosts."""
    netrc = tmp_path / "netrc"
    netrc.write_text("default login me password hunter22\n")
    monkeypatch.setenv("NETRC", str(netrc))
    original = requests.Request("GET", "https://host/x", headers={"Authorization": "a"}).prepare()
    sent = requests.Request("GET", url, headers={"Authorization": "a"}).prepare()
    with web.Session(Network()) as session:
        session.rebuild_auth(sent, mock.Mock(request=original))
    assert ("Authorization" in sent.headers) == kept
