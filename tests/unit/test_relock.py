"""What became of locked inputs, at stand-in indexes and mirrors of this process."""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.servers import web_server
from tests.unit.fakes import FakeRunner
from torch_images.config.lock_requests import (
    BaseRequest,
    LockRequest,
    SourceRequest,
    WheelRequest,
)
from torch_images.config.types import Base, Source
from torch_images.errors import LockError
from torch_images.fetch import update
from torch_images.fetch.apt import Resolver
from torch_images.fetch.packageindex import PackageIndex
from torch_images.fetch.update import Finding, require
from torch_images.host.network import Network
from torch_images.locks.debs import DebLock, LockedDeb
from torch_images.locks.files import dumps
from torch_images.locks.sources import LockedArchive, LockedTree, SourceLock
from torch_images.locks.wheels import LockedWheel, WheelLock


def check(item: LockRequest, folder: Path, resolver: Resolver) -> tuple[Finding, ...]:
    with PackageIndex(resolver.network) as index:
        return update.check(item, folder, resolver, index)


TODAY = datetime.date(2026, 1, 1)
BASE = Base(
    name="x",
    description="d",
    python="3.11",
    system="debian bookworm",
    packages=("a",),
    suite="bookworm",
)


class Sources(Resolver):
    """Sources of which this test says what they have."""

    latest: DebLock
    mirror: str = ""

    def resolve(self, item: BaseRequest) -> DebLock:
        return self.latest

    def roots(self) -> tuple[str, ...]:
        return (self.mirror,)


def sources(network: Network | None = None, **facts: Any) -> Sources:
    instance = Sources(root=Path(), network=network or Network(), run=FakeRunner())
    for name, value in facts.items():
        object.__setattr__(instance, name, value)
    return instance


ALTERED = f"{'0' * 63}f"  # each digit counts


def wheel(name: str, version: str = "1", sha256: str = "0" * 64) -> LockedWheel:
    filename = f"{name}-{version}-py3-none-any.whl"
    return LockedWheel(name=name, version=version, filename=filename, size=1, sha256=sha256)


def page(*wheels: LockedWheel, extra: str = "") -> bytes:
    lines = [f'<a href="{w.filename}#sha256={w.sha256}"{extra}>{w.filename}</a>' for w in wheels]
    return "".join(lines).encode()


def states(findings: tuple[Finding, ...]) -> dict[str, tuple[str, str]]:
    return {f.name: (f.state, f.detail) for f in findings}


def test_check_gives_the_state_of_each_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("altered", "gone", "newer", "same", "unneeded", "yanked")
    lock = WheelLock(
        name="w",
        date=TODAY,
        python="3.11",
        request=("same",),
        wheels=tuple(wheel(name) for name in names),
    )
    (tmp_path / "w.json").write_text(dumps(lock))
    fresh = dataclasses.replace(
        lock,
        wheels=tuple(
            wheel(name, "2" if name == "newer" else "1") for name in names if name != "unneeded"
        ),
    )
    monkeypatch.setattr(update, "resolve", lambda *_, **__: fresh)
    pages = {f"/simple/{name}/": page(wheel(name)) for name in names}
    pages["/simple/altered/"] = page(wheel("altered", sha256=ALTERED))
    pages["/simple/gone/"] = page(wheel("gone", "3"))
    pages["/simple/yanked/"] = page(wheel("yanked"), extra=' data-yanked="broken"')
    with web_server(pages) as (url, _):
        network = Network(index=f"{url}/simple")
        item = WheelRequest(name="w", request=("same",), python="3.11")
        findings = check(item, tmp_path, sources(network))
    assert states(findings) == {
        "altered": ("altered", f"expected sha256:{'0' * 64}, found sha256:{ALTERED}"),
        "gone": ("vanished", "the index has no gone-1-py3-none-any.whl"),
        "newer": ("newer", "-> 2"),
        "same": ("unchanged", ""),
        "unneeded": ("newer", "no longer needed"),
        "yanked": ("unchanged", "yanked: broken"),
    }


def test_check_looks_up_wheels_that_cannot_be_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise LockError("no set of wheels meets the requirements")

    lock = WheelLock(
        name="w", date=TODAY, python="3.11", request=("a",), wheels=(wheel("a"), wheel("b"))
    )
    (tmp_path / "w.json").write_text(dumps(lock))
    monkeypatch.setattr(update, "resolve", fail)
    with web_server({"/simple/b/": page(wheel("b"))}) as (url, _):
        item = WheelRequest(name="w", request=("a",), python="3.11")
        findings = check(item, tmp_path, sources(Network(index=f"{url}/simple")))
    assert [f.state for f in findings] == ["vanished", "unchanged"]


def deb(name: str, version: str = "1", sha256: str = "0" * 64) -> LockedDeb:
    return LockedDeb(
        name=name,
        version=version,
        archive="debian",
        path=f"pool/{name}_{version}_all.deb",
        size=1,
        sha256=sha256,
    )


def debs(*locked: LockedDeb) -> DebLock:
    return DebLock(
        name="base-x",
        date=TODAY,
        system="debian bookworm",
        request=("a",),
        debs=locked,
    )


def test_check_gives_the_state_of_each_package(tmp_path: Path) -> None:
    locked = ("altered", "dropped", "kept", "newer", "same", "unneeded")
    lock = debs(*(deb(name) for name in locked))
    (tmp_path / "base-x.json").write_text(dumps(lock))
    latest = debs(
        deb("altered", sha256="f" * 64),
        deb("dropped", "2"),
        deb("kept", "2"),
        deb("newer", "2"),
        deb("same"),
    )
    files = {f"/debian/pool/{name}_1_all.deb": b"" for name in ("newer", "unneeded")}
    files["/snapshots/debian/20260101T235959Z/pool/kept_1_all.deb"] = b""
    with web_server(files) as (url, _):
        base = dataclasses.replace(BASE, snapshot=f"{url}/snapshots")
        item = BaseRequest(name="base-x", request=("a",), base=base)
        facts = sources(latest=latest, mirror=f"{url}/debian")
        findings = check(item, tmp_path, facts)
    assert states(findings) == {
        "altered": ("altered", f"expected sha256:{'0' * 64}, found sha256:{'f' * 64}"),
        "dropped": ("vanished", "-> 2"),
        "kept": ("newer", "-> 2"),
        "newer": ("newer", "-> 2"),
        "same": ("unchanged", ""),
        "unneeded": ("newer", "no longer needed"),
    }


def test_check_downloads_no_archive_of_a_source(tmp_path: Path) -> None:
    """Its Triton names LLVM of 1 GB; a commit says which, so no tree is needed."""
    commit = "c" * 40
    with web_server({"/a.zip": b"123", "/b.zip": b"12345"}) as (url, paths):
        archives = tuple(
            LockedArchive(name=name, version="1", url=f"{url}/{name}.zip", size=3, sha256="0" * 64)
            for name in ("a", "b", "c")
        )
        tree = LockedTree(name="torch", version="2.0", repository="https://x/y", commit=commit)
        request = (f"torch@{commit}",)
        lock = SourceLock(
            name="source-x", date=TODAY, request=request, trees=(tree,), archives=archives
        )
        (tmp_path / "source-x.json").write_text(dumps(lock))
        item = SourceRequest(
            name="source-x", request=request, source=Source(name="x", description="")
        )
        findings = check(item, tmp_path, sources())
    assert states(findings) == {
        "a": ("unchanged", ""),
        "b": ("altered", "expected 3 bytes, found 5"),
        "c": ("vanished", f"{url}/c.zip is gone"),
        "torch": ("unchanged", ""),
    }
    assert sorted(paths) == ["/a.zip", "/b.zip", "/c.zip"]


def finding(state: str) -> Finding:
    return Finding(lock="w", name="a", version="1", state=state)


def test_require_refuses_vanished_and_altered_inputs() -> None:
    require([finding("unchanged"), finding("newer")])
    with pytest.raises(
        LockError, match=r"available: a 1 vanished \(w\); run `invoke lock --select w`"
    ):
        require([finding("unchanged"), finding("vanished")])
    with pytest.raises(LockError, match=r"a 1 altered \(w\).*; run"):
        require([finding("altered")] * 7)
