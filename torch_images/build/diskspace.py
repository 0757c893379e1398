"""An estimate of the disk that a build needs, and whether the engine has it.

The estimates were compared with the peak use of the whole disk during builds, sampled by
benchmarks/builds/measure.py. In GB: torch 2.11.0 for CUDA 13.0 used 9.7, estimate 10.1; torch
2.10.0 for CUDA 12.8 used 13.6, estimate 14.7; variant pod after the plain image of torch 2.14.1
used 3.8, estimate 4.0. The disk for compiling was not measured this way.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from torch_images.build.plan import LockedImage
from torch_images.config.types import Config
from torch_images.errors import DiskError
from torch_images.host.engine import Engine
from torch_images.layers.make import cached as in_cache
from torch_images.layers.plan import all_plans
from torch_images.locks.debs import LockedDeb
from torch_images.locks.sources import LockedArchive
from torch_images.locks.wheels import LockedWheel

# Per byte of a wheel: its layer packed in the cache and in the engine, and unpacked in the engine.
# _PRUNED is for a torch without the code for other architectures.
_WHEEL, _PRUNED = 2 * 0.835 + 1.58, 2 * 0.34 + 1.23
# Per byte that a build step installs: packed in the engine, and unpacked twice, by BuildKit and for
# the image.
_ADDED = 1.0 + 2 * 3.15
# Per byte of an archive: in the cache, and twice in the engine, partly packed.
_ARCHIVE = 3.85
# Per byte of the base's packages: in the cache alone and in a layer, in the engine packed and not.
_BASE = 1.0 + 0.96 + 0.96 + 3.72
# Output of each image's build steps, mostly bytecode; and programs for builds, in the cache.
_STEPS, _TOOLS = 350_000_000, 50_000_000
# Compiling torch and Triton: trees, objects, wheels and the compile cache. PyTorch's build folder
# takes some 20 GB for one architecture and 5 for each further one.
_COMPILING, _PER_ARCH = 45_000_000_000, 5_000_000_000


def disk_needed(config: Config, images: Sequence[LockedImage], cached: Collection[str] = ()) -> int:
    """Bytes of disk needed to build these images; shared inputs count once.

    `cached` are the keys of layers in the cache, which are assumed to be in the engine too, with
    the base below. The estimate ignores the gain of --compression small.
    """
    locks = [image.lock for image in images]
    stacks = [all_plans(config, i.spec, i.lock, small=i.small) for i in images]
    layers = {plan for stack in stacks for plan in stack if plan.key not in cached}
    bare = [lock for lock, s in zip(locks, stacks, strict=True) if not s or s[0].key not in cached]
    added = [(lock.extra_wheels, lock.own_wheels, lock.tools, *lock.unpacked) for lock in locks]
    debs = [more for lock in locks for more in (lock.extra_debs, lock.own_debs) if more]
    size = sum(plan.size * (_PRUNED if plan.arches else _WHEEL) for plan in layers)
    size += _ADDED * _bytes(w for more in added for lock in more if lock for w in lock.wheels)
    size += _ADDED * _bytes(deb for more in debs for deb in more.debs)
    size += _ARCHIVE * _bytes(archive for lock in locks for archive in lock.all_archives)
    size += _BASE * _bytes(deb for lock in bare for deb in lock.base.debs)
    size += _STEPS * len({(lock.base.digest, lock.all_wheels) for lock in locks}) + _TOOLS
    for image in images:
        if image.lock.trees:
            size += _COMPILING + _PER_ARCH * (len(image.spec.architectures) - 1)
    return int(size)


def check_room(config: Config, images: Sequence[LockedImage], cache: Path, engine: Engine) -> None:
    """Raise DiskError if the engine's disk is too small for the inputs that are not cached."""
    root = engine.local_root()
    if root is None:
        return
    plans = {p for i in images for p in all_plans(config, i.spec, i.lock, small=i.small)}
    needed, free = disk_needed(config, images, in_cache(plans, cache)), shutil.disk_usage(root).free
    if free < needed:
        raise DiskError(
            f"building needs about {needed / 1e9:.1f} GB, {root} has {free / 1e9:.1f} GB free",
            "free some with `invoke gc`, more with `invoke gc --images --cache`, or build anyway "
            "with --skip-disk-check",
        )


def _bytes(files: Iterable[LockedWheel | LockedDeb | LockedArchive]) -> int:
    """The bytes of files; equal ones count once."""
    return sum(file.size for file in set(files))
