"""The locks of one image: all its inputs, pinned. See config/lock_requests.py for their names."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from torch_images.config.image import ImageSpec
from torch_images.config.lock_requests import (
    LockRequest,
    base_input,
    compat_input,
    facts_input,
    image_inputs,
    inputs,
    source_input,
    tool_input,
    toolkit_input,
    tools_inputs,
    unpacked_inputs,
    variant_inputs,
    wheel_input,
)
from torch_images.config.types import Config, Cuda, Tree
from torch_images.errors import LockError
from torch_images.locks import complete, grammar
from torch_images.locks.debs import DebLock, LockedDeb, format_debs, parse_debs, read_debs
from torch_images.locks.facts import FactsLock, check_facts, format_facts, read_facts
from torch_images.locks.sources import (
    LockedArchive,
    SourceLock,
    format_sources,
    parse_sources,
    read_sources,
)
from torch_images.locks.wheels import (
    LockedWheel,
    WheelLock,
    format_wheels,
    parse_wheels,
    read_wheels,
)
from torch_images.platforms import AMD64, Platform

AnyLock = WheelLock | DebLock | SourceLock | FactsLock


@dataclass(frozen=True, kw_only=True)
class ImageLock:
    """All that an image is made from, by the role that each lock has in it.

    `compat` is None for an image that goes without NVIDIA's compat libraries; `extra_wheels` and
    `extra_debs` are what a variant adds to the plain image, None where it adds nothing. `sources`
    is set where torch, or torch and Triton, are compiled, and missing in `wheels` then; `tools` and
    `tool_debs` are what compiles them and does not stay. `toolkit` is NVIDIA's compiler, where it
    does not come as wheels, `unpacked` are wheels that are not installed.
    """

    wheels: WheelLock
    base: DebLock
    build: WheelLock
    sbom: WheelLock
    compat: DebLock | None = None
    extra_wheels: WheelLock | None = None
    extra_debs: DebLock | None = None
    sources: SourceLock | None = None
    tools: WheelLock | None = None
    tool_debs: DebLock | None = None
    toolkit: SourceLock | None = None
    unpacked: tuple[WheelLock, ...] = ()

    @property
    def platform(self) -> Platform:
        """What the image is for."""
        return self.wheels.platform

    @property
    def date(self) -> dt.date:
        """The newest date of its locks: when this image's inputs were all there."""
        held = (self.wheels, self.base, self.build, self.sbom, self.compat)
        more = (self.extra_wheels, self.extra_debs)
        made = (self.sources, self.tools, self.tool_debs, self.toolkit, *self.unpacked)
        return max(lock.date for lock in (*held, *more, *made) if lock)

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
        others = (self.extra_debs, self.tool_debs, self.sources)
        return self.base.unlocked or any(lock.unlocked for lock in others if lock)

    @property
    def compat_version(self) -> str:
        """The version of NVIDIA's compat package in the image; "" for an image without."""
        return self.compat.debs[0].version if self.compat else ""

    @property
    def all_wheels(self) -> tuple[LockedWheel, ...]:
        """Every wheel that is installed in the image, the plain ones first."""
        if not self.extra_wheels:
            return self.wheels.wheels
        replaced = self.extra_wheels.versions()
        kept = tuple(w for w in self.wheels.wheels if w.name not in replaced)
        return kept + self.extra_wheels.wheels

    @property
    def all_debs(self) -> tuple[LockedDeb, ...]:
        """Every Debian package in the image that is locked."""
        return self.base.debs + (self.extra_debs.debs if self.extra_debs else ())

    @property
    def all_archives(self) -> tuple[LockedArchive, ...]:
        """Every archive that a build unpacks."""
        return tuple(a for lock in (self.sources, self.toolkit) if lock for a in lock.archives)

    @property
    def compiled(self) -> dict[str, str]:
        """Version by name of the wheels that the build compiles."""
        if not self.sources:
            return {}
        digits = self.wheels.name.partition("-cu")[2].partition("-")[0]
        return {
            tree.name: f"{tree.version}+git{tree.commit[:7]}"
            + (f".cu{digits}" if tree.name == "torch" else "")
            for tree in self.sources.trees
        }

    @property
    def triton(self) -> str:
        """The version of Triton, as it calls itself."""
        trees = {tree.name: tree for tree in self.sources.trees} if self.sources else {}
        return trees["triton"].version if "triton" in trees else self.wheels.versions()["triton"]

    def texts(self) -> dict[str, str]:
        """The text of each lock by the name of its file, in a fixed order."""
        return dict(self._texts)

    @cached_property
    def _texts(self) -> dict[str, str]:
        debs = (self.base, self.compat, self.extra_debs, self.tool_debs)
        wheels = (self.build, self.sbom, self.wheels, self.extra_wheels, self.tools, *self.unpacked)
        texts = {f"{lock.name}.txt": format_debs(lock) for lock in debs if lock}
        texts |= {f"{lock.name}.txt": format_wheels(lock) for lock in wheels if lock}
        sources = (self.sources, self.toolkit)
        texts |= {f"{lock.name}.txt": format_sources(lock) for lock in sources if lock}
        return dict(sorted(texts.items()))


def image_lock(config: Config, spec: ImageSpec, folder: Path) -> ImageLock:
    """Read the locks of an image from a folder.

    Raises LockError for one that is missing, damaged, or not of what images.yaml asks for.
    """
    _check_there(config, spec, folder)
    base = base_input(spec)
    debs = _read_debs(base, folder)
    compat = _read_compat(config, spec.cuda, folder, spec.platform)
    if debs.image.rpartition("@")[0] != base.image:
        raise LockError(
            f"locks/{base.name}.txt is of image {debs.image or 'none'}, images.yaml names "
            f"{base.image or 'none'}",
            f"run `invoke lock --select {base.name}`",
        )
    wheels = _read(wheel_input(config, spec), folder)
    complete.check_runtime(wheels, spec.cuda.version)
    kept = wheels
    extra_wheels, extra_debs = _beyond(variant_inputs(config, spec), folder, wheels, debs)
    tools, tool_debs = _beyond(tools_inputs(config, spec), folder, wheels, debs)
    sources: SourceLock | None = None
    if item := source_input(spec):
        sources = replace(_read_sources(item, folder), build=spec.source.build)
        compiled = {tree.name for tree in sources.trees}
        ours = tuple(w for w in wheels.wheels if w.name not in compiled)
        kept = replace(wheels, wheels=ours)
        assert tools
        # What compiles is installed beside CUDA's libraries. NVIDIA's tools are in Triton's wheel.
        beside = tuple(w for w in wheels.wheels if w.name != "torch" and not w.of_cuda)
        tools = replace(tools, wheels=tuple(sorted((*tools.wheels, *beside))))
    item = toolkit_input(config, spec)
    toolkit = _read_sources(item, folder) if item else None
    lock = ImageLock(
        wheels=kept,
        base=debs,
        build=_read(tool_input("tools-build", spec.platform), folder),
        sbom=_read(tool_input("tools-sbom", spec.platform), folder),
        compat=compat,
        extra_wheels=extra_wheels,
        extra_debs=extra_debs,
        sources=sources,
        tools=tools,
        tool_debs=tool_debs,
        toolkit=toolkit,
        unpacked=tuple(_read(item, folder) for item in unpacked_inputs(spec)),
    )
    _check_complete(lock)
    check_facts(facts_input(config, spec), folder, _torch(wheels))
    return lock


def _check_there(config: Config, spec: ImageSpec, folder: Path) -> None:
    """Raise LockError for an image without locks that `invoke lock` does not keep by itself."""
    items = image_inputs(config, spec)
    missing = [i for i in items if not i.compat and not i.path(folder).exists()]
    kept = {item.name for item in inputs(config)} if missing else set()
    if unkept := [item for item in missing if item.name not in kept]:
        raise LockError(
            f"{spec.id} has no locks: locks/{unkept[0].path(folder).name} does not exist",
            f"it is not one of the project's images; run `invoke lock --select {spec.id}` first",
        )


def compat_versions(config: Config, folder: Path, platform: Platform = AMD64) -> dict[str, str]:
    """The version of the locked compat library by CUDA version, such as "580.95.05" for "13.0".

    It is "" where none is locked. Raises LockError if a lock is damaged, or does not pin exactly
    that package.
    """
    locks = {cuda.version: _read_compat(config, cuda, folder, platform) for cuda in config.cudas}
    return {
        version: lock.debs[0].version.partition("-")[0] if lock else ""
        for version, lock in locks.items()
    }


def with_locked_trees(spec: ImageSpec, lock: ImageLock) -> ImageSpec:
    """The same image with the trees of its lock, one of which may be a user's own."""
    if not lock.sources:
        return spec
    trees = {
        tree.name: Tree(repository=tree.repository, commit=tree.commit, version=tree.version)
        for tree in lock.sources.trees
    }
    source = replace(spec.source, torch=trees["torch"], triton=trees.get("triton"))
    return replace(spec, source=source)


def parse_image_lock(texts: Mapping[str, str]) -> ImageLock:
    """The locks of an image from the texts that `ImageLock.texts` gives, by file name.

    Raises LockError if they are not the locks of one image, or one is damaged or incomplete.
    """
    named = {file.removesuffix(".txt"): text for file, text in texts.items()}
    # The lock of what a variant adds is named after the plain image's, and so comes second.
    base = sorted(name for name in named if name.startswith("base-"))
    compat, source, toolkit = (
        next((name for name in named if name.startswith(prefix)), None)
        for prefix in ("compat-", "source-", "toolkit-")
    )
    tools = sorted(name for name in named if name.startswith("build-"))
    wheels = sorted(name for name in named if name.startswith("wheel-"))
    unpacked = sorted(name for name in named if name.startswith("unpacked-"))
    programs = [name for name in named if name.startswith("tools-build")]
    most = 2
    if (
        not (1 <= len(base) <= most and 1 <= len(wheels) <= most)
        or len(tools) != (most if source else 0)
        or "tools-sbom" not in named
        or len(programs) != 1
    ):
        raise LockError(f"not the locks of one image: {', '.join(sorted(texts)) or 'none'}")
    tool_wheels = next((name for name in tools if "-py" in name), None)
    tool_debs = next((name for name in tools if "-py" not in name), None)
    lock = ImageLock(
        wheels=parse_wheels(named[wheels[0]], wheels[0]),
        base=parse_debs(named[base[0]], base[0]),
        build=parse_wheels(named[programs[0]], programs[0]),
        sbom=parse_wheels(named["tools-sbom"], "tools-sbom"),
        compat=parse_debs(named[compat], compat) if compat else None,
        extra_wheels=parse_wheels(named[wheels[1]], wheels[1]) if wheels[1:] else None,
        extra_debs=parse_debs(named[base[1]], base[1]) if base[1:] else None,
        sources=parse_sources(named[source], source) if source else None,
        tools=parse_wheels(named[tool_wheels], tool_wheels) if tool_wheels else None,
        tool_debs=parse_debs(named[tool_debs], tool_debs) if tool_debs else None,
        toolkit=parse_sources(named[toolkit], toolkit) if toolkit else None,
        unpacked=tuple(parse_wheels(named[name], name) for name in unpacked),
    )
    for part in (lock.build, lock.base, lock.compat, lock.extra_wheels, lock.extra_debs):
        if part and part.platform != lock.platform:
            raise LockError(
                f"not the locks of one image: {lock.wheels.name} is for {lock.platform}, "
                f"{part.name} for {part.platform}"
            )
    _check_complete(lock)
    return lock


def update(path: Path, lock: AnyLock) -> bool:
    """Write a lock file, unless the old one differs in nothing but its date.

    Returns whether the file changed. Raises LockError, and writes nothing, if the lock is not
    complete or could not be read again: its content comes from indexes and archives.
    """
    text = _format(lock, lock.date)
    if isinstance(lock, FactsLock):
        same = path.exists() and _same_facts(lock, path)
    else:
        if _format(_parse(lock, text), lock.date) != text:
            raise LockError(f"locks/{lock.name}.txt is not written: it would be read otherwise")
        _check_resolved(lock)
        same = path.exists() and _same_lock(lock, path)
    if not same:
        grammar.write(path, text)
    return not same


def _same_lock(lock: WheelLock | DebLock | SourceLock, path: Path) -> bool:
    """Whether a file has a lock already, whatever its date. A damaged file is one to replace."""
    with contextlib.suppress(LockError):
        return _format(lock, read_date(path)) == grammar.read(path)
    return False


def _same_facts(lock: FactsLock, path: Path) -> bool:
    """Whether a file has these facts already, whatever their date."""
    with contextlib.suppress(LockError):
        return replace(lock, date=read_facts(path).date) == read_facts(path)
    return False


def read_date(path: Path) -> dt.date:
    """The date of a lock file of any kind. Raises LockError if it is missing or damaged."""
    header, _ = grammar.parse(grammar.read(path), path.stem, origins=True)
    return dt.date.fromisoformat(header["date"])


def _format(lock: AnyLock, date: dt.date) -> str:
    """The text of a lock of any kind, with another date."""
    if isinstance(lock, DebLock):
        return format_debs(replace(lock, date=date))
    if isinstance(lock, SourceLock):
        return format_sources(replace(lock, date=date))
    if isinstance(lock, FactsLock):
        return format_facts(replace(lock, date=date))
    return format_wheels(replace(lock, date=date))


def _parse(lock: WheelLock | DebLock | SourceLock, text: str) -> WheelLock | DebLock | SourceLock:
    """The lock that a text holds, of the same kind as `lock`."""
    if isinstance(lock, DebLock):
        return parse_debs(text, lock.name)
    if isinstance(lock, SourceLock):
        return parse_sources(text, lock.name)
    return parse_wheels(text, lock.name)


def _check_resolved(lock: WheelLock | DebLock | SourceLock) -> None:
    """Raise LockError unless a lock, taken by itself, has what it was asked for."""
    if isinstance(lock, DebLock):
        complete.check_debs(lock)
    elif isinstance(lock, WheelLock):
        complete.check_wheels(lock)
    elif lock.trees:
        complete.check_trees(lock)
    else:
        complete.check_archives(lock)


def _check_complete(lock: ImageLock) -> None:
    """Raise LockError unless each lock of an image has what it was asked for."""
    compiled = tuple(lock.compiled)
    complete.check_wheels(lock.wheels, compiled=compiled)
    if lock.extra_wheels:
        complete.check_wheels(lock.extra_wheels, lock.wheels, compiled=compiled)
    if lock.sources:
        complete.check_trees(lock.sources)
    more = [lock.extra_wheels] if lock.extra_wheels else []
    complete.check_core(lock.wheels, *more, compiled=compiled)
    if lock.tools:  # beside what the plain image has, whose versions stay
        complete.check_wheels(lock.tools, lock.wheels, compiled=compiled, by_name=True)
    for wheels in (lock.build, lock.sbom, *lock.unpacked):
        complete.check_wheels(wheels)
    complete.check_debs(lock.base)
    for debs in (lock.extra_debs, lock.tool_debs):
        if debs:
            complete.check_debs(debs, lock.base)
    if lock.compat:
        complete.check_compat(lock.compat)
    if lock.toolkit:
        complete.check_archives(lock.toolkit)


def _beyond(
    wider: tuple[LockRequest | None, LockRequest | None],
    folder: Path,
    wheels: WheelLock,
    debs: DebLock,
) -> tuple[WheelLock | None, DebLock | None]:
    """What two wider locks have beyond those of the plain image; None where there is no wider lock.

    `wider` are the requests of a lock of wheels and one of packages; `wheels` and `debs` are the
    plain image's. A wheel that replaces one of the plain image is part of the result.
    """
    more_wheels = more_debs = None
    if wider[0]:
        more_wheels = _read(wider[0], folder)
        if wider[0].within:
            complete.same_versions(more_wheels, wheels, wider[0].replaces)
        ours = {name for name in wheels.versions() if name not in wider[0].replaces}
        kept = (w for w in more_wheels.wheels if w.name not in ours and w not in wheels.wheels)
        more_wheels = replace(more_wheels, wheels=tuple(kept))
    if wider[1]:
        more_debs = _read_debs(wider[1], folder)
        added = tuple(d for d in more_debs.debs if d.name not in debs.versions())
        more_debs = replace(more_debs, debs=added)
    return more_wheels, more_debs


def _read_compat(
    config: Config, cuda: Cuda, folder: Path, platform: Platform = AMD64
) -> DebLock | None:
    """The lock of a CUDA version's compat package; None where it was never resolved.

    NVIDIA publishes that package later than the CUDA version, and not for every one.
    """
    item = compat_input(config, cuda, platform)
    if not item or (os.path.isdir(folder) and not item.path(folder).exists()):  # noqa: PTH112
        return None
    lock = _read_debs(item, folder)
    complete.check_compat(lock)
    return lock


def _torch(lock: WheelLock) -> str:
    """The SHA-256 of the wheel of torch in the plain image's lock; "" if it has none."""
    return next((wheel.sha256 for wheel in lock.wheels if wheel.name == "torch"), "")


def _read(item: LockRequest, folder: Path) -> WheelLock:
    lock = read_wheels(item.path(folder), item.index)
    _check(item, lock.request)
    _check_platform(item, lock)
    return lock


def _read_debs(item: LockRequest, folder: Path) -> DebLock:
    lock = read_debs(item.path(folder))
    _check(item, lock.request)
    _check_platform(item, lock)
    return lock


def _read_sources(item: LockRequest, folder: Path) -> SourceLock:
    lock = read_sources(item.path(folder))
    _check(item, lock.request)
    return lock


def _check_platform(item: LockRequest, lock: WheelLock | DebLock) -> None:
    """Raise LockError unless a lock is for the platform that is asked for."""
    if lock.platform != item.platform:
        raise LockError(
            f"locks/{item.name}.txt is for {lock.platform}, wanted is {item.platform}",
            f"run `invoke lock --select {item.name}`",
        )


def _check(item: LockRequest, locked: tuple[str, ...]) -> None:
    """Raise LockError unless a lock was resolved for what is asked for now."""
    if tuple(sorted(locked)) == item.request:
        return
    raise LockError(
        f"locks/{item.name}.txt is out of step: it was resolved for "
        f"{' '.join(sorted(locked))[:1000] or 'nothing'}, "
        f"wanted is {' '.join(item.request)}",
        f"run `invoke lock --select {item.name}`",
    )
