"""Fetching from stand-in mirrors and snapshot archives: web servers of this process."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.servers import closed_port, web_server
from torch_images.errors import LockError, NetworkError
from torch_images.fetch.download import available, fetch, fetch_archives, is_file
from torch_images.host.network import Network
from torch_images.locks.debs import DebLock, LockedDeb
from torch_images.locks.sources import LockedArchive

CONTENT = {name: f"content of {name}".encode() for name in ("a", "b")}
LOCK = DebLock(
    name="base-x",
    date=datetime.date(2026, 2, 3),
    system="debian bookworm",
    request=("a", "b"),
    debs=tuple(
        LockedDeb(
            name=name,
            version="1+x",
            archive="debian",
            path=f"pool/main/{name}_1+x_all.deb",
            size=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
        )
        for name, data in CONTENT.items()
    ),
)
POOL = {f"/debian/{deb.path}": CONTENT[deb.name] for deb in LOCK.debs}
SNAPSHOT = {f"/archive/debian/20260203T235959Z/{d.path}": CONTENT[d.name] for d in LOCK.debs}


class Site:
    """A web server and what it was asked for."""

    def __init__(self, url: str, requested: list[str]) -> None:
        self.url, self.requested = url, requested


@pytest.fixture
def serve() -> Iterator[Callable[[Mapping[str, bytes]], Site]]:
    servers = []

    def start(files: Mapping[str, bytes]) -> Site:
        server = web_server(files)
        servers.append(server)
        url, requested = server.__enter__()
        return Site(url, requested)

    yield start
    for server in servers:
        server.__exit__(None, None, None)


Serve = Callable[[Mapping[str, bytes]], Site]


def get(folder: Path, *mirrors: str, snapshot: str = "", lock: DebLock = LOCK) -> dict[str, bytes]:
    """The content of fetched packages by name."""
    files = fetch(lock, folder, mirrors=mirrors, snapshot=snapshot, network=Network())
    return {deb.name: path.read_bytes() for deb, path in files.items()}


def test_fetch_gets_each_package_once(serve: Serve, tmp_path: Path) -> None:
    site = serve(POOL)
    assert get(tmp_path, f"{site.url}/debian/") == CONTENT
    assert sorted(site.requested) == sorted(POOL)
    assert get(tmp_path, "http://127.0.0.1:1/never-asked") == CONTENT
    assert {p.name for p in tmp_path.iterdir()} == {f"{deb.sha256}.deb" for deb in LOCK.debs}


def test_fetch_gets_from_the_snapshot_what_a_mirror_dropped(serve: Serve, tmp_path: Path) -> None:
    site = serve({**SNAPSHOT, **dict(list(POOL.items())[:1])})
    got = get(tmp_path, f"{site.url}/debian", snapshot=f"{site.url}/archive")
    assert got == CONTENT
    assert len([path for path in site.requested if path.startswith("/archive")]) == 1


def test_fetch_refuses_a_vanished_package_unless_an_archive_is_silent(
    serve: Serve, tmp_path: Path
) -> None:
    mirror = f"{serve(dict(list(POOL.items())[:1])).url}/debian"
    silent, gone = f"http://127.0.0.1:{closed_port()}/archive", f"{serve({}).url}/archive"
    for snapshot, error in ((silent, NetworkError), (gone, LockError), ("", LockError)):
        with pytest.raises(error, match=r"has b 1\+x"):
            get(tmp_path / snapshot.replace("/", "-"), mirror, snapshot=snapshot)


def test_fetch_without_an_answer_is_a_network_error(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match=r"no mirror could be reached.*TORCH_IMAGES_MIRROR"):
        get(tmp_path, f"http://127.0.0.1:{closed_port()}/debian")
    with pytest.raises(NetworkError, match="none is named"):
        get(tmp_path)


def test_fetch_refuses_another_file_of_that_name(serve: Serve, tmp_path: Path) -> None:
    other = dict.fromkeys(POOL, b"another file")
    site = serve(other)
    digest = hashlib.sha256(b"another file").hexdigest()
    with pytest.raises(LockError) as caught:
        get(tmp_path, f"{site.url}/debian")
    text = str(caught.value)
    assert text.startswith("a 1+x is not the locked file: expected sha256:")
    assert LOCK.debs[0].sha256 in text
    assert f"found sha256:{digest}" in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", [0, 63])
def test_fetch_compares_each_digit_of_a_hash(serve: Serve, tmp_path: Path, place: int) -> None:
    """Eight digits of it anybody can meet with another file, on a mirror as in the cache."""
    [deb, *_] = LOCK.debs
    digit = "0" if deb.sha256[place] != "0" else "1"
    other = deb.sha256[:place] + digit + deb.sha256[place + 1 :]
    altered = dataclasses.replace(deb, sha256=other)
    lock = dataclasses.replace(LOCK, debs=(altered,))
    url = f"{serve(POOL).url}/debian"
    archive = LockedArchive(
        name="a", version="1", url=f"{url}/{deb.path}", size=deb.size, sha256=other
    )
    cached = tmp_path / f"{other}.deb"
    cached.write_bytes(CONTENT["a"])
    assert not is_file(altered, cached)
    with pytest.raises(LockError, match=f"expected sha256:{other}, found sha256:{deb.sha256}"):
        get(tmp_path, url, lock=lock)
    with pytest.raises(LockError, match=f"expected sha256:{other}, found sha256:{deb.sha256}"):
        fetch_archives([archive], tmp_path / "archives", Network())
    assert not list((tmp_path / "archives").iterdir())


def test_fetch_tries_the_next_mirror_after_a_wrong_file(serve: Serve, tmp_path: Path) -> None:
    wrong, right = serve(dict.fromkeys(POOL, b"another file")), serve(POOL)
    assert get(tmp_path, f"{wrong.url}/debian", f"{right.url}/debian") == CONTENT


def test_fetch_replaces_a_damaged_file_in_the_cache(serve: Serve, tmp_path: Path) -> None:
    site = serve(POOL)
    (tmp_path / f"{LOCK.debs[0].sha256}.deb").write_bytes(b"half of")
    assert get(tmp_path, f"{site.url}/debian") == CONTENT
    assert len(site.requested) == 2


def test_available_at_a_mirror_or_in_the_snapshot(serve: Serve) -> None:
    site = serve({**SNAPSHOT, **dict(list(POOL.items())[:1])})
    a, b = LOCK.debs

    def is_available(deb: LockedDeb, snapshot: str) -> bool:
        roots = (f"{site.url}/debian",)
        return bool(available(LOCK, [deb], mirrors=roots, snapshot=snapshot, network=Network()))

    silent = f"http://127.0.0.1:{closed_port()}/archive"
    assert is_available(a, silent)
    assert is_available(b, f"{site.url}/archive")
    assert not is_available(b, "")
    with pytest.raises(NetworkError, match=r"has b 1\+x, and one does not answer: "):
        is_available(b, silent)
