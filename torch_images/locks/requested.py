"""Locks as their requests want them: an error names a lock that is missing or out of step."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TypeVar

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
from torch_images.locks.debs import DebLock
from torch_images.locks.facts import check_facts
from torch_images.locks.files import damaged, read
from torch_images.locks.sources import SourceLock
from torch_images.locks.wheels import WheelLock, read_wheels

_Kind = TypeVar("_Kind", WheelLock, DebLock, SourceLock)


def wheels(item: WheelRequest, folder: Path) -> WheelLock:
    """A lock of wheels. Raises LockError, also if it contradicts the lock that it is within."""
    lock = _matching(item, read_wheels(item.path(folder), item.index))
    check_runtime(lock, item.runtime)
    if item.within:
        plain = read_wheels(folder / f"{item.within}.json", item.index)
        _check_versions(lock, plain, item.replaces)
    return lock


def debs(item: BaseRequest | CompatRequest, folder: Path) -> DebLock:
    """A lock of Debian packages. Raises LockError."""
    return _matching(item, read(DebLock, item.path(folder)))


def sources(item: SourceRequest | ToolkitRequest, folder: Path) -> SourceLock:
    """A lock of trees or archives. Raises LockError."""
    return _matching(item, read(SourceLock, item.path(folder)))


def lacks(folder: Path, item: LockRequest) -> bool:
    """Whether a folder has no lock that a build would take for a request."""
    try:
        check(item, folder)
    except LockError:
        return True
    return False


def check(item: LockRequest, folder: Path) -> None:
    """Raise LockError for a lock that a build would not take for a request."""
    match item:
        case WheelRequest():
            wheels(item, folder)
        case FactsRequest():
            plain = read_wheels(folder / f"{item.within}.json", item.index)
            torch = next((wheel.sha256 for wheel in plain.wheels if wheel.name == "torch"), "")
            check_facts(item, folder, torch)
        case BaseRequest() | CompatRequest():
            debs(item, folder)
        case SourceRequest() | ToolkitRequest():
            sources(item, folder)


def _matching(item: LockRequest, lock: _Kind) -> _Kind:
    """The lock, if it matches its request."""
    if tuple(sorted(lock.request)) != item.request:
        raise LockError(
            f"locks/{item.name}.json is out of step: it was resolved for "
            f"{' '.join(sorted(lock.request))[:1000] or 'nothing'}, "
            f"expected {' '.join(item.request)}",
            f"run `invoke lock --select {item.name}`",
        )
    return lock


def check_runtime(lock: WheelLock, cuda: str) -> None:
    """Raise LockError if torch requires another CUDA version than `cuda`; "" means any."""
    if cuda and lock.cuda and lock.cuda != cuda:
        torch = lock.versions()["torch"]
        raise LockError(
            f"torch {torch} requires CUDA {lock.cuda}, but images.yaml lists it under CUDA {cuda}",
            f"list it in `torch` of cuda '{lock.cuda}'",
        )


def _check_versions(wider: WheelLock, plain: WheelLock, replaces: Collection[str]) -> None:
    """Raise LockError if a wider lock has another version of a wheel than the plain one.

    That lock was resolved with other wheels than the image will have. `replaces` names the packages
    that may differ.
    """
    versions = plain.versions()
    for wheel in wider.wheels:
        if wheel.name not in replaces and versions.get(wheel.name, wheel.version) != wheel.version:
            raise damaged(
                wider.name,
                f"it has {wheel.name} {wheel.version}, but locks/{plain.name}.json has "
                f"{versions[wheel.name]}",
            )
