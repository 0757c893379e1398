"""Releases of torch from an index beside the main one.

Both indexes are stand-ins on loopback, asked by real uv. PyTorch's own was never asked.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import http.server
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.loopback import serving
from tests.servers import web_server
from tests.wheels import StandIn, make_wheel
from torch_images.config.choose import choose
from torch_images.config.indexes import Index
from torch_images.config.load import load_config
from torch_images.config.lock_requests import WheelRequest
from torch_images.config.tags import floating
from torch_images.config.types import Config
from torch_images.errors import ConfigError, LockError, UsageError
from torch_images.fetch.packageindex import PackageIndex
from torch_images.fetch.resolve import resolve, write_pages
from torch_images.host.network import Network
from torch_images.host.runner import Runner
from torch_images.locks.files import dumps, parse
from torch_images.locks.wheels import LockedWheel, WheelLock, read_wheels

Write = Callable[..., Path]

DAY = dt.date(2026, 11, 23)
URL = "https://index.example/whl/cu130"
PRE_RELEASE = "2.16.0.dev20261120"
RELEASES = "    torch: [2.11.0, 2.12.1, 2.14.1]\n"


def entry(
    url: str = URL, packages: str = "[torch, triton]", torch: str = f"[2.15.1, {PRE_RELEASE}]"
) -> str:
    """An index as images.yaml has it."""
    return f"      - url: {url}\n        packages: {packages}\n        torch: {torch}\n"


def beside(*entries: str, main: str = RELEASES) -> tuple[str, str]:
    """Replace the releases of CUDA 13.0."""
    return RELEASES, main + ("    indexes:\n" + "".join(entries) if entries else "")


@pytest.fixture
def pre_release(yaml_file: Write) -> Config:
    """images.yaml with a release and a pre-release from another index for CUDA 13.0."""
    return load_config(yaml_file(beside(entry())))


# images.yaml.


@pytest.mark.parametrize(
    "url",
    ["http://index.example/x", "https://index.example/x?y=z", "https://me:secret@index.example"],
)
def test_url_that_is_refused(yaml_file: Write, url: str) -> None:
    with pytest.raises(ConfigError, match="is not the https URL of an index") as caught:
        load_config(yaml_file(beside(entry(url))))
    assert "secret" not in str(caught.value)


# The axis.


def test_choose_takes_a_pre_release_by_its_whole_version_only(pre_release: Config) -> None:
    assert choose(pre_release, cuda="13.0").torch == "2.15.1"
    assert choose(pre_release, cuda="13.0", torch="2.15").torch == "2.15.1"
    with pytest.raises(UsageError, match=r"^CUDA 13\.0 has no torch '2\.16'; .*dev20261120"):
        choose(pre_release, cuda="13.0", torch="2.16")
    with pytest.raises(UsageError, match=r"^CUDA 13\.0 has no torch '2\.16\.0'"):
        choose(pre_release, cuda="13.0", torch="2.16.0")
    assert choose(pre_release, cuda="13.0", torch=PRE_RELEASE).torch == PRE_RELEASE


def test_choose_names_the_pre_releases_where_there_are_no_others(yaml_file: Write) -> None:
    config = load_config(yaml_file(beside(entry(torch=f"[{PRE_RELEASE}]"), main="")))
    with pytest.raises(UsageError, match=r"^CUDA 13\.0 has no release .* pre-releases; .*dev2026"):
        choose(config, cuda="13.0")
    assert choose(config, cuda="13.0", torch=PRE_RELEASE).torch == PRE_RELEASE


def test_floating_gives_a_pre_release_no_minor_version(yaml_file: Write) -> None:
    """2.15.2.dev... comes after 2.15.1, and begins as it does."""
    later = "2.15.2.dev20261120"
    config = load_config(yaml_file(beside(entry(torch=f"[2.15.1, {later}]"))))
    night, stable = (choose(config, cuda="13.0", torch=t) for t in (later, "2.15.1"))
    assert floating(config, night) == (later,)
    assert floating(config, stable) == ("2.15.1", "2.15")


# Locks.


def wheel(name: str, version: str = "1", index: str = "", sha256: str = "0" * 64) -> LockedWheel:
    filename = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    return LockedWheel(
        name=name, version=version, filename=filename, size=1, sha256=sha256, index=index
    )


def lock(*wheels: LockedWheel, name: str = "w") -> WheelLock:
    return WheelLock(name=name, date=DAY, python="3.11", request=(), wheels=tuple(sorted(wheels)))


OTHER = Index(url=URL, packages=("torch", "triton"), torch=("2.15.1",))


@pytest.mark.parametrize(
    ("locked", "index", "problem"),
    [
        (wheel("torch", index=URL), None, f"torch is from {URL}, but images.yaml has the main ind"),
        (wheel("torch"), OTHER, f"torch is from the main index, but images.yaml has {URL}"),
        (wheel("numpy", index=URL), OTHER, f"numpy is from {URL}, but images.yaml has the main"),
    ],
)
def test_a_wheel_from_where_it_may_not_come(
    tmp_path: Path, locked: LockedWheel, index: Index | None, problem: str
) -> None:
    path = tmp_path / "w.json"
    path.write_text(dumps(lock(locked)))
    with pytest.raises(LockError) as caught:
        read_wheels(path, index)
    assert problem in str(caught.value)
    assert str(caught.value).endswith("; run `invoke lock --select w`")


# Two stand-in indexes.


@dataclass(frozen=True)
class Indexes:
    """A main index and another one. `paths` are the requests to each."""

    main: str
    other: str
    paths: dict[str, list[str]]

    @property
    def network(self) -> Network:
        return Network(index=f"{self.main}/simple")

    def index(self, *packages: str) -> Index:
        """The other index, named for some packages."""
        return Index(url=f"{self.other}/simple", packages=packages, torch=("2.15.1", PRE_RELEASE))

    def resolve(self, index: Index, *requirements: str) -> WheelLock:
        return resolve(
            WheelRequest(name="w", request=requirements, python="3.11", index=index),
            network=self.network,
            run=Runner(),
        )


def pages(wheels: Sequence[StandIn]) -> dict[str, bytes]:
    """The pages and files of an index, as PyTorch's writes them: "+" as %2B, and no dates."""
    files: dict[str, bytes] = {}
    lines: dict[str, list[str]] = {}
    for release in wheels:
        name, url = release.locked.filename, quote(release.locked.filename)
        files[f"/simple/{release.locked.name}/{url}"] = release.data
        link = f'<a href="{url}#sha256={release.locked.sha256}">{name}</a>'
        lines.setdefault(release.locked.name, []).append(link)
    files |= {f"/simple/{name}/": "<br>".join(links).encode() for name, links in lines.items()}
    return files


@contextlib.contextmanager
def indexes(main: Sequence[StandIn], other: Sequence[StandIn]) -> Iterator[Indexes]:
    with web_server(pages(main)) as (one, paths), web_server(pages(other)) as (two, also):
        yield Indexes(one, two, {"main": paths, "other": also})


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., StandIn]:
    """Make a wheel that requires others."""
    count = iter(range(1000))

    def build(name: str, version: str, *requires: str) -> StandIn:
        folder = tmp_path / f"made-{next(count)}"
        folder.mkdir()
        more = {f"{name}/at": str(folder).encode()}
        return make_wheel(folder, name, version, more, requires=requires)

    return build


@pytest.fixture
def both(make: Callable[..., StandIn]) -> Iterator[Indexes]:
    """Two indexes that have packages in common."""
    main = [
        make("torch", "2.15.1", "triton==3.6", "lib"),
        make("triton", "3.6"),
        make("lib", "1.0"),
        make("lib", "3.0.dev1"),
        make("torchvision", "0.30.0", "torch==2.15.1"),
        make("needy", "1.0", "lib>=2,<3"),
        make("hungry", "1.0", "only"),
    ]
    other = [
        make("torch", "2.15.1+cu130", "triton==3.7", "lib"),
        make("torch", f"{PRE_RELEASE}+cu130", "triton==3.8.0.dev20261119", "lib"),
        make("triton", "3.7"),
        make("triton", "3.8.0.dev20261119"),
        make("lib", "2.0"),
        make("only", "1.0"),
        make("idle", "1.0"),
        make("torchvision", "0.30.0+cu130", "torch==2.15.1"),
    ]
    with indexes(main, other) as servers:
        yield servers


def test_resolve_takes_only_listed_packages_from_the_index(
    both: Indexes,
) -> None:
    index = both.index("torch", "triton", "torchvision", "idle")
    resolved = both.resolve(index, "torch==2.15.1", "torchvision")
    assert {w.name: (w.version, w.index) for w in resolved.wheels} == {
        "lib": ("1.0", ""),  # although the index has a newer one
        "torch": ("2.15.1+cu130", index.url),
        "torchvision": ("0.30.0+cu130", index.url),
        "triton": ("3.7", index.url),  # which only torch requires, in another version
    }  # and no idle, which nothing requires
    assert parse(WheelLock, dumps(resolved), "w") == resolved
    assert not [path for path in both.paths["other"] if "/lib/" in path]
    assert not [path for path in both.paths["main"] if "/torch" in path or "/triton/" in path]


def test_resolve_a_package_of_the_index_alone(both: Indexes) -> None:
    index = both.index("torch", "triton", "only")
    resolved = both.resolve(index, "torch==2.15.1", "hungry")
    assert {w.name: w.index for w in resolved.wheels}["only"] == index.url
    with pytest.raises(LockError) as caught:
        both.resolve(both.index("torch", "triton"), "torch==2.15.1", "hungry")
    text = str(caught.value)
    assert "only was not found" in text
    assert text.endswith(
        f"; list packages that only {index.url} has under `packages` of this index"
    )


def test_links_of_a_page_stay_links(tmp_path: Path) -> None:
    """What an index says is not obeyed as markup, nor as the path of a file of this machine."""
    page = (
        '<a href="torch-1-py3-none-any.whl" data-requires-python="&gt;=3&quot; x=&quot;"'
        ' data-yanked="&lt;/a&gt;" data-core-metadata="true">torch-1-py3-none-any.whl</a>'
        '<a href="file:///etc/torch-2-py3-none-any.whl">torch-2-py3-none-any.whl</a>'
    )
    with (
        web_server({"/simple/torch/": page.encode()}) as (url, _),
        PackageIndex(Network()) as client,
    ):
        index = Index(url=f"{url}/simple", packages=("torch", "none"), torch=("1",))
        write_pages(index, client, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["none", "torch"]
    assert (tmp_path / "torch" / "index.html").read_text() == (
        f'<!DOCTYPE html><html><body><a href="{url}/simple/torch/torch-1-py3-none-any.whl"'
        ' data-requires-python="&gt;=3&quot; x=&quot;" data-yanked="&lt;/a&gt;"'
        ' data-core-metadata="true">torch-1-py3-none-any.whl</a></body></html>'
    )


# Fetching.


def test_fetch_from_the_index_of_a_wheel(make: Callable[..., StandIn], tmp_path: Path) -> None:
    """Both have a file of this name."""
    ours, theirs = make("torch", "1"), make("torch", "1")
    assert ours.locked.sha256 != theirs.locked.sha256
    with indexes([ours], [theirs]) as both, PackageIndex(both.network) as client:
        url = both.index("torch").url
        moved = replace(theirs.locked, index=url)
        assert client.fetch(ours.locked, tmp_path).read_bytes() == ours.data
        assert not both.paths["other"]
        both.paths["main"].clear()
        assert client.fetch(moved, tmp_path).read_bytes() == theirs.data
        assert not both.paths["main"]
        with pytest.raises(LockError, match=r"^torch 1 is not the locked file: expected"):
            client.fetch(replace(ours.locked, index=url), tmp_path)


def test_find_sends_no_password_to_another_index() -> None:
    sent: dict[str, str | None] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent[self.path] = self.headers["Authorization"]
            self.send_response(404)
            self.end_headers()

    with serving(Handler) as url:
        secret = url.replace("http://", "http://me:hunter22@")
        with PackageIndex(Network(index=f"{secret}/main")) as client:
            for _ in range(2):
                assert client.find(wheel("torch")) is None
                assert client.find(wheel("torch", index=f"{url}/other")) is None
    assert sent["/main/torch/"]
    assert sent["/other/torch/"] is None
