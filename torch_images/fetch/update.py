"""Resolve locks again, and compare locked inputs with those that their sources have today."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch_images.config.lock_requests import LockRequest
from torch_images.errors import LockError
from torch_images.fetch.apt import Resolver
from torch_images.fetch.download import available, size
from torch_images.fetch.facts import UNREAD, find_facts
from torch_images.fetch.packageindex import PackageIndex
from torch_images.fetch.resolve import Requirements, resolve
from torch_images.fetch.toolchain import resolve_sources, resolve_toolkit
from torch_images.host.network import Network
from torch_images.host.workers import workers
from torch_images.locks import complete
from torch_images.locks.debs import DebLock, LockedDeb, read_debs
from torch_images.locks.facts import FactsLock, read_facts
from torch_images.locks.image_lock import AnyLock
from torch_images.locks.sources import LockedArchive, SourceLock, locked_trees, read_sources
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


def resolve_input(
    item: LockRequest, folder: Path, resolver: Resolver, cache: Path, *, add: bool = False
) -> AnyLock:
    """The lock of a request, resolved with the inputs that its sources have today.

    `folder` has the locks, of which `item.within` is read. Facts about files that have not changed
    are kept, and these files are not downloaded. With `add`, facts only gain what they lack.
    Raises NetworkError, LockError, BuildError or DiskError.
    """
    today = dt.datetime.now(dt.UTC).date()
    if item.compat:
        return resolver.resolve_compat(
            item.name, item.request[0], item.compat, today, platform=item.platform
        )
    if item.source:
        return resolve_sources(
            item.name,
            item.request,
            locked_trees(item.source),
            known=_known_archives(item, folder, resolver.network),
            cache=cache,
            network=resolver.network,
            run=resolver.run,
            date=today,
        )
    if item.cuda:
        return resolve_toolkit(
            item.name,
            item.request,
            item.cuda,
            root=item.archives,
            network=resolver.network,
            date=today,
        )
    if item.probe:
        return _find(item, folder, resolver, cache, held=_known_facts(item, folder), add=add)
    if item.base is None:
        wanted = Requirements(
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
        wheels = resolve(wanted, network=resolver.network, run=resolver.run, index=item.index)
        complete.check_runtime(wheels, item.runtime)
        return wheels
    return resolver.resolve(item.name, item.base, today, platform=item.platform)


def check(
    item: LockRequest, folder: Path, resolver: Resolver, cache: Path, index: PackageIndex
) -> tuple[Finding, ...]:
    """The state of every input in a lock file, from its indexes and servers.

    Downloads neither wheels, nor archives, nor trees. `index` may be shared with other checks, so
    that each project is requested once. Raises as `resolve_input` does.
    """
    if item.source:
        return tuple(_sources(item.name, read_sources(item.path(folder)), resolver.network))
    if item.cuda:
        locked = read_sources(item.path(folder))
        now = resolve_input(item, folder, resolver, cache)
        assert isinstance(now, SourceLock)
        return tuple(_archives(item.name, locked, now))
    if item.probe:
        before = read_facts(item.path(folder))
        today = _find(item, folder, resolver, cache, held=before, download=False)
        return tuple(_facts(item.name, before, today))
    if item.base is None and item.compat is None:
        wheels = read_wheels(item.path(folder), item.index)
        try:
            fresh = resolve_input(item, folder, resolver, cache)
        except LockError:  # no longer resolvable; the index then shows which files are gone
            fresh = wheels
        assert isinstance(fresh, WheelLock)
        return tuple(_wheels(item.name, wheels, fresh, index))
    debs = read_debs(item.path(folder))
    latest = resolve_input(item, folder, resolver, cache)
    assert isinstance(latest, DebLock)
    return tuple(_debs(item, debs, latest, resolver))


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


def _kept(item: LockRequest, folder: Path) -> Iterable[str]:
    """The versions that a lock inherits from lock `item.within`, such as "numpy==2.3.5"."""
    if item.within:
        for wheel in read_wheels(folder / f"{item.within}.txt", item.index).wheels:
            if wheel.name not in item.replaces:
                yield f"{wheel.name}=={wheel.version}"


def _find(
    item: LockRequest,
    folder: Path,
    resolver: Resolver,
    cache: Path,
    *,
    held: FactsLock | None,
    download: bool = True,
    add: bool = False,
) -> FactsLock:
    """The facts of a release today; see `find_facts`."""
    return find_facts(
        item,
        read_wheels(folder / f"{item.within}.txt", item.index),
        held,
        network=resolver.network,
        run=resolver.run,
        cache=cache,
        date=dt.datetime.now(dt.UTC).date(),
        download=download,
        add=add,
    )


def _known_facts(item: LockRequest, folder: Path) -> FactsLock | None:
    """The earlier facts about a release; None without a valid file."""
    with contextlib.suppress(LockError):
        return read_facts(item.path(folder))
    return None


def _known_archives(item: LockRequest, folder: Path, network: Network) -> tuple[LockedArchive, ...]:
    """The locked archives whose size on the server is unchanged."""
    with contextlib.suppress(LockError):
        archives = read_sources(item.path(folder)).archives
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


def _facts(name: str, held: FactsLock, now: FactsLock) -> Iterable[Finding]:
    """The state of the wheels that fit a release."""
    latest = {fit.extra: fit for fit in now.facts.fits}
    for fit in held.facts.fits:
        wheels, other = " ".join(fit.wheels) or "none", latest.get(fit.extra)
        offered, reason = (other.wheels, other.reason) if other else ((), "")
        newer = offered != fit.wheels or reason == UNREAD
        detail = f"-> {' '.join(offered) or 'none'}" if newer else ""
        if reason == UNREAD:
            detail += f", {UNREAD}: `invoke lock --select {name}` downloads it"
        yield Finding(name, fit.extra, wheels, NEWER if newer else UNCHANGED, detail)


def _sources(name: str, held: SourceLock, network: Network) -> Iterable[Finding]:
    """The state of each archive and tree of a source, from the servers of the archives.

    A tree cannot change, nor can its needs: its commit is its hash.
    """
    for archive in held.archives:
        count, state, detail = size(network.mirrored(archive.url), network), UNCHANGED, ""
        if count is None:
            state, detail = VANISHED, f"{archive.url} is gone"
        elif count != archive.size:
            state, detail = ALTERED, f"expected {archive.size} bytes, found {count}"
        yield Finding(name, archive.name, archive.version, state, detail)
    for tree in held.trees:
        yield Finding(name, tree.name, f"{tree.version} {tree.commit}", UNCHANGED)


def _archives(name: str, held: SourceLock, now: SourceLock) -> Iterable[Finding]:
    """The state of each archive of a compiler."""
    offered = {archive.name: archive for archive in now.archives}
    locked = {archive.name for archive in held.archives}
    for archive in held.archives:
        yield Finding(name, archive.name, archive.version, *_change(archive, offered))
    for archive in now.archives:
        if archive.name not in locked:
            yield Finding(name, archive.name, archive.version, NEWER, "not locked")


def _debs(
    item: LockRequest, lock: DebLock, latest: DebLock, resolver: Resolver
) -> Iterable[Finding]:
    """The state of each package of a lock; `latest` is the lock as it would be today."""
    offered = {deb.name: deb for deb in latest.debs}
    listed = {(deb.name, deb.version) for deb in latest.debs}
    superseded = [deb for deb in lock.debs if (deb.name, deb.version) not in listed]
    left = available(
        lock,
        superseded,
        mirrors=_roots(item, resolver) if superseded else (),
        snapshot=item.base.snapshot if item.base else "",
        network=resolver.network,
    )
    for deb in lock.debs:
        state, detail = _change(deb, offered)
        if deb in superseded and deb not in left:
            state = VANISHED
        yield Finding(item.name, deb.name, deb.version, state, detail)


def _roots(item: LockRequest, resolver: Resolver) -> tuple[str, ...]:
    """The root URLs of the archives that have the packages of a request; () for none."""
    if item.base:
        return resolver.roots()
    return resolver.compat_roots(item.compat, item.platform) if item.compat else ()
