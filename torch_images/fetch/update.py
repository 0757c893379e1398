"""Resolve locks again, and compare locked inputs with those that their sources have today."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch_images.config.lock_requests import (
    BaseRequest,
    CompatRequest,
    FactsRequest,
    LockRequest,
    SourceRequest,
    ToolkitRequest,
    WheelRequest,
)
from torch_images.errors import LockError
from torch_images.fetch.apt import Resolver
from torch_images.fetch.download import available, size
from torch_images.fetch.facts import find_facts
from torch_images.fetch.packageindex import PackageIndex
from torch_images.fetch.resolve import resolve
from torch_images.fetch.toolchain import resolve_sources, resolve_toolkit
from torch_images.host.network import Network
from torch_images.host.workers import workers
from torch_images.locks.debs import DebLock, LockedDeb
from torch_images.locks.facts import FactsLock
from torch_images.locks.files import read
from torch_images.locks.image_lock import AnyLock
from torch_images.locks.requested import check_runtime
from torch_images.locks.sources import LockedArchive, LockedSdist, SourceLock
from torch_images.locks.wheels import LockedWheel, WheelLock, read_wheels

_Input = LockedWheel | LockedDeb | LockedArchive | LockedSdist
UNCHANGED, NEWER, VANISHED, ALTERED = "unchanged", "newer", "vanished", "altered"


@dataclass(frozen=True)
class Finding:
    """The state of one locked input.

    `lock`: the name of its lock file. `name`, `version`: of the input.
    `state`: UNCHANGED; NEWER, if it is available but replaced or no longer needed; VANISHED, if it
        is no longer available; ALTERED, if another file has its name.
    `detail`: its replacement or the other file, e.g. "-> 2.3.6", or "".
    """

    lock: str
    name: str
    version: str
    state: str
    detail: str = ""


def resolve_input(item: LockRequest, folder: Path, resolver: Resolver, cache: Path) -> AnyLock:
    """The lock of a request, resolved with the inputs that its sources have today.

    `folder` has the locks, of which `item.within` is read. Facts about a wheel that has not changed
    are kept, and it is not downloaded. Raises NetworkError, LockError, BuildError or DiskError.
    """
    network = resolver.network
    match item:
        case WheelRequest():
            return _resolve_wheels(item, folder, resolver)
        case FactsRequest():
            plain, current = read_wheels(folder / f"{item.within}.json", item.index), None
            with contextlib.suppress(LockError):
                current = read(FactsLock, item.path(folder))
            return find_facts(item, plain, current, network=network, cache=cache)
        case BaseRequest() | CompatRequest():
            return _resolve_debs(item, resolver)
        case SourceRequest():
            return resolve_sources(item, cache=cache, network=network, run=resolver.run)
        case ToolkitRequest():
            return resolve_toolkit(item, network)
    raise TypeError(item)


def _resolve_wheels(item: WheelRequest, folder: Path, resolver: Resolver) -> WheelLock:
    kept: list[str] = []
    if item.within:
        plain = read_wheels(folder / f"{item.within}.json", item.index)
        kept = [f"{w.name}=={w.version}" for w in plain.wheels if w.name not in item.replaces]
    wheels = resolve(item, network=resolver.network, run=resolver.run, constraints=kept)
    check_runtime(wheels, item.runtime)
    return wheels


def _resolve_debs(item: BaseRequest | CompatRequest, resolver: Resolver) -> DebLock:
    if isinstance(item, CompatRequest):
        return resolver.resolve_compat(item)
    return resolver.resolve(item)


def check(
    item: LockRequest, folder: Path, resolver: Resolver, index: PackageIndex
) -> tuple[Finding, ...]:
    """The state of every input in a lock file, from its indexes and servers.

    Downloads neither wheels, nor archives, nor trees. `index` may be shared with other checks, so
    that each project is requested once. Raises as `resolve_input` does.
    """
    network, path = resolver.network, item.path(folder)
    match item:
        case WheelRequest():
            wheels = latest = read_wheels(path, item.index)
            with contextlib.suppress(LockError):  # else the index shows which files are gone
                latest = _resolve_wheels(item, folder, resolver)
            return tuple(_wheels(wheels, latest, index))
        case BaseRequest() | CompatRequest():
            return tuple(_debs(item, read(DebLock, path), resolver))
        case SourceRequest():
            return tuple(_sources(read(SourceLock, path), network, index))
        case ToolkitRequest():
            archives = read(SourceLock, path).archives
            offered = {archive.name: archive for archive in resolve_toolkit(item, network).archives}
            return tuple(
                Finding(item.name, a.name, a.version, *_change(a, offered)) for a in archives
            )
    return ()  # facts are of a locked wheel, which is checked with its lock


def require(findings: Iterable[Finding]) -> None:
    """Raise LockError if inputs vanished or were altered."""
    if bad := [f for f in findings if f.state in (VANISHED, ALTERED)]:
        names = ", ".join(f"{f.name} {f.version} {f.state} ({f.lock})" for f in bad)
        locks = ",".join(dict.fromkeys(finding.lock for finding in bad))
        raise LockError(
            f"locked inputs are no longer available: {names}", f"run `invoke lock --select {locks}`"
        )


def _change(
    locked: _Input, offered: Mapping[str, _Input], sha256: str | None = None
) -> tuple[str, str]:
    """State and detail of an input against those that are offered today, by name.

    `sha256` is that of the file of its very version, if the source was asked for it.
    """
    other = offered.get(locked.name)
    if sha256 is None and other and other.version == locked.version:
        sha256 = other.sha256
    if sha256 not in (None, locked.sha256):
        return ALTERED, f"expected sha256:{locked.sha256}, found sha256:{sha256}"
    if other is None:
        return NEWER, "no longer needed"
    if other.version != locked.version:
        return NEWER, f"-> {other.version}"
    return UNCHANGED, ""


def _wheels(lock: WheelLock, latest: WheelLock, index: PackageIndex) -> Iterable[Finding]:
    """The state of each wheel of a lock; `latest` is the lock as it would be today."""
    offered = {wheel.name: wheel for wheel in latest.wheels}
    with workers(8) as pool:
        files = pool.map(index.find, lock.wheels)
    for wheel, file in zip(lock.wheels, files, strict=True):
        state, detail = VANISHED, f"the index has no {wheel.filename}"
        if file:
            state, detail = _change(wheel, offered, file.digests.get("sha256", wheel.sha256))
            if state == UNCHANGED and file.is_yanked:
                detail = f"yanked: {file.yanked_reason or 'no reason given'}"
        yield Finding(lock.name, wheel.name, wheel.version, state, detail)


def _sources(lock: SourceLock, network: Network, index: PackageIndex) -> Iterable[Finding]:
    """The state of each archive, source distribution and tree of a source, from their servers.

    A tree cannot change, nor can its needs: its commit is its hash.
    """
    for archive in lock.archives:
        count, state, detail = size(network.mirrored(archive.url), network), UNCHANGED, ""
        if count is None:
            state, detail = VANISHED, f"{archive.url} is gone"
        elif count != archive.size:
            state, detail = ALTERED, f"expected {archive.size} bytes, found {count}"
        yield Finding(lock.name, archive.name, archive.version, state, detail)
    for sdist in lock.sdists:
        file = index.find(sdist)
        state, detail = VANISHED, f"the index has no {sdist.filename}"
        if file:
            sha256 = file.digests.get("sha256", sdist.sha256)
            state, detail = _change(sdist, {sdist.name: sdist}, sha256)
        yield Finding(lock.name, sdist.name, sdist.version, state, detail)
    for tree in lock.trees:
        yield Finding(lock.name, tree.name, f"{tree.version} {tree.commit}", UNCHANGED)


def _debs(
    item: BaseRequest | CompatRequest, lock: DebLock, resolver: Resolver
) -> Iterable[Finding]:
    offered = {deb.name: deb for deb in _resolve_debs(item, resolver).debs}
    listed = {(deb.name, deb.version) for deb in offered.values()}
    network, mirrors, snapshot = resolver.network, resolver.roots(), ""
    if isinstance(item, CompatRequest):
        mirrors = (network.compat_mirror or item.compat.repository(item.platform),)
    else:
        snapshot = item.base.snapshot
    superseded = [deb for deb in lock.debs if (deb.name, deb.version) not in listed]
    left = available(lock, superseded, mirrors=mirrors, snapshot=snapshot, network=network)
    for deb in lock.debs:
        state, detail = _change(deb, offered)
        if deb in superseded and deb not in left:
            state = VANISHED
        yield Finding(lock.name, deb.name, deb.version, state, detail)
