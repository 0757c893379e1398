"""Locks as their requests want them: an error names a lock that is missing or out of step."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from torch_images.config.lock_requests import LockRequest
from torch_images.errors import LockError
from torch_images.locks import complete
from torch_images.locks.debs import DebLock, read_debs
from torch_images.locks.facts import check_facts
from torch_images.locks.sources import SourceLock, read_sources
from torch_images.locks.wheels import WheelLock, read_wheels

_Kind = TypeVar("_Kind", WheelLock, DebLock, SourceLock)


def wheels(item: LockRequest, folder: Path) -> WheelLock:
    """A lock of wheels. Raises LockError."""
    return _asked_for(item, read_wheels(item.path(folder), item.index))


def debs(item: LockRequest, folder: Path) -> DebLock:
    """A lock of Debian packages. Raises LockError."""
    return _asked_for(item, read_debs(item.path(folder)))


def sources(item: LockRequest, folder: Path) -> SourceLock:
    """A lock of trees or archives. Raises LockError."""
    return _asked_for(item, read_sources(item.path(folder)))


def lacks(folder: Path, item: LockRequest) -> bool:
    """Whether a folder has no lock that a build would take for a request."""
    try:
        _check(item, folder)
    except LockError:
        return True
    return False


def _check(item: LockRequest, folder: Path) -> None:
    if item.probe:
        plain = read_wheels(folder / f"{item.within}.txt", item.index)
        torch = next((wheel.sha256 for wheel in plain.wheels if wheel.name == "torch"), "")
        check_facts(item, folder, torch)
    elif item.base or item.compat:
        complete.check_debs(debs(item, folder))
    elif item.source or item.cuda:
        complete.check_sources(sources(item, folder))
    else:
        lock = wheels(item, folder)
        complete.check_wheels(lock)
        complete.check_runtime(lock, item.runtime)
        if item.within:
            plain = read_wheels(folder / f"{item.within}.txt", item.index)
            complete.same_versions(lock, plain, item.replaces)


def _asked_for(item: LockRequest, lock: _Kind) -> _Kind:
    """The lock, if it matches its request."""
    if not isinstance(lock, SourceLock) and lock.platform != item.platform:
        raise LockError(
            f"locks/{item.name}.txt is for {lock.platform}, expected {item.platform}",
            f"run `invoke lock --select {item.name}`",
        )
    if tuple(sorted(lock.request)) != item.request:
        raise LockError(
            f"locks/{item.name}.txt is out of step: it was resolved for "
            f"{' '.join(sorted(lock.request))[:1000] or 'nothing'}, "
            f"expected {' '.join(item.request)}",
            f"run `invoke lock --select {item.name}`",
        )
    return lock
