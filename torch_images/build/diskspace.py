"""How much disk a build takes, and whether the engine has it.

The factors below follow from the sizes of files: wheels, their layers in the cache, and what steps
of images added to the engine. Their sum was compared with the use of the whole disk, sampled four
times a second while images were built (as benchmarks/builds/measure.py does). The peaks, in GB:

- torch 2.11.0 for CUDA 13.0, only base and programs in the cache, nothing in the engine: 9.7.
  The estimate is 10.1.
- torch 2.10.0 for CUDA 12.8, nothing in the cache, the base in the engine: 13.6; estimate 14.7.
- variant pod, beside the plain image of torch 2.14.1: 3.8; estimate 4.0.
- variant devel, likewise: 0.9; estimate 1.4, some of it for steps that BuildKit had already.

What compiling takes, NVIDIA's archives and its Ubuntu image were not measured so.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch_images.build import labels
from torch_images.build.plan import LockedImage
from torch_images.config.types import Config
from torch_images.errors import DiskError
from torch_images.host.engine import Engine
from torch_images.layers.make import cached
from torch_images.layers.parent import PARENT_IMAGES
from torch_images.layers.plan import LayerPlan, layer_plans
from torch_images.locks.debs import LockedDeb
from torch_images.locks.image_lock import ImageLock
from torch_images.locks.sources import LockedArchive
from torch_images.locks.wheels import LockedWheel

# A byte of a wheel, packed as a layer and unpacked; and where torch has lost the code for other
# architectures. A layer lies packed in this user's cache and in the engine, and unpacked there.
_PACKED, _UNPACKED = 0.835, 1.58
_PACKED_PRUNED, _UNPACKED_PRUNED = 0.34, 1.23
# A byte of what a step of the build installs: packed in the engine, and unpacked twice, by BuildKit
# and for the image.
_ADDED = 1.0 + 2 * 3.15
# A byte of an archive: in the cache and twice in the engine, some of it packed.
_ARCHIVE = 3.85
# A byte of the base's packages: in the cache alone and as a layer, in the engine packed, unpacked.
_BASE = 1.0 + 0.96 + 0.96 + 3.72
# What the steps of each image make, mostly bytecode; and programs that builds use, in the cache.
_STEPS, _TOOLS = 350_000_000, 50_000_000
# Compiling torch and Triton: trees, objects, wheels and the compile cache. PyTorch's build folder
# takes some 20 GB for one architecture and 5 for each further one.
_COMPILING, _PER_ARCH = 45_000_000_000, 5_000_000_000


@dataclass(frozen=True, kw_only=True)
class Held:
    """What lies on the disk already.

    `cached`: the diff id of each layer in the cache, by the key of its plan.
    `chains`: the diff ids of the layers of each image in the engine, the lowest first.
    """

    cached: Mapping[str, str] = field(default_factory=dict)
    chains: Sequence[Sequence[str]] = ()

    def unpacked(self, plans: Sequence[LayerPlan]) -> int:
        """How many of the layers, from the lowest on, the engine has unpacked.

        An engine unpacks a layer once for each row of layers below it.
        """
        ours = list(itertools.takewhile(bool, (self.cached.get(plan.key) for plan in plans)))
        return max((_common(ours, chain) for chain in self.chains), default=0)


_NOTHING = Held()


def disk_needed(
    config: Config, images: Sequence[LockedImage], held: Held = _NOTHING, *, small: bool = False
) -> int:
    """Bytes that building these images takes beside what is held; what they share counts once.

    `small`: layers are packed as small as they get; the estimate takes them for as large as others.
    """
    there: dict[LayerPlan, bool] = {}
    bases: set[LockedDeb] = set()
    for image in images:
        groups = layer_plans(config, image.spec, image.lock, small=small).values()
        plans = [plan for group in groups for plan in group]
        count = held.unpacked(plans)
        bases |= set() if count else set(image.lock.base.debs)
        for number, plan in enumerate(plans):
            there[plan] = there.get(plan, False) or number < count
    size = sum(_layer(plan, plan.key in held.cached, known) for plan, known in there.items())
    locks = [image.lock for image in images]
    size += _ADDED * _bytes(w for lock in locks if (more := lock.extra_wheels) for w in more.wheels)
    size += _ADDED * _bytes(w for lock in locks for more in lock.unpacked for w in more.wheels)
    size += _ADDED * _bytes(d for lock in locks if (debs := lock.extra_debs) for d in debs.debs)
    size += _ADDED * _bytes(w for lock in locks if (tools := lock.tools) for w in tools.wheels)
    size += _ARCHIVE * _bytes(archive for lock in locks for archive in lock.all_archives)
    size += _BASE * _bytes(bases)
    size += _STEPS * len({(lock.base.digest, lock.all_wheels) for lock in locks}) + _TOOLS
    for image in images:
        if image.lock.sources:
            size += _COMPILING + _PER_ARCH * (len(image.spec.architectures) - 1)
    return int(size)


def check_room(
    config: Config,
    images: Sequence[LockedImage],
    cache: Path,
    engine: Engine,
    *,
    small: bool = False,
) -> None:
    """Raise DiskError where the engine's disk cannot hold what it and the cache lack of images.

    An image that the engine has, built from the same lock, takes nothing. What is there is looked
    for only where the disk could not hold all: that takes a while, and most disks are large enough.
    `small` as in `disk_needed`.
    """
    root = engine.local_root()
    if root is None or shutil.disk_usage(root).free >= disk_needed(config, images, small=small):
        return
    made = engine.label_values(labels.LOCK)
    left = [image for image in images if not made & _lock_labels(image.lock)]
    plans = {
        plan
        for image in left
        for group in layer_plans(config, image.spec, image.lock, small=small).values()
        for plan in group
    }
    chains = engine.layer_chains(labels.ID, PARENT_IMAGES)
    held = Held(cached=cached(plans, cache), chains=chains)
    check_disk(root, config, left, held, small=small)


def check_disk(
    data_root: Path | None,
    config: Config,
    images: Sequence[LockedImage],
    held: Held = _NOTHING,
    *,
    small: bool = False,
) -> None:
    """Raise DiskError where the engine's disk cannot hold what the images take beside `held`.

    `data_root` is None for a remote engine, whose disk cannot be seen from here.
    """
    if data_root is None or not images:
        return
    free = shutil.disk_usage(data_root).free
    needed = disk_needed(config, images, held, small=small)
    if free < needed:
        raise DiskError(
            f"building needs about {needed / 1e9:.1f} GB, {data_root} has {free / 1e9:.1f} GB free",
            "free some with `invoke gc` or `docker system prune`, or go on with --skip-disk-check",
        )


def _lock_labels(lock: ImageLock) -> set[str]:
    """What an image of a lock may be labelled with: a build may go without the compat package."""
    return {f"sha256:{each.digest}" for each in (lock, replace(lock, compat=None))}


def _layer(plan: LayerPlan, cached: bool, there: bool) -> float:
    """Bytes that a layer takes beside what the cache and the engine have of it."""
    unpacked = plan.size * (_UNPACKED_PRUNED if plan.arches else _UNPACKED)
    packed = plan.size * (_PACKED_PRUNED if plan.arches else _PACKED)
    return packed * (not cached) + (packed + unpacked) * (not there)


def _bytes(files: Iterable[LockedWheel | LockedDeb | LockedArchive]) -> int:
    """The bytes of files; equal ones count once."""
    return sum(file.size for file in set(files))


def _common(ours: Sequence[str | None], chain: Sequence[str]) -> int:
    """How many of `ours`, from the first one on, follow each other in a chain."""
    if not ours or ours[0] not in chain:
        return 0
    theirs = chain[chain.index(ours[0]) :]
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False))
    return sum(1 for _ in pairs)
