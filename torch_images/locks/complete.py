"""Checks that locks contain everything requested. Pure.

They ignore the requirements of the wheels themselves, which the checks of a built image cover.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import chain

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from torch_images.errors import LockError
from torch_images.locks import grammar
from torch_images.locks.debs import DebLock
from torch_images.locks.sources import SourceLock
from torch_images.locks.wheels import WheelLock

# Packages in every image, as wheels or compiled.
CORE = ("torch", "triton")
_LONGEST = 1000  # characters of a requirement


def check_wheels(
    lock: WheelLock, *more: WheelLock, compiled: Collection[str] = (), by_name: bool = False
) -> None:
    """Raise LockError unless a lock has a wheel for each of its requirements.

    The wheels of `more`, the locks of the plain image, count as well. `compiled` names packages
    that the build compiles, which need no wheel. With `by_name` any version of a wheel is enough.
    """
    versions = dict(chain.from_iterable(each.versions().items() for each in (*more, lock)))
    for word in lock.request:
        try:
            requirement = Requirement(word if len(word) <= _LONGEST else "")
            name = canonicalize_name(requirement.name)
            fits = name in versions and (
                by_name or requirement.specifier.contains(versions[name], prereleases=True)
            )
        except ValueError:  # many kinds, also for numbers of thousands of digits
            raise grammar.damaged(lock.name, f"it was requested for '{word[:80]}'") from None
        if name in compiled or requirement.marker:
            continue
        if not fits:
            has = f"has {name} {versions[name]}" if name in versions else f"has no {name}"
            raise grammar.damaged(lock.name, f"it {has}, but {word[:80]} was requested")


def check_runtime(lock: WheelLock, cuda: str) -> None:
    """Raise LockError if torch requires another CUDA version than `cuda`; "" means any."""
    if cuda and lock.cuda and lock.cuda != cuda:
        torch = lock.versions()["torch"]
        raise LockError(
            f"torch {torch} requires CUDA {lock.cuda}, but images.yaml lists it under CUDA {cuda}",
            f"list it in `torch` of cuda '{lock.cuda}'",
        )


def check_core(lock: WheelLock, *more: WheelLock, compiled: Collection[str] = ()) -> None:
    """Raise LockError unless the locks of an image have torch and Triton, except compiled ones."""
    names = (name for name in CORE if name not in compiled)
    _lacking(lock.name, names, chain.from_iterable(each.versions() for each in (lock, *more)))


def check_debs(lock: DebLock, *more: DebLock) -> None:
    """Raise LockError unless a lock has each requested package.

    The packages of `more`, the locks of the plain image, count as well. Checks nothing if the
    packages are added to an image, which may already have them, or if a lock was never resolved.
    """
    if lock.image or (lock.unlocked and not lock.debs):
        return
    if any(each.unlocked and not each.debs for each in more):
        return
    names = chain.from_iterable(each.versions() for each in (lock, *more))
    _lacking(lock.name, lock.request, names)


def check_compat(lock: DebLock) -> None:
    """Raise LockError unless a lock pins exactly one package, the requested one."""
    if len(lock.debs) != 1:
        raise grammar.damaged(lock.name, "it must pin one package")
    _lacking(lock.name, lock.request, lock.versions())


def check_sources(lock: SourceLock) -> None:
    """Raise LockError unless a lock has everything requested.

    That is the tree of torch, and each tree at its commit, or the archives of a compiler. An
    unlocked lock may have other commits: those of a user's own tree.
    """
    if not lock.trees and not lock.name.startswith("source-"):
        words = (word for word in lock.request if "==" not in word)
        _lacking(lock.name, words, (archive.name for archive in lock.archives))
        return
    commits = {tree.name: tree.commit for tree in lock.trees}
    _lacking(lock.name, CORE[:1], commits)
    for word in lock.request:
        name, _, commit = word.partition("@")
        if name not in commits or (not lock.unlocked and commits[name] != commit):
            raise grammar.damaged(lock.name, f"it lacks {word[:80]}")


def same_versions(wider: WheelLock, plain: WheelLock, replaces: Collection[str]) -> None:
    """Raise LockError if a wider lock has another version of a wheel than the plain one.

    That lock was resolved with other wheels than the image will have. `replaces` names the packages
    that may differ.
    """
    versions: Mapping[str, str] = plain.versions()
    for wheel in wider.wheels:
        if wheel.name not in replaces and versions.get(wheel.name, wheel.version) != wheel.version:
            raise grammar.damaged(
                wider.name,
                f"it has {wheel.name} {wheel.version}, but locks/{plain.name}.txt has "
                f"{versions[wheel.name]}",
            )


def _lacking(name: str, requested: Iterable[str], locked: Iterable[str]) -> None:
    """Raise LockError, naming lock `name`, unless `locked` contains all of `requested`."""
    known = set(locked)
    lacks = [word for word in requested if word not in known]
    if lacks:
        raise grammar.damaged(name, f"it lacks {', '.join(lacks[:5])[:200]}")
