"""The locks of one image: all its inputs, pinned. See config/lock_requests.py for their names."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch_images.config.image import ImageSpec
from torch_images.config.lock_requests import (
    BaseRequest,
    WheelRequest,
    base_input,
    compat_input,
    facts_input,
    image_inputs,
    source_input,
    tool_input,
    toolkit_input,
    tools_inputs,
    unpacked_inputs,
    variant_inputs,
    wheel_input,
)
from torch_images.config.types import Config, Tree
from torch_images.errors import LockError
from torch_images.locks import requested
from torch_images.locks.debs import DebLock, LockedDeb
from torch_images.locks.facts import FactsLock
from torch_images.locks.files import dumps, parse
from torch_images.locks.sources import LockedArchive, SourceLock
from torch_images.locks.wheels import LockedWheel, WheelLock
from torch_images.platforms import AMD64, Platform

AnyLock = WheelLock | DebLock | SourceLock | FactsLock
# The file in an image that names the lock of each role.
ROLES = "roles.json"
_ROLES: dict[str, type[WheelLock | DebLock | SourceLock]] = {
    **dict.fromkeys(("wheels", "build", "sbom", "extra_wheels", "tools", "unpacked"), WheelLock),
    **dict.fromkeys(("own_wheels", "own_build"), WheelLock),
    **dict.fromkeys(("base", "compat", "extra_debs", "tool_debs", "own_debs"), DebLock),
    **dict.fromkeys(("sources", "toolkit"), SourceLock),
}


@dataclass(frozen=True, kw_only=True)
class ImageLock:
    """All inputs of an image, by the role of each lock.

    `compat` is NVIDIA's compat package, None for an image without it. `extra_wheels` and
    `extra_debs` are a variant's additions to the plain image, None if it adds nothing. `sources` is
    set if torch, or torch and Triton, are compiled; `wheels` then lacks them. `tools` and
    `tool_debs` compile them and are not in the image. `toolkit` is NVIDIA's compiler, if it does
    not come as wheels. `unpacked` are wheels that are not installed. `own_wheels` and `own_debs`
    are what a user's project adds to all that, and `own_build` what compiles its own package.
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
    own_wheels: WheelLock | None = None
    own_debs: DebLock | None = None
    own_build: WheelLock | None = None

    @property
    def platform(self) -> Platform:
        """The platform of the image."""
        return self.wheels.platform

    @property
    def all(self) -> tuple[WheelLock | DebLock | SourceLock, ...]:
        """Its locks."""
        locks = (getattr(self, each.name) for each in fields(self) if each.name != "unpacked")
        return tuple(lock for lock in (*locks, *self.unpacked) if lock)

    @property
    def date(self) -> dt.date:
        """The newest date of its locks: the first day with all inputs available."""
        return max(lock.date for lock in self.all)

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
        """Whether it has a user's own tree in place of a locked one."""
        return bool(self.sources and self.sources.unlocked)

    @property
    def compat_version(self) -> str:
        """The version of NVIDIA's compat package in the image; "" without one."""
        return self.compat.debs[0].version if self.compat else ""

    @property
    def all_wheels(self) -> tuple[LockedWheel, ...]:
        """Every wheel that is installed in the image, the plain ones first."""
        wheels = self.wheels.wheels
        for more in (self.extra_wheels, self.own_wheels):
            replaced = more.versions() if more else {}
            kept = tuple(wheel for wheel in wheels if wheel.name not in replaced)
            wheels = kept + (more.wheels if more else ())
        return wheels

    @property
    def all_debs(self) -> tuple[LockedDeb, ...]:
        """Every locked Debian package in the image."""
        locks = (self.base, self.extra_debs, self.own_debs)
        return tuple(deb for lock in locks if lock for deb in lock.debs)

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
        """The version of Triton, by its own name."""
        trees = {tree.name: tree for tree in self.sources.trees} if self.sources else {}
        return trees["triton"].version if "triton" in trees else self.wheels.versions()["triton"]

    def texts(self) -> dict[str, str]:
        """The text of each lock by the name of its file, in a fixed order."""
        return dict(self._texts)

    @cached_property
    def _texts(self) -> dict[str, str]:
        locks = {role: lock for role in _ROLES if (lock := getattr(self, role))}
        names = {
            role: [one.name for one in lock] if isinstance(lock, tuple) else lock.name
            for role, lock in locks.items()
        }
        texts = {f"{lock.name}.json": dumps(lock) for lock in self.all}
        return dict(sorted({ROLES: json.dumps(names, indent=1) + "\n", **texts}.items()))


def image_lock(config: Config, spec: ImageSpec, folder: Path) -> ImageLock:
    """Read the locks of an image from a folder.

    Raises LockError for a lock that is missing, damaged, or does not match images.yaml.
    """
    for item in image_inputs(config, spec):
        if not item.path(folder).exists():
            raise LockError(
                f"{spec.id} is not locked: locks/{item.path(folder).name} does not exist",
                f"run `invoke lock --select {spec.id}`",
            )
    debs = requested.debs(base_input(spec), folder)
    wheels = requested.wheels(wheel_input(config, spec), folder)
    # Before the variant's wheels: the facts say which of them fit torch.
    requested.check(facts_input(config, spec), folder)
    extra_wheels, extra_debs = _beyond(variant_inputs(config, spec), folder, wheels, debs)
    tools, tool_debs = _beyond(tools_inputs(config, spec), folder, wheels, debs)
    sources: SourceLock | None = None
    compiled: set[str] = set()
    if (trees := source_input(spec)) and tools:
        sources = replace(requested.sources(trees, folder), build=spec.source.build)
        compiled = {tree.name for tree in sources.trees}
        # Build tools are installed beside CUDA's libraries. NVIDIA's tools are in Triton's wheel.
        beside = tuple(w for w in wheels.wheels if w.name != "torch" and not w.of_cuda)
        tools = replace(tools, wheels=tuple(sorted((*tools.wheels, *beside))))
    archives = toolkit_input(config, spec)
    compat = compat_input(config, spec.cuda, spec.platform) if spec.compat else None
    toolkit = requested.sources(archives, folder) if archives else None
    return ImageLock(
        wheels=replace(wheels, wheels=tuple(w for w in wheels.wheels if w.name not in compiled)),
        base=debs,
        build=requested.wheels(tool_input("tools-build", spec.platform), folder),
        sbom=requested.wheels(tool_input("tools-sbom", spec.platform), folder),
        compat=requested.debs(compat, folder) if compat else None,
        extra_wheels=extra_wheels,
        extra_debs=extra_debs,
        sources=sources,
        tools=tools,
        tool_debs=tool_debs,
        toolkit=toolkit,
        unpacked=tuple(requested.wheels(item, folder) for item in unpacked_inputs(spec)),
    )


def compat_versions(config: Config, folder: Path, platform: Platform = AMD64) -> dict[str, str]:
    """The version of the locked compat library by CUDA version, e.g. "580.95.05" for "13.0".

    It is "" if none is locked. Raises LockError if there is no folder, or if a lock is damaged.
    """
    items = {cuda.version: compat_input(config, cuda, platform) for cuda in config.cudas}
    return {
        version: requested.debs(item, folder).debs[0].version.partition("-")[0]
        if item and (item.path(folder).exists() or not folder.is_dir())
        else ""
        for version, item in items.items()
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
    """The locks of an image from the texts of `ImageLock.texts`, by file name.

    Raises LockError if they are not the locks of one image, or if one is damaged.
    """

    def lock_of(role: str, name: Any) -> Any:
        if isinstance(name, list):
            return tuple(lock_of(role, each) for each in name)
        return parse(_ROLES[role], texts[f"{name}.json"], name)

    try:
        roles = json.loads(texts[ROLES])
        lock = ImageLock(**{role: lock_of(role, name) for role, name in roles.items()})
        whole = lock.texts().keys() == texts.keys()
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        whole = False
    if not whole:
        raise LockError(f"not the locks of one image: {', '.join(sorted(texts)) or 'none'}")
    return lock


def _beyond(
    wider: tuple[WheelRequest | None, BaseRequest | None],
    folder: Path,
    wheels: WheelLock,
    debs: DebLock,
) -> tuple[WheelLock | None, DebLock | None]:
    """The additions of two wider locks to those of the plain image; None without a wider lock.

    `wider` are the requests of a lock of wheels and one of packages; `wheels` and `debs` are the
    plain image's. A wheel that replaces one of the plain image is part of the result.
    """
    more_wheels = more_debs = None
    if wider[0]:
        more_wheels = requested.wheels(wider[0], folder)
        ours = {name for name in wheels.versions() if name not in wider[0].replaces}
        kept = (w for w in more_wheels.wheels if w.name not in ours and w not in wheels.wheels)
        more_wheels = replace(more_wheels, wheels=tuple(kept))
    if wider[1]:
        more_debs = requested.debs(wider[1], folder)
        plain = debs.versions()
        added = tuple(d for d in more_debs.debs if d.name not in plain)
        more_debs = replace(more_debs, debs=added)
    return more_wheels, more_debs
