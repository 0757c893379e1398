"""Locks: every input of an image, pinned. Which files there are, and what an image needs of them.

One file per set of inputs: the wheels of a CUDA version, the packages of a base, the programs that
build. `invoke lock` writes them; builds read them and nothing else.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from torch_images import lockfile
from torch_images.config import Base, Compat, Config, Cuda
from torch_images.debs import DebLock, LockedDeb, format_debs, parse_debs, read_debs
from torch_images.errors import LockError, UsageError, suggest
from torch_images.matrix import ImageSpec, matrix
from torch_images.wheels import LockedWheel, WheelLock, format_lock, parse_lock, read_lock

# Programs that builds and checks use: what is asked for, by the name of the lock. What the images
# hold depends on the first two, so their locks count among an image's inputs.
TOOLS = {
    "tools-build": ("uv",),
    "tools-sbom": ("cyclonedx-python-lib", "python-debian"),
    "tools-verify": ("pytest",),
}
_TOOLS_PYTHON = "3.11"


@dataclass(frozen=True, kw_only=True)
class ImageLock:
    """All that an image is made from, by the role that each lock has in it.

    `compat` is None for an image that goes without NVIDIA's compat libraries; `extra_wheels` and
    `extra_debs` are what a variant adds to the plain image, None where it adds nothing.
    """

    wheels: WheelLock
    base: DebLock
    build: WheelLock
    sbom: WheelLock
    compat: DebLock | None = None
    extra_wheels: WheelLock | None = None
    extra_debs: DebLock | None = None

    @property
    def date(self) -> dt.date:
        """The newest date of its locks: when this image's inputs were all there."""
        held = (self.wheels, self.base, self.build, self.sbom, self.compat)
        return max(lock.date for lock in (*held, self.extra_wheels, self.extra_debs) if lock)

    @property
    def epoch(self) -> int:
        """The lock's date as SOURCE_DATE_EPOCH: seconds since 1970."""
        return int(dt.datetime.combine(self.date, dt.time(), dt.UTC).timestamp())

    @property
    def digest(self) -> str:
        """SHA-256 over the texts of its locks, in hexadecimal."""
        return hashlib.sha256("".join(self.texts().values()).encode()).hexdigest()

    @property
    def unlocked(self) -> bool:
        """Whether a build had to resolve a part of it for itself."""
        return self.base.unlocked or bool(self.extra_debs and self.extra_debs.unlocked)

    @property
    def compat_version(self) -> str:
        """The version of NVIDIA's compat package in the image, or "none"."""
        return self.compat.debs[0].version if self.compat else "none"

    @property
    def all_wheels(self) -> tuple[LockedWheel, ...]:
        """Every wheel in the image, the plain ones first."""
        return self.wheels.wheels + (self.extra_wheels.wheels if self.extra_wheels else ())

    @property
    def all_debs(self) -> tuple[LockedDeb, ...]:
        """Every Debian package in the image that is locked."""
        return self.base.debs + (self.extra_debs.debs if self.extra_debs else ())

    def texts(self) -> dict[str, str]:
        """The text of each lock by the name of its file, in a fixed order."""
        debs = [lock for lock in (self.base, self.compat, self.extra_debs) if lock]
        wheels = [x for x in (self.build, self.sbom, self.wheels, self.extra_wheels) if x]
        texts = {f"{lock.name}.txt": format_debs(lock) for lock in debs}
        texts |= {f"{lock.name}.txt": format_lock(lock) for lock in wheels}
        return dict(sorted(texts.items()))


@dataclass(frozen=True, kw_only=True)
class Input:
    """One lock file: its name, and what it is asked to hold.

    `base` is set for the packages of a base, with `image` where they are added to one; `compat` for
    one of NVIDIA's compat packages; otherwise it holds wheels for `python`.
    """

    name: str
    request: tuple[str, ...]
    python: str = ""
    base: Base | None = None
    image: str = ""
    compat: Compat | None = None

    @property
    def by_apt(self) -> bool:
        """Whether mmdebstrap's apt resolves it, which an empty root file system is made for."""
        return bool(self.compat or (self.base and self.base.suite))

    def path(self, folder: Path) -> Path:
        """Where it lives below the folder of all locks."""
        return folder / f"{self.name}.txt"


def wheel_input(config: Config, spec: ImageSpec) -> Input:
    """The lock of an image's wheels."""
    python = spec.base.python
    return Input(
        name=f"{spec.source.name}-{spec.cuda.short}-py{python.replace('.', '')}",
        request=_request((f"torch=={spec.torch}", *config.packages)),
        python=python,
    )


def base_input(base: Base, cuda: Cuda) -> Input:
    """The lock of an image's base."""
    image = base.image(cuda.version)
    name = f"base-{base.name}-{cuda.short}" if image else f"base-{base.name}"
    return Input(name=name, request=_request(base.packages), base=base, image=image)


def variant_inputs(config: Config, spec: ImageSpec) -> tuple[Input, ...]:
    """The locks of what a variant adds: wheels, then packages; () where it adds nothing.

    Each holds all that the plain image has, too, so that the whole is resolved together; what the
    plain image's own locks have is left out where it is used.
    """
    variant, base = spec.variant, spec.base
    if not variant.adds:
        return ()
    plain, debs = wheel_input(config, spec), base_input(base, spec.cuda)
    toolkit = spec.cuda.toolkit if variant.cuda_home else ()
    wider = replace(base, packages=(*base.packages, *variant.packages))
    return (
        replace(
            plain,
            name=f"{plain.name}-{variant.name}",
            request=_request((*plain.request, *variant.wheels, *toolkit)),
        ),
        replace(
            debs,
            name=f"{debs.name}-{variant.name}",
            request=_request(wider.packages),
            base=wider,
        ),
    )


def compat_input(config: Config, cuda: Cuda) -> Input:
    """The lock of a CUDA version's compat package."""
    package = f"cuda-compat-{cuda.version.replace('.', '-')}"
    return Input(name=f"compat-{cuda.short}", request=(package,), compat=config.compat)


def tool_input(name: str) -> Input:
    """The lock of a set of tools."""
    return Input(name=name, request=_request(TOOLS[name]), python=_TOOLS_PYTHON)


def inputs(config: Config, pattern: str = "*") -> tuple[Input, ...]:
    """Every lock file that the matrix needs whose name matches a glob.

    Raises UsageError if none does.
    """
    found = {}
    for spec in matrix(config):
        for item in (
            wheel_input(config, spec),
            base_input(spec.base, spec.cuda),
            compat_input(config, spec.cuda),
            *variant_inputs(config, spec),
        ):
            found[item.name] = item
    found |= {name: tool_input(name) for name in TOOLS}
    chosen = tuple(found[name] for name in sorted(found) if fnmatchcase(name, pattern))
    if not chosen:
        raise UsageError(f"no lock matches '{pattern}'", suggest(pattern, sorted(found)))
    return chosen


def image_lock(config: Config, spec: ImageSpec, folder: Path) -> ImageLock:
    """Read the locks of an image from a folder.

    Raises LockError for one that is missing, damaged, or not of what images.yaml asks for.
    """
    base = base_input(spec.base, spec.cuda)
    debs = _read_debs(base, folder)
    compat = _read_debs(compat_input(config, spec.cuda), folder)
    if len(compat.debs) != 1:
        raise lockfile.damaged(compat.name, "it must pin one package")
    if debs.image.rpartition("@")[0] != base.image:
        raise LockError(
            f"locks/{base.name}.txt is of image {debs.image or 'none'}, images.yaml names "
            f"{base.image or 'none'}",
            f"run `invoke lock --select {base.name}`",
        )
    wheels = _read(wheel_input(config, spec), folder)
    extra_wheels: WheelLock | None = None
    extra_debs: DebLock | None = None
    if wider := variant_inputs(config, spec):
        extra_wheels, extra_debs = _read(wider[0], folder), _read_debs(wider[1], folder)
        kept = tuple(w for w in extra_wheels.wheels if w.name not in wheels.versions())
        added = tuple(d for d in extra_debs.debs if d.name not in debs.versions())
        extra_wheels = replace(extra_wheels, wheels=kept)
        extra_debs = replace(extra_debs, debs=added)
    return ImageLock(
        wheels=wheels,
        base=debs,
        build=_read(tool_input("tools-build"), folder),
        sbom=_read(tool_input("tools-sbom"), folder),
        compat=compat,
        extra_wheels=extra_wheels,
        extra_debs=extra_debs,
    )


def parse_image_lock(texts: Mapping[str, str]) -> ImageLock:
    """The locks of an image from what `ImageLock.texts` gave. Raises LockError if one is amiss."""
    named = {file.removesuffix(".txt"): text for file, text in texts.items()}
    # The lock of what a variant adds is named after the plain image's, and so comes second.
    base = sorted(name for name in named if name.startswith("base-"))
    compat = next((name for name in named if name.startswith("compat-")), None)
    wheels = sorted(name for name in named if not name.startswith(("base-", "compat-", "tools-")))
    most = 2
    if (
        not 1 <= len(base) == len(wheels) <= most
        or not {"tools-build", "tools-sbom"} <= named.keys()
    ):
        raise LockError(f"not the locks of one image: {', '.join(sorted(texts)) or 'none'}")
    return ImageLock(
        wheels=parse_lock(named[wheels[0]], wheels[0]),
        base=parse_debs(named[base[0]], base[0]),
        build=parse_lock(named["tools-build"], "tools-build"),
        sbom=parse_lock(named["tools-sbom"], "tools-sbom"),
        compat=parse_debs(named[compat], compat) if compat else None,
        extra_wheels=parse_lock(named[wheels[1]], wheels[1]) if wheels[1:] else None,
        extra_debs=parse_debs(named[base[1]], base[1]) if base[1:] else None,
    )


def update(path: Path, lock: WheelLock | DebLock) -> bool:
    """Write a lock file; where nothing but the date differs the old one stays.

    Returns whether the file changed.
    """
    if path.exists():
        with contextlib.suppress(LockError):  # a damaged file is one to replace
            old: WheelLock | DebLock
            old = read_debs(path) if isinstance(lock, DebLock) else read_lock(path)
            if old == replace(lock, date=old.date):
                return False
    lockfile.write(path, format_debs(lock) if isinstance(lock, DebLock) else format_lock(lock))
    return True


def _read(item: Input, folder: Path) -> WheelLock:
    lock = read_lock(item.path(folder))
    _check(item, lock.request)
    return lock


def _read_debs(item: Input, folder: Path) -> DebLock:
    lock = read_debs(item.path(folder))
    _check(item, lock.request)
    return lock


def _check(item: Input, locked: tuple[str, ...]) -> None:
    """Raise LockError unless a lock is of what is asked for."""
    if tuple(sorted(locked)) == item.request:
        return
    raise LockError(
        f"locks/{item.name}.txt is out of step: it was resolved for {' '.join(sorted(locked))}, "
        f"wanted is {' '.join(item.request)}",
        f"run `invoke lock --select {item.name}`",
    )


def _request(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted("".join(word.split()) for word in words))
