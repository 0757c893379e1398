"""Checks that locks go with images.yaml and with each other. Pure."""

from __future__ import annotations

from collections.abc import Collection

from torch_images.errors import LockError
from torch_images.locks.files import damaged
from torch_images.locks.wheels import WheelLock


def check_runtime(lock: WheelLock, cuda: str) -> None:
    """Raise LockError if torch requires another CUDA version than `cuda`; "" means any."""
    if cuda and lock.cuda and lock.cuda != cuda:
        torch = lock.versions()["torch"]
        raise LockError(
            f"torch {torch} requires CUDA {lock.cuda}, but images.yaml lists it under CUDA {cuda}",
            f"list it in `torch` of cuda '{lock.cuda}'",
        )


def same_versions(wider: WheelLock, plain: WheelLock, replaces: Collection[str]) -> None:
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
