"""Resolve locks again, and compare locked inputs with those that their sources have today."""

from __future__ import annotations

import contextlib
import datetime as dt
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
from torch_images.fetch.resolve import Requirements, resolve
from torch_images.fetch.toolchain import resolve_sources, resolve_toolkit
from torch_images.host.network import Network
from torch_images.host.workers import workers
from torch_images.locks import complete
from torch_images.locks.debs import DebLock, LockedDeb
from torch_images.locks.facts import FactsLock
from torch_images.locks.files import read
from torch_images.locks.image_lock import AnyLock
from torch_images.locks.sources import LockedArchive, SourceLock, locked_trees
from torch_images.locks.wheels import LockedWheel, WheelLock, read_wheels

_Input = LockedWheel | LockedDeb | LockedArchive
UNCHANGED, NEWER, VANISHED, ALTERED = "unchanged", "newer", "vanished", "altered"


@dataclass(frozen=True)
class Finding:
    """The state of one locked input.

    `lock`: the name of its lock file. `name`, `version`: of the input.
    `state`: UNCHANGED; NEWER, if it is available but replaced or no longer needed; VANISHED, if it
        is no longer available; ALTERED, if another file has its name.
    `detail`: its replacement or the other file, such as "-> 2.3.6", or "".
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
    today, network = dt.datetime.now(dt.UTC).date(), resolver.network
    match item:
        case WheelRequest():
            return _wheels_today(item, folder, resolver, today)
        case FactsRequest():
            plain = read_wheels(folder / f"{item.within}.json", item.index)
            known = _known_facts(item, folder)
            return find_facts(item, plain, known, network=network, cache=cache, date=today)
        case BaseRequest() | CompatRequest():
            return _debs_today(item, resolver, today)
        case SourceRequest():
            return resolve_sources(
                item.name,
                item.request,
                locked_trees(item.source),
                known=_known_archives(item, folder, network),
                cache=cache,
                network=network,
                run=resolver.run,
                date=today,
            )
        case ToolkitRequest():
            return _toolkit_today(item, network, today)
    raise TypeError(item)


def _wheels_today(
    item: WheelRequest, folder: Path, resolver: Resolver, today: dt.date
) -> WheelLock:
    requirements = Requirements(
        name=item.name,
        words=item.request,
        python=item.python,
        platform=item.platform,
        date=today,
        constraints=tuple(_kept(item, folder)),
        beside=item.beside,
        overrides=item.overrides,
        alone=item.alone,
    )
    wheels = resolve(requirements, network=resolver.network, run=resolver.run, index=item.index)
    complete.check_runtime(wheels, item.runtime)
    return wheels


def _debs_today(item: BaseRequest | CompatRequest, resolver: Resolver, today: dt.date) -> DebLock:
    if isinstance(item, CompatRequest):
        package, platform = item.request[0], item.platform
        return resolver.resolve_compat(item.name, package, item.compat, today, platform=platform)
    return resolver.resolve(item.name, item.base, today, platform=item.platform)


def _toolkit_today(item: ToolkitRequest, network: Network, today: dt.date) -> SourceLock:
    root = item.archives
    return resolve_toolkit(
        item.name, item.request, item.cuda, root=root, network=network, date=today
    )


def check(
    item: LockRequest, folder: Path, resolver: Resolver, index: PackageIndex
) -> tuple[Finding, ...]:
    """The state of every input in a lock file, from its indexes and servers.

    Downloads neither wheels, nor archives, nor trees. `index` may be shared with other checks, so
    that each project is requested once. Raises as `resolve_input` does.
    """
    today, network = dt.datetime.now(dt.UTC).date(), resolver.network
    match item:
        case WheelRequest():
            wheels = fresh = read_wheels(item.path(folder), item.index)
            with contextlib.suppress(LockError):  # else the index shows which files are gone
                fresh = _wheels_today(item, folder, resolver, today)
            return tuple(_wheels(item.name, wheels, fresh, index))
        case BaseRequest() | CompatRequest():
            debs = read(DebLock, item.path(folder))
            latest = _debs_today(item, resolver, today)
            return tuple(_debs(item, debs, latest, resolver))
        case SourceRequest():
            return tuple(_sources(item.name, read(SourceLock, item.path(folder)), network))
        case ToolkitRequest():
            archives = read(SourceLock, item.path(folder))
            return tuple(_archives(item.name, archives, _toolkit_today(item, network, today)))
    return ()  # facts are of a locked wheel, which is checked with its lock


def require(findings: Iterable[Finding]) -> None:
    """Raise LockError, with the first five names, if inputs vanished or were altered."""
    bad = [f for f in findings if f.state in (VANISHED, ALTERED)]
    if bad:
        names = ", ".join(f"{f.name} {f.version} {f.state} ({f.lock})" for f in bad[:5])
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""  # noqa: PLR2004
        locks = ",".join(dict.fromkeys(finding.lock for finding in bad))
        raise LockError(
            f"locked inputs are no longer available: {names}{more}",
            f"run `invoke lock --select {locks}`",
        )


def _kept(item: WheelRequest, folder: Path) -> Iterable[str]:
    """The versions that a lock inherits from lock `item.within`, such as "numpy==2.3.5"."""
    if item.within:
        for wheel in read_wheels(folder / f"{item.within}.json", item.index).wheels:
            if wheel.name not in item.replaces:
                yield f"{wheel.name}=={wheel.version}"


def _known_facts(item: FactsRequest, folder: Path) -> FactsLock | None:
    """The earlier facts about a release; None without a valid file."""
    with contextlib.suppress(LockError):
        return read(FactsLock, item.path(folder))
    return None


def _known_archives(
    item: SourceRequest, folder: Path, network: Network
) -> tuple[LockedArchive, ...]:
    """The locked archives whose size on the server is unchanged."""
    with contextlib.suppress(LockError):
        archives = read(SourceLock, item.path(folder)).archives
        return tuple(a for a in archives if size(network.mirrored(a.url), network) == a.size)
    return ()


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


def _wheels(name: str, lock: WheelLock, fresh: WheelLock, index: PackageIndex) -> Iterable[Finding]:
    """The state of each wheel of a lock; `fresh` is the lock as it would be today."""
    latest = {wheel.name: wheel for wheel in fresh.wheels}
    with workers(8) as pool:
        files = pool.map(index.find, lock.wheels)
    for wheel, file in zip(lock.wheels, files, strict=True):
        if file:
            sha256 = file.digests.get("sha256", wheel.sha256)
            state, detail = _change(wheel, latest, sha256)
            if state == UNCHANGED and file.is_yanked:
                detail = f"yanked: {file.yanked_reason or 'no reason given'}"
        else:
            state, detail = VANISHED, f"the index has no {wheel.filename}"
        yield Finding(name, wheel.name, wheel.version, state, detail)


def _sources(name: str, lock: SourceLock, network: Network) -> Iterable[Finding]:
    """The state of each archive and tree of a source, from the servers of the archives.

    A tree cannot change, nor can its needs: its commit is its hash.
    """
    for archive in lock.archives:
        count, state, detail = size(network.mirrored(archive.url), network), UNCHANGED, ""
        if count is None:
            state, detail = VANISHED, f"{archive.url} is gone"
        elif count != archive.size:
            state, detail = ALTERED, f"expected {archive.size} bytes, found {count}"
        yield Finding(name, archive.name, archive.version, state, detail)
    for tree in lock.trees:
        yield Finding(name, tree.name, f"{tree.version} {tree.commit}", UNCHANGED)


def _archives(name: str, lock: SourceLock, fresh: SourceLock) -> Iterable[Finding]:
    """The state of each archive of a compiler."""
    offered = {archive.name: archive for archive in fresh.archives}
    locked = {archive.name for archive in lock.archives}
    for archive in lock.archives:
        yield Finding(name, archive.name, archive.version, *_change(archive, offered))
    for archive in fresh.archives:
        if archive.name not in locked:
            yield Finding(name, archive.name, archive.version, NEWER, "not locked")


def _debs(
    item: BaseRequest | CompatRequest, lock: DebLock, latest: DebLock, resolver: Resolver
) -> Iterable[Finding]:
    """The state of each package of a lock; `latest` is the lock as it would be today."""
    offered = {deb.name: deb for deb in latest.debs}
    listed = {(deb.name, deb.version) for deb in latest.debs}
    superseded = [deb for deb in lock.debs if (deb.name, deb.version) not in listed]
    left = available(
        lock,
        superseded,
        mirrors=_roots(item, resolver) if superseded else (),
        snapshot=item.base.snapshot if isinstance(item, BaseRequest) else "",
        network=resolver.network,
    )
    for deb in lock.debs:
        state, detail = _change(deb, offered)
        if deb in superseded and deb not in left:
            state = VANISHED
        yield Finding(item.name, deb.name, deb.version, state, detail)


def _roots(item: BaseRequest | CompatRequest, resolver: Resolver) -> tuple[str, ...]:
    """The root URLs of the archives that have the packages of a request."""
    if isinstance(item, BaseRequest):
        return resolver.roots()
    return resolver.compat_roots(item.compat, item.platform)
