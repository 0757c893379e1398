"""About how much disk a build takes, and whether the engine has it.

The factors below were compared with the use of the whole disk, sampled while images were built (as
benchmarks/builds/measure.py does). The peaks, in GB: torch 2.11.0 for CUDA 13.0 took 9.7, estimate
10.1; torch 2.10.0 for CUDA 12.8 took 13.6, estimate 14.7; variant pod beside the plain image of
torch 2.14.1 took 3.8, estimate 4.0. What compiling takes was not measured so.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from torch_images.build import built, labels
from torch_images.build.plan import LockedImage
from torch_images.config.types import Config
from torch_images.errors import DiskError
from torch_images.host.engine import Engine
from torch_images.layers.make import cached as in_cache
from torch_images.layers.plan import LayerPlan, layer_plans
from torch_images.locks.debs import LockedDeb
from torch_images.locks.image_lock import ImageLock
from torch_images.locks.sources import LockedArchive
from torch_images.locks.wheels import LockedWheel

# A byte of a wheel, whose layer lies packed in this user's cache and in the engine, and unpacked
# there; and where torch has lost the code for other architectures.
_WHEEL, _PRUNED = 2 * 0.835 + 1.58, 2 * 0.34 + 1.23
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


def disk_needed(
    config: Config,
    images: Sequence[LockedImage],
    cached: Collection[str] = (),
    *,
    small: bool = False,
) -> int:
    """Bytes that building these images takes; what they share counts once.

    `cached` are the keys of layers in the cache, which are taken to be in the engine, too, with the
    base below. `small`: layers are packed as small as they get, which the estimate leaves out.
    """
    locks = [image.lock for image in images]
    stacks = [_plans(config, image, small=small) for image in images]
    layers = {plan for stack in stacks for plan in stack if plan.key not in cached}
    bare = [lock for lock, s in zip(locks, stacks, strict=True) if not s or s[0].key not in cached]
    wheels = [held for lock in locks for held in (lock.extra_wheels, lock.tools, *lock.unpacked)]
    size = sum(plan.size * (_PRUNED if plan.arches else _WHEEL) for plan in layers)
    size += _ADDED * _bytes(wheel for held in wheels if held for wheel in held.wheels)
    size += _ADDED * _bytes(d for lock in locks if (debs := lock.extra_debs) for d in debs.debs)
    size += _ARCHIVE * _bytes(archive for lock in locks for archive in lock.all_archives)
    size += _BASE * _bytes(deb for lock in bare for deb in lock.base.debs)
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
    """Raise DiskError where the engine's disk cannot hold what the cache lacks of images.

    An image that the engine has, built from the same lock, takes nothing. What is there is looked
    for only where the disk could not hold all: that takes a while, and most disks are large enough.
    `small` as in `disk_needed`.
    """
    root = engine.local_root()
    if root is None or shutil.disk_usage(root).free >= disk_needed(config, images, small=small):
        return
    made = {image.labels.get(labels.LOCK) for image in built.ours(cache, engine)}
    left = [image for image in images if not made & _lock_labels(image.lock)]
    plans = {plan for image in left for plan in _plans(config, image, small=small)}
    check_disk(root, config, left, in_cache(plans, cache), small=small)


def check_disk(
    data_root: Path | None,
    config: Config,
    images: Sequence[LockedImage],
    cached: Collection[str] = (),
    *,
    small: bool = False,
) -> None:
    """Raise DiskError where the engine's disk cannot hold what the images take beside `cached`.

    `data_root` is None for a remote engine, whose disk cannot be seen from here.
    """
    if data_root is None or not images:
        return
    free = shutil.disk_usage(data_root).free
    needed = disk_needed(config, images, cached, small=small)
    if free < needed:
        raise DiskError(
            f"building needs about {needed / 1e9:.1f} GB, {data_root} has {free / 1e9:.1f} GB free",
            "free some with `invoke gc`, more with `invoke gc --images --cache`, or go on with "
            "--skip-disk-check",
        )


def _lock_labels(lock: ImageLock) -> set[str]:
    """What an image of a lock may be labelled with: a build may go without the compat package."""
    return {f"sha256:{each.digest}" for each in (lock, replace(lock, compat=None))}


def _plans(config: Config, image: LockedImage, *, small: bool) -> list[LayerPlan]:
    groups = layer_plans(config, image.spec, image.lock, small=small).values()
    return [plan for group in groups for plan in group]


def _bytes(files: Iterable[LockedWheel | LockedDeb | LockedArchive]) -> int:
    """The bytes of files; equal ones count once."""
    return sum(file.size for file in set(files))
